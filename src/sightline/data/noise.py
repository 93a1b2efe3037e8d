"""Text spoilt, for a model to learn to mend it: masked words, denoising, span corruption.

Everything is a pure function of the tokens, the noise and a `Chance`, whose draws are a pure function of its key. A
training's key is (seed, epoch, place in the epoch): each epoch spoils a text anew, and a resumed training spoils it as
one that was never interrupted would have.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sightline.recipe.data import InfillingNoise, MaskNoise, SpanNoise
from sightline.text.scripts import unspaced
from sightline.text.sentences import sentence_ends
from sightline.text.tokenizer import END, PAD, SPACE, SPECIALS, Tokenizer

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Chance:
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
class Pieces:
    """What noise must know of a vocabulary."""

    begins: Flags  # (V,) whether a word begins with this piece: at a space, a mark of punctuation, or without either
    texts: tuple[str, ...]  # (V,) what each stands for where sentences are looked for ...
    sizes: Ids  # (V,) ... and how many characters that is
    marks: Ids  # ids of the noise's marks, in order
    first: int  # the first id that is text, and neither a special nor a mark

    @staticmethod
    def of(tokenizer: Tokenizer, marks: tuple[str, ...]) -> Pieces:
        """Of a tokenizer that has these marks."""
        pieces = tokenizer.pieces(range(tokenizer.size))
        texts = tuple("\n" if number == END else _spaced(piece) for number, piece in enumerate(pieces))
        return Pieces(
            begins=np.array([_begins(piece) for piece in pieces]),
            texts=texts,
            sizes=np.array([len(each) for each in texts], np.int64),
            marks=np.array([tokenizer.mark(mark) for mark in marks], np.int64),
            first=len(SPECIALS) + len(tokenizer.marks),
        )


def _spaced(piece: str) -> str:
    """A piece with plain spaces; lines of a text may be broken anywhere, so their ends are no more than that."""
    return piece.replace(SPACE, " ").replace("\n", " ")


def _begins(piece: str) -> bool:
    if piece[:1] in (SPACE, ""):
        return True
    return piece[0].isspace() or unicodedata.category(piece[0])[0] in "PS" or unspaced(piece[0])


# --- masked words --------------------------------------------------------------------------------------------------


def mask_words(text: Ids, noise: MaskNoise, pieces: Pieces, chance: Chance) -> tuple[Ids, Ids]:
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


def _words(text: Ids, pieces: Pieces) -> Ids:
    """Where words begin; a special is one by itself, and the rest of a word behind it too."""
    begins = pieces.begins[text]
    special = text < len(SPECIALS)
    begins[1:] |= special[:-1]
    begins[:1] = True
    return np.flatnonzero(begins | special)


def _hidden(text: Ids, chosen: Flags, noise: MaskNoise, pieces: Pieces, chance: Chance) -> Ids:
    places = np.flatnonzero(chosen)
    fate = chance.uniform(len(places))
    found = text.copy()
    found[places[fate < noise.masked]] = pieces.marks[0]
    other = places[(fate >= noise.masked) & (fate < noise.masked + noise.random)]
    size = len(pieces.begins) - pieces.first
    found[other] = pieces.first + (chance.raw(len(other)) % np.uint64(max(1, size))).astype(np.int64)
    return found


# --- spans ---------------------------------------------------------------------------------------------------------


def span_places(units: int, lengths: Ids, chance: Chance) -> Ids:
    """Where spans of these lengths begin among so many units, in order, with at least one unit between any two.

    Every placing is as likely: with k spans and `rest` units outside them, what stands before each is any set of k
    numbers in 0 … rest. There must be k − 1 units outside at least.
    """
    rest = units - int(lengths.sum())
    return chance.some(len(lengths), rest + 1) + np.cumsum(lengths) - lengths


def corrupt_spans(text: Ids, noise: SpanNoise, pieces: Pieces, chance: Chance) -> tuple[Ids, Ids]:
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


def denoise(text: Ids, noise: InfillingNoise, pieces: Pieces, chance: Chance) -> tuple[Ids, Ids]:
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


def _sentences(text: Ids, pieces: Pieces) -> Ids:
    """How many sentences end before each token."""
    written = "".join(map(pieces.texts.__getitem__, text.tolist()))
    sizes = pieces.sizes[text]
    return np.searchsorted(np.array(sentence_ends(written), np.int64), np.cumsum(sizes) - sizes, side="right")


def _infilled(text: Ids, noise: InfillingNoise, pieces: Pieces, chance: Chance) -> Ids:
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


def _poisson_lengths(units: int, noise: InfillingNoise, chance: Chance) -> Ids:
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
