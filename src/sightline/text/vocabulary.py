"""The tokenizers of both sides of a task, label sets, and vocabularies extended by new tokens."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from sightline.recipe import Recipe
from sightline.recipe.tokenizer import AnyTokenizer
from sightline.terminal import plural
from sightline.text.tokenizer import PAD, SPECIALS, UNK, SpelledSide, Tokenizer, TokenizerError

Labels = Literal["none", "one", "several", "words"]  # of a target: none (a text), one for the text, one for each word

# A label may be spelled like a special token, "<s>" for example. In the vocabulary such a label gets a backslash
# after its "<" ("<\s>"); a label that has backslashes there already gets one more. Decoding removes it.
_NAMES = "(?:" + "|".join(special[1:-1] for special in SPECIALS) + ")"
_ESCAPE = "<\\"


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of source and target; the same one if `shared`."""

    source: Tokenizer
    target: Tokenizer
    shared: bool = field(default=True)
    labels: Labels = "none"

    @classmethod
    def train(
        cls,
        section: AnyTokenizer,
        pairs: Callable[[], Iterator[tuple[str, str]]],
        labels: Labels = "none",
        marks: Sequence[str] = (),
    ) -> Vocabulary:
        """Train on pairs of texts; `pairs` is called once for each pass. Both sides get the `marks`."""
        if labels != "none":
            source = Tokenizer.train(section, (pair[0] for pair in pairs()))
            target = label_tokenizer((pair[1] for pair in pairs()), whole=labels == "one")
            return cls(source, target, shared=False, labels=labels)
        if section.shared:
            both = Tokenizer.train(section, chain.from_iterable(pairs()), marks)
            return cls(both, both, shared=True)
        source = Tokenizer.train(section, (pair[0] for pair in pairs()), marks)
        return cls(source, Tokenizer.train(section, (pair[1] for pair in pairs()), marks), shared=False)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, or one file for each side."""
        if self.shared:  # the recipe says which side is spelled out
            self.source.with_spelling(False).save(folder / "tokenizer.json")
        else:
            self.source.save(folder / "tokenizer.source.json")
            self.target.save(folder / "tokenizer.target.json")

    @classmethod
    def load(cls, folder: Path, labels: Labels = "none") -> Vocabulary:
        """Read what `save` wrote."""
        if (folder / "tokenizer.json").exists() or not (folder / "tokenizer.source.json").exists():
            both = Tokenizer.load(folder / "tokenizer.json")
            return cls(both, both, shared=True)
        source = Tokenizer.load(folder / "tokenizer.source.json")
        return cls(source, Tokenizer.load(folder / "tokenizer.target.json"), shared=False, labels=labels)

    def encode_words(self, sentences: Sequence[str], *, dropout: float = 0.0, seed: int = 0) -> list[list[list[int]]]:
        """The pieces of each word (between single spaces) of each sentence; an empty word is UNK."""
        sentences = [self.source._shown(sentence) for sentence in sentences]
        words = [sentence.split(" ") if sentence else [] for sentence in sentences]
        flat = iter(self.source.encode_dropout(list(chain.from_iterable(words)), dropout=dropout, seed=seed))
        return [[next(flat) or [UNK] for _ in each] for each in words]

    def encode_pairs(
        self, sources: Sequence[str], targets: Sequence[str], *, dropout: float = 0.0, seeds: tuple[int, int] = (0, 0)
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The ids of examples as in a store. Labels of words are at their first pieces, PAD at the other pieces."""
        if self.labels == "words":
            words = self.encode_words(sources, dropout=dropout, seed=seeds[0])
            tags = self.target.encode_many(list(targets))
            for pair in zip(sources, targets, strict=True):
                if (problem := uneven_labels(*pair)) is not None:
                    raise TokenizerError(problem)
            spread = [
                [id_ for tag, pieces in zip(labels, sentence, strict=True) for id_ in (tag, *[PAD] * (len(pieces) - 1))]
                for labels, sentence in zip(tags, words, strict=True)
            ]
            return [list(chain.from_iterable(sentence)) for sentence in words], spread
        source = self.source.encode_dropout(list(sources), dropout=dropout, seed=seeds[0])
        if self.labels != "none":
            return source, self.target.encode_many(list(targets))
        return source, self.target.encode_dropout(list(targets), dropout=dropout, seed=seeds[1])

    def with_spelling(self, side: SpelledSide | None) -> Vocabulary:
        """The vocabulary whose tokenizers spell out the texts of this side only. Labels are never spelled out."""
        source = self.source.with_spelling(side in ("source", "both"))
        target = self.target if self.labels != "none" else self.target.with_spelling(side in ("target", "both"))
        if self.source is self.target and side in (None, "both"):
            target = source
        return replace(self, source=source, target=target)


def with_preprocessing(recipe: Recipe, vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary with the preprocessing that the recipe's training sources apply to raw text.

    Normalization and lowercasing are part of the tokenizers. Spelling out follows from the sources, so that runs of
    older versions have it too. Columns and patterns only locate a text in a file and do not matter for prediction.
    """
    side: SpelledSide | None = recipe.data.spelled_side
    if recipe.of_text:  # the only text is the target side of pairs
        side = "both" if side == "target" else None
    return vocabulary.with_spelling(side)


def label_tokenizer(texts: Iterable[str], *, whole: bool) -> Tokenizer:
    """A tokenizer of the labels in these texts: each text is one label if `whole`, else labels are separated by spaces.

    Ids are sorted by falling frequency, ties by code points. Nothing is normalized, split or joined: labels that differ
    in a byte are different labels, and a label that is not in `texts` is UNK. Decoded labels have single spaces
    between.
    """
    counts: Counter[str] = Counter()
    for number, text in enumerate(texts, 1):
        labels = [text] if whole else text.split(" ") if text else []
        if "" in labels:
            raise TokenizerError(f"text {number} ({text!r}) has an empty label; give each a name, or leave it out")
        counts.update(labels)
    if not counts:
        raise TokenizerError("no labels can be learned from texts without any; check data.train")
    labels = sorted(counts, key=lambda label: (-counts[label], label))
    escaped = [re.sub(rf"\A<(?=\\*{_NAMES}>\Z)", lambda _: _ESCAPE, label) for label in labels]
    vocabulary = {label: number for number, label in enumerate([*SPECIALS, *escaped])}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIALS[UNK]))
    inner.add_special_tokens(list(SPECIALS))
    head, tail = (r"\A", r"\z") if whole else ("(?<![^ ])", "(?![^ ])")
    inner.normalizer = normalizers.Replace(Regex(rf"{head}<(?=\\*{_NAMES}>{tail})"), _ESCAPE)
    plain = decoders.Replace(Regex(rf"\A<\\(?=\\*{_NAMES}>\z)"), "<")
    if whole:
        inner.decoder = plain
    else:
        inner.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
        spaced = decoders.WordPiece(prefix=" ", cleanup=False)  # a space before each but the first
        inner.decoder = decoders.Sequence([plain, spaced])
    return Tokenizer(inner)


def label_id(labels: Tokenizer, name: str) -> int:
    """The id of a label; an unknown name is an error."""
    known = {labels.decode([number]): number for number in range(len(SPECIALS), labels.size)}
    if name not in known:
        raise ValueError(f"there is no label {name!r}; there are {', '.join(list(known)[:20])}")
    return known[name]


def between_spaces(text: str) -> list[str]:
    """The words of a text as taggers count them, or its labels; other kinds of space may occur inside a word."""
    return [word for word in text.split(" ") if word]


def uneven_labels(text: str, labels: str) -> str | None:
    """The problem if a text has more or fewer words, between single spaces, than labels; else None."""
    words, count = len(text.split(" ")) if text else 0, len(between_spaces(labels))
    if words == count:
        return None
    return (
        f"{plural(count, 'label')} ({labels!r}) for {plural(words, 'word')} ({text!r}); give each word one label, and "
        f"set both apart by single spaces"
    )


def extend_tokenizer(old: Tokenizer, new: Tokenizer) -> Tokenizer:
    """`old` with the tokens of `new` that it lacks, with ids from `old.size` on; weights for the old ids still fit.

    BPE: the merges of `new` come after those of `old`. So known text is segmented as before, except that some pieces
    are now merged; a merge whose parts never end up next to each other stays unused.
    """
    content, other = json.loads(old.content), json.loads(new.content)
    model, more = content["model"], other["model"]
    if model["type"] != more["type"]:
        raise TokenizerError(
            f"a {model['type']} tokenizer cannot be extended by a {more['type']} one; use the same tokenizer.kind"
        )
    if model["type"] == "Unigram":
        known = {piece for piece, _ in model["vocab"]}
        model["vocab"] += [scored for scored in more["vocab"] if scored[0] not in known]
    else:
        added = (token for token in sorted(more["vocab"], key=more["vocab"].get) if token not in model["vocab"])
        model["vocab"] |= {token: old.size + number for number, token in enumerate(added)}
    if model["type"] == "BPE":
        merges = {tuple(pair) for pair in model["merges"]}
        model["merges"] += [pair for pair in more["merges"] if tuple(pair) not in merges]
    result = Tokenizer.parse(json.dumps(content, ensure_ascii=False))
    if result.pieces(range(old.size)) != old.pieces(range(old.size)):
        raise TokenizerError("this tokenizer cannot be extended: its old tokens would get other numbers")
    return result
