"""Noise for pretraining: masked words (BERT), denoising (BART) and span corruption (T5).

`mask_tokens`, `corrupt_text` and `corrupt_spans` are pure functions of the tokens, the noise settings and a
`NoiseRandom`, whose numbers are a pure function of its key. The key of a training window is (seed, epoch, place in the
epoch): each epoch corrupts a text anew, nothing is stored, and a resumed training meets the corruption that an
uninterrupted one would have met.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
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
from sightline.text.sentences import sentence_ends, unspaced
from sightline.text.tokenizer import END, PAD, SPACE, SPECIALS, Tokenizer
from sightline.text.vocabulary import Vocabulary

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


class NoiseRandom:
    """Random numbers by a key of whole numbers (raw output, which NumPy promises never to change)."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def raw(self, count: int) -> NDArray[np.uint64]:
        """Evenly spread below 2^64."""
        return self._bits.random_raw(count)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Evenly spread in [0, 1)."""
        return (self.raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def some(self, count: int, among: int) -> Ids:
        """So many different numbers below `among`, in rising order; every set is as likely."""
        if count == 0:
            return np.empty(0, np.int64)
        return np.sort(np.argpartition(self.raw(among), count - 1)[:count])


@dataclass(frozen=True)
class PieceTable:
    """What noise must know of a vocabulary."""

    begins: Flags  # (V,) whether a word begins with this piece: at a space, a mark of punctuation, or without either
    texts: tuple[str, ...]  # (V,) what each stands for where sentences are looked for ...
    sizes: Ids  # (V,) ... and how many characters that is
    marks: Ids  # ids of the noise's marks, in order
    first: int  # the first id that is text, and neither a special nor a mark

    @staticmethod
    def of(tokenizer: Tokenizer, marks: tuple[str, ...]) -> PieceTable:
        """Of a tokenizer that has these marks."""
        pieces = tokenizer.pieces(range(tokenizer.size))
        texts = tuple("\n" if number == END else _with_spaces(piece) for number, piece in enumerate(pieces))
        return PieceTable(
            begins=np.array([_begins(piece) for piece in pieces]),
            texts=texts,
            sizes=np.array([len(each) for each in texts], np.int64),
            marks=np.array([tokenizer.mark(mark) for mark in marks], np.int64),
            first=len(SPECIALS) + len(tokenizer.marks),
        )


def _with_spaces(piece: str) -> str:
    """A piece with plain spaces; lines of a text may be broken anywhere, so their ends are no more than that."""
    return piece.replace(SPACE, " ").replace("\n", " ")


def _begins(piece: str) -> bool:
    if piece[:1] in (SPACE, ""):
        return True
    return piece[0].isspace() or unicodedata.category(piece[0])[0] in "PS" or unspaced(piece[0])


# --- masked words --------------------------------------------------------------------------------------------------


def mask_tokens(text: Ids, noise: MaskNoise, pieces: PieceTable, chance: NoiseRandom) -> tuple[Ids, Ids]:
    """What is read, and what is wanted where tokens were chosen (PAD elsewhere); both as long as the text.

    Words are drawn until the share of tokens is reached. Of the chosen tokens 80% become <mask>, 10% any token, 10%
    stay (Devlin et al. 2019, §3.1 and their `whole word masking`). No special is ever chosen.
    """
    starts = _words(text, pieces) if noise.whole_words else np.arange(len(text))
    lengths = np.diff(starts, append=len(text))
    turns = np.argsort(chance.raw(len(starts)))
    most = noise.most(len(text))
    turns = turns[(text[starts[turns]] >= len(SPECIALS)) & (lengths[turns] <= most)]
    ends = np.cumsum(lengths[turns])
    taken = (ends - 0.5 * lengths[turns] <= noise.rate * len(text)) & (ends <= most)
    taken[:1] = True
    flags = np.zeros(len(starts), np.bool_)
    flags[turns[taken]] = True
    chosen = np.repeat(flags, lengths)
    if not len(turns):  # nothing but specials, or one endless word
        chosen[:1] = True
    return _hidden(text, chosen, noise, pieces, chance), np.where(chosen, text, PAD)


def _words(text: Ids, pieces: PieceTable) -> Ids:
    """Where words begin; a special is one by itself, and the rest of a word behind it too."""
    begins = pieces.begins[text]
    special = text < len(SPECIALS)
    begins[1:] |= special[:-1]
    begins[:1] = True
    return np.flatnonzero(begins | special)


def _hidden(text: Ids, chosen: Flags, noise: MaskNoise, pieces: PieceTable, chance: NoiseRandom) -> Ids:
    places = np.flatnonzero(chosen)
    fate = chance.uniform(len(places))
    found = text.copy()
    found[places[fate < noise.masked]] = pieces.marks[0]
    other = places[(fate >= noise.masked) & (fate < noise.masked + noise.random)]
    size = len(pieces.begins) - pieces.first
    found[other] = pieces.first + (chance.raw(len(other)) % np.uint64(max(1, size))).astype(np.int64)
    return found


# --- spans ---------------------------------------------------------------------------------------------------------


def span_places(units: int, lengths: Ids, chance: NoiseRandom) -> Ids:
    """Where spans of these lengths begin among so many units, in order, with at least one unit between any two.

    Every placing is as likely: with k spans and `rest` units outside them, what stands before each is any set of k
    numbers in 0 … rest. There must be k − 1 units outside at least.
    """
    rest = units - int(lengths.sum())
    return chance.some(len(lengths), rest + 1) + np.cumsum(lengths) - lengths


def corrupt_spans(text: Ids, noise: SpanNoise, pieces: PieceTable, chance: NoiseRandom) -> tuple[Ids, Ids]:
    """Source and target of span corruption (Raffel et al. 2020, §3.1.4), without the marks at their ends.

    x_1 x_2 x_3 x_4 x_5 → source x_1 <gap-0> x_4 <gap-1>, target <gap-0> x_2 x_3 <gap-1> x_5. How many tokens and spans
    there are follows from the length; how long each span is and where it stands is drawn evenly. End marks between
    documents are left out: to a decoder they are the end.
    """
    text = text[text != END]
    if not len(text):
        return text, text
    covered, count = noise.counts(len(text))
    cuts = chance.some(count - 1, covered - 1) + 1
    lengths = np.diff(cuts, prepend=0, append=covered)
    starts = span_places(len(text), lengths, chance)
    inside = _inside(len(text), starts, starts + lengths)
    before = np.cumsum(lengths) - lengths  # tokens inside earlier spans
    marks = pieces.marks[:count]
    return _with_marks(text[~inside], starts - before, marks), _with_marks(text[inside], before, marks)


def corrupt_text(text: Ids, noise: InfillingNoise, pieces: PieceTable, chance: NoiseRandom) -> tuple[Ids, Ids]:
    """Source and target of denoising (Lewis et al. 2020, §2.2), without the marks at their ends.

    Sentences are put into random order, then spans become one <mask> each (of length 0: a <mask> between two words),
    then tokens outside them go missing. Wanted is the text as it was, without the end marks between documents.
    """
    real = text != END
    wanted = source = text[real]
    if not len(wanted):
        return wanted, wanted
    if noise.permute_sentences:
        sentence = _sentences(text, pieces)[real]
        rank = np.argsort(chance.raw(int(sentence[-1]) + 1))
        source = wanted[np.argsort(rank[sentence], kind="stable")]
    return _infilled(source, noise, pieces, chance), wanted


def _sentences(text: Ids, pieces: PieceTable) -> Ids:
    """How many sentences end before each token."""
    written = "".join(map(pieces.texts.__getitem__, text.tolist()))
    sizes = pieces.sizes[text]
    return np.searchsorted(np.array(sentence_ends(written), np.int64), np.cumsum(sizes) - sizes, side="right")


def _infilled(text: Ids, noise: InfillingNoise, pieces: PieceTable, chance: NoiseRandom) -> Ids:
    units = _words(text, pieces) if noise.whole_words else np.arange(len(text))
    bounds = np.append(units, len(text))
    lengths = _poisson_lengths(len(units), noise, chance)
    places = span_places(len(units), lengths, chance)
    starts, stops = bounds[places], bounds[places + lengths]
    inside = _inside(len(text), starts, stops)
    sizes = stops - starts
    kept = text[~inside]
    places = starts - (np.cumsum(sizes) - sizes)  # tokens outside the spans before each
    if noise.deletion_ratio:
        left = chance.uniform(len(kept)) >= noise.deletion_ratio
        places = np.append(0, np.cumsum(left))[places]
        kept = kept[left]
    return _with_marks(kept, places, np.broadcast_to(pieces.marks[0], len(places)))


def _poisson_lengths(units: int, noise: InfillingNoise, chance: NoiseRandom) -> Ids:
    """Lengths that cover the share of the units, the last cut off there; no more spans than units covered."""
    budget = min(round(noise.rate * units), units - 1)
    if budget < 1:
        return np.empty(0, np.int64)
    lengths = np.searchsorted(_poisson(noise.mean_span_length), chance.uniform(budget), side="right")
    ends = np.minimum(np.cumsum(lengths), budget)
    lengths = np.diff(ends, prepend=0)
    needed = int(np.searchsorted(ends, budget)) + 1
    most = units - int(ends[min(needed, budget) - 1]) + 1  # with a unit between any two
    lengths = lengths[: min(needed, budget, most)]
    empty = np.flatnonzero(lengths == 0)
    return np.delete(lengths, empty[: max(0, len(lengths) - int(lengths.sum()))])


@cache
def _poisson(mean: float) -> NDArray[np.float64]:
    """P(length ≤ k) for k = 0, 1, …, up to where nothing is left."""
    ks = np.arange(int(mean + 12 * math.sqrt(mean) + 12))
    logs = ks * math.log(mean) - mean - np.cumsum(np.log(np.maximum(ks, 1)))
    return np.cumsum(np.exp(logs))[:-1]


def _inside(length: int, starts: Ids, stops: Ids) -> Flags:
    """Which tokens lie in spans that do not touch."""
    change = np.zeros(length + 1, np.int8)
    change[starts] += 1
    change[stops] -= 1
    return np.cumsum(change[:-1], dtype=np.int8) > 0


def _with_marks(tokens: Ids, places: Ids, marks: Ids) -> Ids:
    """The tokens with a mark before each of these places (in rising order)."""
    found = np.empty(len(tokens) + len(places), np.int64)
    rest = np.ones(len(found), np.bool_)
    spots = places + np.arange(len(places))
    rest[spots] = False
    found[spots] = marks
    found[rest] = tokens
    return found


_TRAINING, _HELD_OUT = 31, 37  # streams of random numbers: one that follows the seed and the epoch, one that is fixed
_SPOIL: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    "mask": mask_tokens,
    "text-infilling": corrupt_text,
    "span-corruption": corrupt_spans,
}

Pairs = tuple[list[np.ndarray], list[np.ndarray]]  # what is read, and what is wanted


class Corrupter:
    """A recipe's noise over windows of ids."""

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary) -> None:
        assert recipe.data.noise is not None
        self.noise: AnyNoise = recipe.data.noise
        self.length = self.noise.window(recipe.training.batches.context)
        self.pieces = PieceTable.of(vocabulary.target, self.noise.marks)
        self._spoil = _SPOIL[self.noise.kind]

    def training(self, windows: Sequence[np.ndarray], seed: int, epoch: int, places: np.ndarray) -> Pairs:
        """Windows as they are learned from in an epoch, a few of them cut short (Devlin et al. 2019, A.2)."""
        chances = [NoiseRandom(_TRAINING, seed, epoch, int(place)) for place in places]
        cut = [self._cut(window, chance) for window, chance in zip(windows, chances, strict=True)]
        return self._spoilt(cut, chances)

    def held_out(self, windows: Sequence[np.ndarray], first: int = 0) -> Pairs:
        """Windows as every model is measured by: the same whatever the seed; `first` is the number of the first."""
        return self._spoilt(windows, [NoiseRandom(_HELD_OUT, first + number) for number in range(len(windows))])

    def _cut(self, window: np.ndarray, chance: NoiseRandom) -> np.ndarray:
        whether, where = chance.uniform(2)
        return window[: 1 + int(where * len(window))] if whether < self.noise.short_ratio else window

    def _spoilt(self, windows: Sequence[np.ndarray], chances: Sequence[NoiseRandom]) -> Pairs:
        pairs = zip(windows, chances, strict=True)
        found = [self._spoil(window, self.noise, self.pieces, chance) for window, chance in pairs]
        return [pair[0] for pair in found], [pair[1] for pair in found]


@dataclass
class NoisePlan(EpochPlan):
    """The windows of each epoch, spoilt; an example is known by its place in the epoch."""

    def __post_init__(self) -> None:
        batches, seed = self.recipe.training.batches, self.recipe.seed
        self.spoiler, self.sides = Corrupter(self.recipe, self.vocabulary), collate_fn(self.recipe)
        weights = [source.weight for source in self.recipe.data.train]
        self.windows = FullWindows(self.store_for, self.spoiler.length, weights, seed)
        self.rows = batches.windows()
        if self.layout == "static":
            self.shape = self._static()

    def _static(self) -> StaticShape:
        """Room for as many full windows as a batch has, and for the dummy sequences that fill up the rest."""
        noise, length, rows = self.spoiler.noise, self.spoiler.length, self.rows
        context = self.recipe.training.batches.context
        read, given = (length + 2, None) if isinstance(noise, MaskNoise) else (each + 1 for each in noise.sides(length))
        tokens, more = rows * read, 0 if given is None else rows * given
        fillers = -(-max(tokens, more) // (context - 1)) + 1  # at most, when a batch has hardly any window
        return StaticShape(
            tokens + fillers,
            rows + fillers + 1,
            context,
            decoder_tokens=None if given is None else more + fillers,
            labels=rows * noise.most(length) if isinstance(noise, MaskNoise) else None,
        )

    def epoch(self, number: int) -> Sequence[np.ndarray]:
        places = np.arange(self.windows.count(number))
        return [places[at : at + self.rows] for at in range(0, len(places), self.rows)]

    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch:
        windows = self.windows.take(epoch, examples)
        sides = self.sides(*self.spoiler.training(windows, self.recipe.seed, epoch, examples))
        return self.laid_out(sides, examples)

    def waste(self, epoch: int = 0) -> float:
        """The share of places that hold no token, by the first batch: all but the last are alike."""
        if self.layout == "packed":
            return 0.0
        batch = self.batch(epoch, self.epoch(epoch)[0])
        sides: list[Any] = [batch.source, *([] if batch.decoder_layout is None else [batch.decoder_input])]
        return 1 - sum(int((side != PAD).sum()) for side in sides) / sum(int(side.numel()) for side in sides)

    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]:
        """The windows of a batch, to be read by a person: as they were and as they are read."""
        windows = self.windows.take(epoch, examples)
        spoilt, _ = self.spoiler.training(windows, self.recipe.seed, epoch, examples)
        decode = self.vocabulary.target.decode
        return [
            {"text": decode(window.tolist()), "read": decode(read.tolist())}
            for window, read in zip(windows, spoilt, strict=True)
        ]


def fixed_windows(stream: np.ndarray, length: int) -> list[np.ndarray]:
    """A text that is measured, window by window from its beginning; what is left over is the last."""
    return [stream[at : at + length].astype(np.int64) for at in range(0, len(stream), length)]
