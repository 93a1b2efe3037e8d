"""Noise for pretraining: masked words (BERT), denoising (BART) and span corruption (T5).

`mask_tokens`, `corrupt_text` and `corrupt_spans` are pure functions of the tokens, the noise settings and a
`NoiseRandom`, whose numbers are a pure function of its key. The key of a training window is (seed, epoch, place in the
epoch): each epoch corrupts a text anew, nothing is stored, and a resumed training meets the corruption that an
uninterrupted one would have met.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.data.collate import StaticShape, TrainingBatch, collate_fn
from sightline.data.epoch_plan import EpochPlan
from sightline.data.windows import FullWindows
from sightline.recipe import Recipe
from sightline.recipe.data import AnyNoise, InfillingNoise, MaskNoise, SpanNoise
from sightline.registry import Implementations
from sightline.text.sentences import sentence_ends, unspaced
from sightline.text.tokenizer import END, PAD, SPACE, SPECIALS, Tokenizer
from sightline.text.vocabulary import Vocabulary

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


class NoiseRandom:
    """Random numbers from a key of integers (raw output, which NumPy guarantees never to change)."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def raw(self, count: int) -> NDArray[np.uint64]:
        """Uniform integers below 2^64."""
        return self._bits.random_raw(count)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Uniform numbers in [0, 1)."""
        return (self.raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def choose(self, count: int, among: int) -> Ids:
        """`count` distinct integers below `among`, sorted; all sets are equally likely."""
        if count == 0:
            return np.empty(0, np.int64)
        return np.sort(np.argpartition(self.raw(among), count - 1)[:count])


@dataclass(frozen=True)
class PieceTable:
    """Properties of the pieces of a vocabulary that noise needs."""

    begins: Flags  # (V,) whether a word begins with this piece: at a space, at punctuation, in scripts without spaces
    texts: tuple[str, ...]  # (V,) the text of each piece, for sentence splitting
    sizes: Ids  # (V,) its length in characters
    marks: Ids  # the ids of the mask or sentinel tokens, in order
    first: int  # the first id that is neither a special token nor a mark

    @staticmethod
    def of(tokenizer: Tokenizer, marks: tuple[str, ...]) -> PieceTable:
        """For a tokenizer that has these marks."""

        def begins(first: str) -> bool:
            return first in (SPACE, "") or first.isspace() or unicodedata.category(first)[0] in "PS" or unspaced(first)

        pieces = tokenizer.pieces(range(tokenizer.size))
        # Line breaks inside a piece are no ends of sentences; the end token of a document is one.
        texts = tuple(
            "\n" if number == END else piece.replace(SPACE, " ").replace("\n", " ")
            for number, piece in enumerate(pieces)
        )
        return PieceTable(
            begins=np.array([begins(piece[:1]) for piece in pieces]),
            texts=texts,
            sizes=np.array([len(each) for each in texts], np.int64),
            marks=np.array([tokenizer.mark(mark) for mark in marks], np.int64),
            first=len(SPECIALS) + len(tokenizer.marks),
        )


# --- masked LM -----------------------------------------------------------------------------------------------------


def mask_tokens(text: Ids, noise: MaskNoise, pieces: PieceTable, random: NoiseRandom) -> tuple[Ids, Ids]:
    """The corrupted text and its labels (PAD where no token was chosen), both as long as the text.

    Words are drawn until the share of tokens is reached. Of the chosen tokens 80% become <mask>, 10% a random token,
    10% stay (Devlin et al. 2019, §3.1, and their whole word masking). Special tokens are never chosen.
    """
    starts = _words(text, pieces) if noise.whole_words else np.arange(len(text))
    lengths = np.diff(starts, append=len(text))
    turns = np.argsort(random.raw(len(starts)))
    most = noise.most(len(text))
    turns = turns[(text[starts[turns]] >= len(SPECIALS)) & (lengths[turns] <= most)]
    ends = np.cumsum(lengths[turns])
    taken = (ends - 0.5 * lengths[turns] <= noise.rate * len(text)) & (ends <= most)
    taken[:1] = True
    flags = np.zeros(len(starts), np.bool_)
    flags[turns[taken]] = True
    chosen = np.repeat(flags, lengths)
    if not len(turns):  # only special tokens, or one very long word
        chosen[:1] = True
    places = np.flatnonzero(chosen)
    draw = random.uniform(len(places))
    corrupted = text.copy()
    corrupted[places[draw < noise.masked]] = pieces.marks[0]
    other = places[(draw >= noise.masked) & (draw < noise.masked + noise.random)]
    size = len(pieces.begins) - pieces.first
    corrupted[other] = pieces.first + (random.raw(len(other)) % np.uint64(max(1, size))).astype(np.int64)
    return corrupted, np.where(chosen, text, PAD)


def _words(text: Ids, pieces: PieceTable) -> Ids:
    """Where words begin. A special token is a separate word, and so is the rest of a word after it."""
    begins = pieces.begins[text]
    special = text < len(SPECIALS)
    begins[1:] |= special[:-1]
    begins[:1] = True
    return np.flatnonzero(begins | special)


# --- spans ---------------------------------------------------------------------------------------------------------


def span_places(units: int, lengths: Ids, random: NoiseRandom) -> Ids:
    """Starts of spans of these lengths among `units` units, in order, with at least one unit between two spans.

    All placements are equally likely: with k spans and `rest` units outside them, the numbers of outside units before
    each span are any set of k numbers in 0 … rest. At least k − 1 units must be outside.
    """
    rest = units - int(lengths.sum())
    return random.choose(len(lengths), rest + 1) + np.cumsum(lengths) - lengths


def corrupt_spans(text: Ids, noise: SpanNoise, pieces: PieceTable, random: NoiseRandom) -> tuple[Ids, Ids]:
    """Source and target of span corruption (T5: Raffel et al. 2020, §3.1.4), without start and end tokens.

    x_1 x_2 x_3 x_4 x_5 → source x_1 <gap-0> x_4 <gap-1>, target <gap-0> x_2 x_3 <gap-1> x_5. The number of corrupted
    tokens and of spans follows from the length of the text; lengths and places of spans are drawn uniformly. End tokens
    between documents are removed: a decoder would stop there.
    """
    text = text[text != END]
    if not len(text):
        return text, text
    covered, count = noise.counts(len(text))
    cuts = random.choose(count - 1, covered - 1) + 1
    lengths = np.diff(cuts, prepend=0, append=covered)
    starts = span_places(len(text), lengths, random)
    inside = _inside(len(text), starts, starts + lengths)
    before = np.cumsum(lengths) - lengths  # tokens inside earlier spans
    marks = pieces.marks[:count]
    return _with_marks(text[~inside], starts - before, marks), _with_marks(text[inside], before, marks)


def corrupt_text(text: Ids, noise: InfillingNoise, pieces: PieceTable, random: NoiseRandom) -> tuple[Ids, Ids]:
    """Source and target of denoising (BART: Lewis et al. 2020, §2.2), without start and end tokens.

    Sentences are permuted, then each span is replaced by one <mask> (a span of length 0 inserts one), then tokens
    outside the spans are deleted. The target is the original text without end tokens between documents.
    """
    real = text != END
    target = source = text[real]
    if not len(target):
        return target, target
    if noise.permute_sentences:
        written = "".join(map(pieces.texts.__getitem__, text.tolist()))
        sizes = pieces.sizes[text]
        starts, ends = np.cumsum(sizes) - sizes, np.array(sentence_ends(written), np.int64)
        sentence = np.searchsorted(ends, starts, side="right")[real]  # the number of the sentence of each token
        rank = np.argsort(random.raw(int(sentence[-1]) + 1))
        source = target[np.argsort(rank[sentence], kind="stable")]
    return _infilled(source, noise, pieces, random), target


def _infilled(text: Ids, noise: InfillingNoise, pieces: PieceTable, random: NoiseRandom) -> Ids:
    units = _words(text, pieces) if noise.whole_words else np.arange(len(text))
    bounds = np.append(units, len(text))
    lengths = _poisson_lengths(len(units), noise, random)
    places = span_places(len(units), lengths, random)
    starts, stops = bounds[places], bounds[places + lengths]
    inside = _inside(len(text), starts, stops)
    sizes = stops - starts
    kept = text[~inside]
    places = starts - (np.cumsum(sizes) - sizes)  # kept tokens before each span
    if noise.deletion_ratio:
        left = random.uniform(len(kept)) >= noise.deletion_ratio
        places = np.append(0, np.cumsum(left))[places]
        kept = kept[left]
    return _with_marks(kept, places, np.broadcast_to(pieces.marks[0], len(places)))


def _poisson_lengths(units: int, noise: InfillingNoise, random: NoiseRandom) -> Ids:
    """Poisson lengths that cover the share of the units; the last one is cut. No more spans than covered units."""
    budget = min(round(noise.rate * units), units - 1)
    if budget < 1:
        return np.empty(0, np.int64)
    lengths = np.searchsorted(_poisson(noise.mean_span_length), random.uniform(budget), side="right")
    ends = np.minimum(np.cumsum(lengths), budget)
    lengths = np.diff(ends, prepend=0)
    needed = int(np.searchsorted(ends, budget)) + 1
    most = units - int(ends[min(needed, budget) - 1]) + 1  # at least one unit between two spans
    lengths = lengths[: min(needed, budget, most)]
    empty = np.flatnonzero(lengths == 0)
    return np.delete(lengths, empty[: max(0, len(lengths) - int(lengths.sum()))])


@cache
def _poisson(mean: float) -> NDArray[np.float64]:
    """P(length ≤ k) for k = 0, 1, …, up to where the rest vanishes."""
    ks = np.arange(int(mean + 12 * math.sqrt(mean) + 12))
    logs = ks * math.log(mean) - mean - np.cumsum(np.log(np.maximum(ks, 1)))
    return np.cumsum(np.exp(logs))[:-1]


def _inside(length: int, starts: Ids, stops: Ids) -> Flags:
    """Which tokens are inside spans, which do not touch."""
    change = np.zeros(length + 1, np.int8)
    change[starts] += 1
    change[stops] -= 1
    return np.cumsum(change[:-1], dtype=np.int8) > 0


def _with_marks(tokens: Ids, places: Ids, marks: Ids) -> Ids:
    """The tokens with a mark inserted before each of these positions (sorted)."""
    result = np.empty(len(tokens) + len(places), np.int64)
    rest = np.ones(len(result), np.bool_)
    spots = places + np.arange(len(places))
    rest[spots] = False
    result[spots] = marks
    result[rest] = tokens
    return result


_TRAINING, _HELD_OUT = 31, 37  # streams of random numbers: by seed and epoch, and fixed
NOISES = Implementations("noise")  # kind → (text, noise, pieces, random) → source, target

Pairs = tuple[list[np.ndarray], list[np.ndarray]]  # sources, targets


class Corrupter:
    """Applies the noise of a recipe to windows of ids."""

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary) -> None:
        assert recipe.data.noise is not None
        self.noise: AnyNoise = recipe.data.noise
        self.length = self.noise.window(recipe.training.batches.context)
        self.pieces = PieceTable.of(vocabulary.target, self.noise.marks)
        self._corrupt = NOISES[self.noise.kind]

    def training(self, windows: Sequence[np.ndarray], seed: int, epoch: int, places: np.ndarray) -> Pairs:
        """Training windows of an epoch, some of them shortened (Devlin et al. 2019, A.2)."""
        randoms = [NoiseRandom(_TRAINING, seed, epoch, int(place)) for place in places]
        shortened = []
        for window, random in zip(windows, randoms, strict=True):
            draw, share = random.uniform(2)
            shortened.append(window[: 1 + int(share * len(window))] if draw < self.noise.short_ratio else window)
        return self._corrupted(shortened, randoms)

    def held_out(self, windows: Sequence[np.ndarray], first: int = 0) -> Pairs:
        """Validation and test windows, corrupted the same for every seed; `first` is the number of the first window."""
        return self._corrupted(windows, [NoiseRandom(_HELD_OUT, first + number) for number in range(len(windows))])

    def _corrupted(self, windows: Sequence[np.ndarray], randoms: Sequence[NoiseRandom]) -> Pairs:
        pairs = zip(windows, randoms, strict=True)
        results = [self._corrupt(window, self.noise, self.pieces, random) for window, random in pairs]
        return [pair[0] for pair in results], [pair[1] for pair in results]


@dataclass
class NoisePlan(EpochPlan):
    """Batches of corrupted windows. An example is the position of a window in the epoch."""

    def __post_init__(self) -> None:
        batches, seed = self.recipe.training.batches, self.recipe.seed
        self.corrupter, self.collate = Corrupter(self.recipe, self.vocabulary), collate_fn(self.recipe)
        weights = [source.weight for source in self.recipe.data.train]
        self.windows = FullWindows(self.store_for, self.corrupter.length, weights, seed)
        self.rows = batches.windows()
        if self.layout == "static":
            self.shape = self._static_shape()

    def _static_shape(self) -> StaticShape:
        """All windows of a batch at full length, and dummy sequences that fill the rest."""
        noise, length, rows = self.corrupter.noise, self.corrupter.length, self.rows
        context = self.recipe.training.batches.context
        read, written = (
            (length + 2, None) if isinstance(noise, MaskNoise) else (each + 1 for each in noise.sides(length))
        )
        tokens, more = rows * read, 0 if written is None else rows * written
        fillers = -(-max(tokens, more) // (context - 1)) + 1  # the most, if a batch has hardly any window
        return StaticShape(
            tokens + fillers,
            rows + fillers + 1,
            context,
            decoder_tokens=None if written is None else more + fillers,
            labels=rows * noise.most(length) if isinstance(noise, MaskNoise) else None,
        )

    def epoch(self, number: int) -> Sequence[np.ndarray]:
        places = np.arange(self.windows.count(number))
        return [places[at : at + self.rows] for at in range(0, len(places), self.rows)]

    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch:
        windows = self.windows.take(epoch, examples)
        sides = self.collate(*self.corrupter.training(windows, self.recipe.seed, epoch, examples))
        return self.to_batch(sides, examples)

    def waste(self, epoch: int = 0) -> float:
        if self.layout == "packed":
            return 0.0
        batch = self.batch(epoch, self.epoch(epoch)[0])  # all but the last have the same sizes
        sides: list[Any] = [batch.source, *([] if batch.decoder_layout is None else [batch.decoder_input])]
        return 1 - sum(int((side != PAD).sum()) for side in sides) / sum(int(side.numel()) for side in sides)

    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]:
        windows = self.windows.take(epoch, examples)
        corrupted, _ = self.corrupter.training(windows, self.recipe.seed, epoch, examples)
        decode = self.vocabulary.target.decode
        return [
            {"text": decode(window.tolist()), "read": decode(read.tolist())}
            for window, read in zip(windows, corrupted, strict=True)
        ]


def fixed_windows(stream: np.ndarray, length: int) -> list[np.ndarray]:
    """A text as consecutive windows, for evaluation; the last one may be shorter."""
    return [stream[at : at + length].astype(np.int64) for at in range(0, len(stream), length)]
