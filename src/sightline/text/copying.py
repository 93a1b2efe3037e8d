"""Ids for what stands in a source, so that it can be copied from there as it is written (See et al. 2017, §2.2).

The same word is cut into other pieces at the beginning of a word ("▁7474") than behind a quote or a bracket ("7474").
So each piece of a source can be copied in two forms, with the space before it and without. A form that the vocabulary
has is written by its own id. Other forms have ids past the end of the vocabulary: V + 2s is the piece that comes first
at position s of the source with a space before it, V + 2s + 1 without one. Such an id means something beside its own
source only; to a model it looks like the piece at position s, or like UNK where that is unknown (models/seq2seq.py).

Where a word of a target stands in its source too, but is cut into pieces that the source does not have, the target is
cut as the source is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from sightline.text.tokenizer import SPACE, SPECIALS, UNK, PieceText, Tokenizer

Ids = list[int]


@dataclass(frozen=True)
class CopyForms:
    """For each id of a vocabulary: the ids of its piece with and without a space before it, −1 where there is none."""

    spaced: Ids
    joined: Ids
    bare: Ids  # a number for each piece, whether there is a space before it or not

    @staticmethod
    def of(pieces: Sequence[str]) -> CopyForms:
        ids = {piece: number for number, piece in enumerate(pieces)}
        bare = [piece.removeprefix(SPACE) or piece for piece in pieces]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(bare))}
        forms = CopyForms(
            [ids.get(SPACE + text, -1) for text in bare],
            [ids.get(text, -1) for text in bare],
            [numbers[text] for text in bare],
        )
        for number in (*range(len(SPECIALS)), *(n for n, piece in enumerate(pieces) if piece == SPACE)):
            forms.spaced[number] = forms.joined[number] = number  # marks and a lone space have one form
        return forms


@dataclass(frozen=True)
class ReadSource:
    """A source as ids, unknown pieces numbered, and what each of them is in the text."""

    ids: Ids
    surfaces: list[PieceText]

    def first(self) -> dict[str, int]:
        """Where each piece comes first, whatever precedes it."""
        return {bare(each.text): place for place, each in reversed(list(enumerate(self.surfaces)))}

    def text_of(self, number: int, size: int) -> str:
        """The piece that an id past the end of the vocabulary (of this size) stands for."""
        place, joined = divmod(number - size, 2)
        return ("" if joined else SPACE) + bare(self.surfaces[place].text)

    def known(self, ids: Sequence[int], size: int) -> Ids:
        """The same ids with those of the vocabulary in the place of others: the piece at that position, or UNK."""
        read = (self.ids[(number - size) // 2] if number >= size else number for number in ids)
        return [number if number < size else UNK for number in read]


def bare(piece: str) -> str:
    """A piece without the space before it; a space alone is itself."""
    return piece.removeprefix(SPACE) or piece


def read_sources(
    tokenizer: Tokenizer, texts: Sequence[str], ids: Sequence[Ids], forms: CopyForms | None = None
) -> list[ReadSource]:
    """Ids of texts (maybe only their first ones), unknown pieces numbered.

    With `forms`, a piece that the vocabulary has in its other form is read as that.
    """
    other: dict[str, int] = {}
    if forms is not None:
        other = {bare(piece): number for number, piece in enumerate(tokenizer.all_pieces)}
    found = []
    for own, surfaces in zip(ids, tokenizer.surfaces_many(texts), strict=True):
        source = ReadSource(own, surfaces[: len(own)])
        if UNK in own:
            first = source.first()
            numbered = [
                other.get(bare(each.text), _number(each.text, first, tokenizer.size)) if number == UNK else number
                for number, each in zip(own, source.surfaces, strict=True)
            ]
            source = ReadSource(numbered, source.surfaces)
        found.append(source)
    return found


def _number(piece: str, first: dict[str, int], size: int) -> int:
    return size + 2 * first[bare(piece)] + (not piece.startswith(SPACE))


def number_copied(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    ids: Sequence[Ids],
    sources: Sequence[ReadSource],
    forms: CopyForms | None = None,
) -> list[Ids]:
    """Ids of targets, with what their sources have and the vocabulary lacks numbered as there.

    With `forms` it may be joined otherwise than in the source, and words that the source has are cut as they are there.
    """
    found = []
    for own, surfaces, source in zip(ids, tokenizer.surfaces_many(texts), sources, strict=True):
        if forms is not None and len(own) == len(surfaces):
            found.append(_as_in_source(own, surfaces, source, forms, tokenizer.size))
            continue
        there = {each.text: number for each, number in zip(source.surfaces, source.ids, strict=True)}
        known = zip(own, surfaces, strict=False)
        found.append([there.get(each.text, UNK) if number == UNK else number for number, each in known])
    return found


def _as_in_source(own: Ids, surfaces: Sequence[PieceText], source: ReadSource, forms: CopyForms, size: int) -> Ids:
    """The ids of a target, word by word as its source has them, where it has them."""
    first, there = source.first(), _words(source.surfaces)
    can_copy = {form for number in source.ids if number < size for form in (forms.spaced[number], forms.joined[number])}
    result: Ids = []
    for word, places in _words(surfaces, every=True):
        if all(own[place] in can_copy for place in places):
            result += [own[place] for place in places]
        elif (match := next((each for text, each in there if bare(text) == bare(word)), None)) is not None:
            result += _joined_as(word.startswith(SPACE), match, source, first, forms, size)
        else:
            result += [_copied(own[place], surfaces[place].text, first, size) for place in places]
    return result


def _copied(number: int, piece: str, first: dict[str, int], size: int) -> int:
    return _number(piece, first, size) if number == UNK and bare(piece) in first else number


def _joined_as(
    spaced: bool, places: Sequence[int], source: ReadSource, first: dict[str, int], forms: CopyForms, size: int
) -> Ids:
    """The ids of a word of a source, with or without a space before it."""
    head, *rest = places
    if source.surfaces[head].text == SPACE and not spaced and rest:
        head, *rest = rest
    piece, number = bare(source.surfaces[head].text), source.ids[head]
    known = -1 if number >= size else (forms.spaced if spaced else forms.joined)[number]
    copied = size + 2 * first[piece] + (not spaced)
    return [copied if known < 0 else known, *(source.ids[place] for place in rest)]


def _words(surfaces: Sequence[PieceText], *, every: bool = False) -> list[tuple[str, list[int]]]:
    """The words of a text, each with the places of its pieces; those that hold letters or digits, or every one."""
    found = []
    for _, pieces in groupby(enumerate(surfaces), key=lambda each: each[1].word):
        places = list(map(itemgetter(0), pieces))
        word = "".join(surfaces[place].text for place in places)
        if every or any(character.isalnum() for character in word):
            found.append((word, places))
    return found


def with_unknown(
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    forms: CopyForms | None = None,
) -> tuple[list[Ids], list[Ids]]:
    """The ids of both sides of pairs of texts, as a model that copies has them."""
    read = read_sources(tokenizer, [source for source, _ in pairs], sources, forms)
    written = number_copied(tokenizer, [target for _, target in pairs], targets, read, forms)
    return [source.ids for source in read], written
