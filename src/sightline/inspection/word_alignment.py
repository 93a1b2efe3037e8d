"""Which source word each target word comes from, read from a model's attention.

Subword weights become word weights: summed over the pieces of a source word, averaged over those of a target word; each
target word is linked to the source word that has most. End marks are no words. Which characters a piece covers is
known, so words may be any cut of the text: what stands between spaces, or a gold file's tokens (`Don't` as `do n't`),
whatever their case. A piece that reaches into two words counts for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.decoding.generate import length_batches, pad_tokens
from sightline.inspection.attention_views import Loaded, attentions, find_head, head_names, short_name
from sightline.inspection.symmetrization import Links
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, listen
from sightline.text.tokenizer import END, SPACE, START

Weights = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """What each target word gave to each source word."""

    source: list[str]
    target: list[str]
    weights: Weights  # (target words, source words)

    @property
    def links(self) -> Links:
        """(source word, target word): for each target word the source word with most weight, if any has some."""
        if not self.source:
            return frozenset()
        best = self.weights.argmax(axis=1)
        return frozenset((int(i), j) for j, i in enumerate(best) if self.weights[j, i] > 0)

    def pharaoh(self) -> str:
        """The links as `source-target` pairs from 0, in the order of the source."""
        return pharaoh(self.links)


def pharaoh(links: Links) -> str:
    """`0-0 1-2`, the format word aligners write."""
    return " ".join(f"{i}-{j}" for i, j in sorted(links))


@dataclass(frozen=True)
class Cut:
    """A text as pieces and as words, and which pieces make which words."""

    ids: list[int]
    words: list[str]
    members: NDArray[np.bool_]  # (pieces, words)


@dataclass(frozen=True)
class Looking:
    """Which heads are read (all of the last layer but one, if none are named: Garg et al. 2019), and when.

    At step t a decoder reads word t−1 and writes word t. With `shift`, word t is aligned where it is read, one step
    later, when it is known and need not be guessed (Chen et al. 2020, §3).
    """

    heads: tuple[str, ...] = ()
    shift: bool = False


def align_pairs(
    run: Loaded,
    sources: Sequence[str],
    targets: Sequence[str],
    looking: Looking | None = None,
    *,
    source_words: Sequence[Sequence[str]] | None = None,
    target_words: Sequence[Sequence[str]] | None = None,
) -> list[WordAlignment]:
    """The alignment of each pair of texts, with the target given. Words are what stands between spaces, or as told."""
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources and {len(targets)} targets; give each source one target")
    read, written = run.vocabulary.source, run.vocabulary.target
    first = [cut_text(read, text, _own(source_words, n), n + 1) for n, text in enumerate(sources)]
    second = [cut_text(written, text, _own(target_words, n), n + 1) for n, text in enumerate(targets)]
    return _align(run, first, second, looking or Looking())


def align_outputs(
    run: Loaded, sources: Sequence[str], outputs: Sequence[Sequence[int]], looking: Looking | None = None
) -> list[WordAlignment]:
    """The same for tokens that the model wrote, as it wrote them."""
    first = [cut_text(run.vocabulary.source, text, None, n + 1) for n, text in enumerate(sources)]
    second = [cut_pieces(list(ids), run.vocabulary.target.pieces(ids)) for ids in outputs]
    return _align(run, first, second, looking or Looking())


# --- pieces and words --------------------------------------------------------------------------------------------


def _own(words: Sequence[Sequence[str]] | None, number: int) -> list[str] | None:
    return None if words is None else list(words[number])


def cut_text(tokenizer: Any, text: str, words: Sequence[str] | None = None, number: int = 1) -> Cut:
    """A text as the tokenizer cuts it; `number` names it in errors."""
    words = text.split() if words is None else list(words)
    letters = "".join(text.split())
    spelled = "".join("".join(word.split()) for word in words)
    if letters.lower() != spelled.lower():
        raise ValueError(f"line {number}: the words {' '.join(words)!r} do not spell the text {text!r}")
    before = np.cumsum([0, *(not character.isspace() for character in text)])  # letters before each place
    spans = [(int(before[start]), int(before[stop])) for start, stop in tokenizer.spans(text)]
    return Cut(tokenizer.encode(text), list(words), _members(spans, words))


def cut_pieces(ids: list[int], pieces: Sequence[str]) -> Cut:
    """Pieces with "▁" for spaces, and the words they spell."""
    words = "".join(pieces).replace(SPACE, " ").split()
    lengths = [len("".join(piece.replace(SPACE, " ").split())) for piece in pieces]
    ends = np.cumsum([0, *lengths]).tolist()
    return Cut(ids, words, _members(list(pairwise(ends)), words))


def _members(spans: Sequence[tuple[int, int]], words: Sequence[str]) -> NDArray[np.bool_]:
    """(pieces, words), True where a piece [start, stop) of the letters has one of the word's."""
    owners = [number for number, word in enumerate(words) for _ in "".join(word.split())]
    members = np.zeros((len(spans), len(words)), dtype=np.bool_)
    for piece, (start, stop) in enumerate(spans):
        members[piece, owners[start:stop]] = True
    return members


def word_weights(weights: Weights, source: NDArray[np.bool_], target: NDArray[np.bool_]) -> Weights:
    """W_ji = mean over the pieces t of word j of Σ over the pieces s of word i of α_ts.

    weights (T, S), source (S, words), target (T, words) → (target words, source words).
    """
    summed = weights @ source.astype(np.float32)  # (T, source words)
    pieces = np.maximum(target.sum(axis=0), 1).astype(np.float32)[:, None]
    result: Weights = target.astype(np.float32).T @ summed / pieces
    return result


# --- attention ---------------------------------------------------------------------------------------------------


def chosen_heads(model: Any, names: Sequence[str]) -> dict[str, list[int]]:
    """The heads that look at the source, by path: those named (`decoder.2.cross.1`, or all of `decoder.2.cross`)."""
    looks = tuple(model.looks)
    counts = {path: count for path, count in attentions(model).items() if path in looks}
    if not counts:
        raise ValueError("this model has no attention to the source, so it aligns nothing")
    if not names:
        path = looks[max(len(looks) - 2, 0)]
        return {path: list(range(counts[path]))}
    chosen: dict[str, list[int]] = {}
    layers = {short_name(path): path for path in counts}
    for name in names:
        whole = layers.get(short_name(name))
        if whole is not None:
            path, numbers = whole, list(range(counts[whole]))
        else:
            path, number = find_head(model, name)
            numbers = [number]
        if path not in counts:
            known = [each for each in head_names(model) if each.rpartition(".")[0] in counts]
            raise ValueError(f"{name} does not look at the source; {known[0]} … {known[-1]} do")
        chosen[path] = sorted({*chosen.get(path, []), *numbers})
    return chosen


@torch.inference_mode()
def source_attention(
    run: Loaded,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    heads: dict[str, list[int]],
    *,
    tokens: int = 4096,
) -> list[Weights]:
    """(T + 1, S + 1) of each pair, end marks included: the mean of these heads while the target is written."""
    results: list[Weights] = [np.zeros((0, 0), np.float32)] * len(sources)
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for indices in length_batches(lengths, tokens):
        rows = [[*sources[index], END] for index in indices]
        given = [[START, *targets[index]] for index in indices]
        heard: dict[str, list[torch.Tensor]] = {}

        def hear(tapped: Tapped, heard: dict[str, list[torch.Tensor]] = heard) -> None:
            path, _, point = tapped.name.rpartition(".")
            if point == "weights":
                heard.setdefault(path, []).append(tapped.tensor[:, heads[path]])  # (B, heads, T or 1, S)

        with listen(run.model, hear, tuple(heads)):
            layout = Padded.of([len(row) for row in rows], run.device)
            state = run.model.begin(run.model.encode(pad_tokens(rows, run.device), layout))
            run.model.advance(pad_tokens(given, run.device), state)
        whole = torch.cat([torch.cat(parts, dim=2) for parts in heard.values()], dim=1).float().mean(1)  # (B, T, S)
        for place, index in enumerate(indices):
            results[index] = whole[place, : len(given[place]), : len(rows[place])].cpu().numpy()
    return results


def _align(run: Loaded, sources: Sequence[Cut], targets: Sequence[Cut], looking: Looking) -> list[WordAlignment]:
    if run.recipe.task != "seq2seq":
        raise ValueError(f"alignments are between a source and a target, and this run is task: {run.recipe.task}")
    heads = chosen_heads(run.model, looking.heads)
    pairs = [n for n, (one, other) in enumerate(zip(sources, targets, strict=True)) if one.words and other.words]
    looks = source_attention(run, [sources[n].ids for n in pairs], [targets[n].ids for n in pairs], heads)
    found = dict(zip(pairs, looks, strict=True))
    results = []
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        weights = np.zeros((len(target.words), len(source.words)), np.float32)
        if number in found:
            rows = found[number][1:] if looking.shift else found[number][:-1]  # (T, S + 1)
            weights = word_weights(rows[:, :-1], source.members, target.members)
        results.append(WordAlignment(source.words, target.words, weights))
    return results
