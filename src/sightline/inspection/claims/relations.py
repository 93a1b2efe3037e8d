"""Heads scored by dependency relation: does "each head learn a different property"?

A head is right about a word with a relation (nsubj, det, …) if of all other words it attends most to the word's
syntactic head (Clark et al. 2019, §4.2); or, in the other direction, the syntactic head attends most to the word. The
baseline is a fixed offset: the syntactic head is the word so many places away (chosen for each relation).

Attention to a word is the sum over its tokens, attention from it the mean over them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.inspection.attention import attentions, short_name
from sightline.inspection.claims.table import Claim, ClaimTable
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps

if TYPE_CHECKING:
    from sightline.inspection.attention import LoadedRun

Weights = NDArray[np.float64]
_FARTHEST = 10  # places of an offset


@dataclass(frozen=True)
class ParsedSentence:
    """Words with their syntactic heads (from 0; −1: the root) and relations."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


def read_parsed(path: Path, most: int | None = None) -> Iterator[ParsedSentence]:
    """The sentences of a CoNLL-U file with columns HEAD and DEPREL; subtypes (nsubj:pass) count as nsubj."""
    from sightline.data.conll import tagged_sentences
    from sightline.data.text_files import open_lines

    for number, sentence in enumerate(tagged_sentences(open_lines(path), "conllu", name=path.name)):
        if most is not None and number >= most:
            return
        cells = [sentence.lines[row].rstrip("\r\n").split("\t") for row in sentence.rows]
        if not all(row[6].isdigit() for row in cells):
            raise ValueError(f"{path}, sentence {number + 1}: column HEAD is not a number; give a parsed treebank")
        heads = tuple(int(row[6]) - 1 for row in cells)
        yield ParsedSentence(sentence.words, heads, tuple(row[7].split(":")[0] for row in cells))


def word_weights(weights: Weights, counts: Sequence[int]) -> Weights:
    """Weights of tokens (T, T) → of words (W, W): sum over the tokens attended to, mean over those that attend."""
    ends = np.cumsum(counts)
    spans = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
    columns = np.stack([weights[:, list(span)].sum(1) for span in spans], 1)  # (T, W)
    return np.stack([columns[list(span)].mean(0) for span in spans], 0)


@dataclass
class RelationScores:
    """Counts over sentences: how often each head, and each offset, finds the other end of a relation."""

    total: Counter[str] = field(default_factory=Counter)
    offsets: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    right: dict[str, Counter[tuple[str, str]]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, sentence: ParsedSentence, heads: dict[str, Weights]) -> None:
        """Count one sentence, given the weights between words (W, W) of every head by name."""
        most = {}
        for name, weights in heads.items():
            others = weights.copy()
            np.fill_diagonal(others, -1.0)  # a word is not its own head
            most[name] = others.argmax(1)
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if head < 0 or len(sentence.words) < 3:
                continue
            self.total[relation] += 1
            self.offsets[relation][head - word] += 1
            for name, attended in most.items():
                self.right[relation][name, "to head"] += int(attended[word] == head)
                self.right[relation][name, "from head"] += int(attended[head] == word)

    def rows(self, fewest: int) -> list[list[Any]]:
        """For each relation with at least `fewest` words: the best offset and the best head, most frequent first."""
        rows = []
        for relation, count in self.total.most_common():
            if count < fewest:
                break
            near = Counter({k: n for k, n in self.offsets[relation].items() if abs(k) <= _FARTHEST})
            offset, hits = near.most_common(1)[0] if near else (0, 0)
            (name, direction), found = self.right[relation].most_common(1)[0]
            shares = hits / count, found / count
            rows.append([relation, count, f"{offset:+d}".replace("-", "−"), shares[0], name, direction, shares[1]])
        return rows


def sentence_weights(run: LoadedRun, paths: Sequence[str], words: Sequence[str]) -> dict[str, Weights] | None:
    """The weights between words of every encoder head by name; None for a sentence with a word without tokens."""
    (pieces,) = run.vocabulary.encode_words([" ".join(words)])
    counts = [len(word) for word in pieces]
    if len(counts) != len(words) or not all(counts):
        return None
    tokens = torch.tensor([[piece for word in pieces for piece in word]], device=run.device)
    found: dict[str, Weights] = {}

    def keep(tapped: Tapped) -> None:
        path, _, name = tapped.name.rpartition(".")
        if name == "weights":
            for number, weights in enumerate(tapped.tensor[0].double().cpu().numpy()):  # (H, T, T)
                found[short_name(f"{path}.{number}")] = word_weights(weights, counts)

    with torch.no_grad(), on_taps(run.model, keep, list(paths)):
        run.model.encode(tokens, Padded.of([tokens.shape[1]]))
    return found


def score_relations(run: LoadedRun, sentences: Iterable[ParsedSentence]) -> RelationScores:
    """Score every self-attention head of a tagger's encoder."""
    paths = [path for path in attentions(run.model) if path.startswith("encoder.")]
    if run.recipe.task_spec.labels != "words" or not paths:
        raise ValueError(
            f"{run.folder} is no tagger with self-attention (task {run.recipe.task}); give a run such as "
            "sightline train ewt/transformer"
        )
    scores = RelationScores()
    for sentence in sentences:
        weights = sentence_weights(run, paths, sentence.words)
        if weights is not None:
            scores.add(sentence, weights)
    return scores


def treebank_of(run: LoadedRun, on: str) -> Path:
    """The CoNLL-U file of a test set of a run, or of its validation set."""
    from sightline.data.locate import data_folder, source_files

    data = run.recipe.data
    source = data.held_out(on) if on == "validation" or on in data.tests else None
    if source is None or source.kind != "conllu":
        raise ValueError(f"--on {on}: no CoNLL-U file of the run; name one of its test sets, or give --file TREEBANK")
    return source_files(source, data_folder(run.recipe))[0]


def relations_claim(run: LoadedRun, file: Path, *, most: int = 500, fewest: int = 50) -> Claim:
    """The best head of each relation beside the best offset."""
    scores = score_relations(run, read_parsed(file, most))
    rows = scores.rows(fewest)
    if not rows:
        raise ValueError(f"{file}: no relation has {fewest} words in {most} sentences; read more, or ask for fewer")
    beaten = sum(row[6] > row[3] for row in rows)
    different = len({(row[4], row[5]) for row in rows})
    columns = ["relation", "words", "offset", "baseline", "best head", "attends", "accuracy"]
    notes = [
        f"The best head beats the best fixed offset on {beaten} of {len(rows)} relations; {different} different heads "
        "or directions are the best of some relation.",
        "Both are chosen on the words that they are scored on, which favours heads: there are more of them.",
    ]
    every = {
        relation: {f"{name} {way}": count / scores.total[relation] for (name, way), count in counts.items()}
        for relation, counts in scores.right.items()
    }
    claim = "Each head learns a different property: heads by dependency relation, beside a fixed offset"
    title = f"{run.folder.name} on {file.name}, relations with at least {fewest} words"
    table = ClaimTable(title, columns, rows)
    return Claim(claim, [table], notes, {"heads": every}, lambda path: _draw(every, rows, path))


def _draw(every: dict[str, dict[str, float]], rows: list[list[Any]], path: Path) -> None:
    from sightline.plots.claims import draw_matrices

    relations = [row[0] for row in rows]
    heads = sorted({name.split(" ")[0] for relation in relations for name in every[relation]})
    values = [[max(every[r][f"{head} {way}"] for way in ("to head", "from head")) for r in relations] for head in heads]
    draw_matrices({"share of words found, in the better direction": np.array(values)}, heads, path, columns=relations)
