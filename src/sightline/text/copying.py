"""Ids of source words outside the vocabulary, for pointer-generator models that copy them (See et al. 2017, §2.2).

A word has other pieces after a space ("▁7474") than after a quote or a bracket ("7474"). So each piece of a source
can be copied in two forms, with and without the space before it. A form in the vocabulary has its own id. Other forms
have ids beyond the vocabulary: V + 2s is the piece whose first position in the source is s, with a space before it, V
+ 2s + 1 without. Such an id has a meaning only together with its source; the model embeds it as the piece at position
s, or as UNK if that is unknown (models/seq2seq.py).

If a word of a target is also in its source, but has pieces there that differ, the target uses the pieces of the source.
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
    """For each id of a vocabulary: the ids of its piece with and without a space before it, −1 if there is none."""

    spaced: Ids
    joined: Ids
    bare: Ids  # the number of the piece, ignoring a space before it

    @staticmethod
    def of(pieces: Sequence[str]) -> CopyForms:
        ids = {piece: number for number, piece in enumerate(pieces)}
        texts = [bare(piece) for piece in pieces]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        forms = CopyForms(
            [ids.get(SPACE + text, -1) for text in texts],
            [ids.get(text, -1) for text in texts],
            [numbers[text] for text in texts],
        )
        for number in (*range(len(SPECIALS)), *(n for n, piece in enumerate(pieces) if piece == SPACE)):
            forms.spaced[number] = forms.joined[number] = number  # special tokens and a lone space have one form
        return forms


@dataclass(frozen=True)
class ReadSource:
    """A source as ids, with unknown pieces numbered, and the text of each piece."""

    ids: Ids
    surfaces: list[PieceText]

    def first(self) -> dict[str, int]:
        """The first position of each piece, ignoring a space before it."""
        return {bare(each.text): place for place, each in reversed(list(enumerate(self.surfaces)))}

    def text_of(self, number: int, size: int) -> str:
        """The piece of an id beyond the vocabulary of this size."""
        place, joined = divmod(number - size, 2)
        return ("" if joined else SPACE) + bare(self.surfaces[place].text)

    def known(self, ids: Sequence[int], size: int) -> Ids:
        """The ids with those beyond the vocabulary replaced: by the piece at that position, or UNK."""
        read = (self.ids[(number - size) // 2] if number >= size else number for number in ids)
        return [number if number < size else UNK for number in read]


def bare(piece: str) -> str:
    """A piece without the space before it; a lone space stays."""
    return piece.removeprefix(SPACE) or piece


def read_sources(
    tokenizer: Tokenizer, texts: Sequence[str], ids: Sequence[Ids], forms: CopyForms | None = None
) -> list[ReadSource]:
    """Sources with unknown pieces numbered; `ids` may be truncated.

    With `forms`, a piece that the vocabulary has in its other form gets that id.
    """
    other: dict[str, int] = {}
    if forms is not None:
        other = {bare(piece): number for number, piece in enumerate(tokenizer.all_pieces)}
    result = []
    for source_ids, surfaces in zip(ids, tokenizer.surfaces_many(texts), strict=True):
        source = ReadSource(source_ids, surfaces[: len(source_ids)])
        if UNK in source_ids:
            first = source.first()
            numbered = [
                other.get(bare(each.text), _number(each.text, first, tokenizer.size)) if number == UNK else number
                for number, each in zip(source_ids, source.surfaces, strict=True)
            ]
            source = ReadSource(numbered, source.surfaces)
        result.append(source)
    return result


def _number(piece: str, first: dict[str, int], size: int) -> int:
    return size + 2 * first[bare(piece)] + (not piece.startswith(SPACE))


def number_copied(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    ids: Sequence[Ids],
    sources: Sequence[ReadSource],
    forms: CopyForms | None = None,
) -> list[Ids]:
    """The ids of targets, with pieces that are in the source but not in the vocabulary numbered as in the source.

    With `forms`, the space before a piece may differ from the source, and words of the source have its pieces.
    """
    result = []
    for target, surfaces, source in zip(ids, tokenizer.surfaces_many(texts), sources, strict=True):
        if forms is not None and len(target) == len(surfaces):
            result.append(_as_in_source(target, surfaces, source, forms, tokenizer.size))
            continue
        in_source = {each.text: number for each, number in zip(source.surfaces, source.ids, strict=True)}
        pieces = zip(target, surfaces, strict=False)
        result.append([in_source.get(each.text, UNK) if number == UNK else number for number, each in pieces])
    return result


def _as_in_source(ids: Ids, surfaces: Sequence[PieceText], source: ReadSource, forms: CopyForms, size: int) -> Ids:
    """The ids of a target; words that are in its source have the ids of the source."""
    first, source_words = source.first(), _words(source.surfaces)
    copyable = {form for number in source.ids if number < size for form in (forms.spaced[number], forms.joined[number])}
    result: Ids = []
    for word, places in _words(surfaces, every=True):
        if all(ids[place] in copyable for place in places):
            result += [ids[place] for place in places]
        elif (match := next((each for text, each in source_words if bare(text) == bare(word)), None)) is not None:
            result += _joined_as(word.startswith(SPACE), match, source, first, forms, size)
        else:
            for number, piece in ((ids[place], surfaces[place].text) for place in places):
                copied = number == UNK and bare(piece) in first
                result.append(_number(piece, first, size) if copied else number)
    return result


def _joined_as(
    spaced: bool, places: Sequence[int], source: ReadSource, first: dict[str, int], forms: CopyForms, size: int
) -> Ids:
    """The ids of a source word, with or without a space before it."""
    head, *rest = places
    if source.surfaces[head].text == SPACE and not spaced and rest:
        head, *rest = rest
    piece, number = bare(source.surfaces[head].text), source.ids[head]
    known = -1 if number >= size else (forms.spaced if spaced else forms.joined)[number]
    copied = size + 2 * first[piece] + (not spaced)
    return [copied if known < 0 else known, *(source.ids[place] for place in rest)]


def _words(surfaces: Sequence[PieceText], *, every: bool = False) -> list[tuple[str, list[int]]]:
    """The words of a text and the positions of their pieces; only words with letters or digits, or every one."""
    words = []
    for _, pieces in groupby(enumerate(surfaces), key=lambda each: each[1].word):
        places = list(map(itemgetter(0), pieces))
        word = "".join(surfaces[place].text for place in places)
        if every or any(character.isalnum() for character in word):
            words.append((word, places))
    return words


def with_unknown(
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    forms: CopyForms | None = None,
) -> tuple[list[Ids], list[Ids]]:
    """The ids of pairs of texts for a model that copies."""
    read = read_sources(tokenizer, [source for source, _ in pairs], sources, forms)
    written = number_copied(tokenizer, [target for _, target in pairs], targets, read, forms)
    return [source.ids for source in read], written
