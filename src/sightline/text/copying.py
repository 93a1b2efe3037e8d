"""Ids for words that no vocabulary holds, so that they can be copied from a source (See et al. 2017, §2.2).

In each pair of texts the unknown words of the source are numbered in the order in which they come: the first new one
has the id V, the next V + 1, and so on, V the size of the vocabulary. The same word in the target has the same id; a
word that is in neither is unknown as ever. Such ids mean something beside their own source only; to a model they all
look like UNK (models/copying.py). With words cut into pieces there is nothing to number: every piece is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from sightline.text.tokenizer import UNK, Tokenizer

Ids = list[int]


def number_unknown(tokenizer: Tokenizer, texts: Sequence[str], ids: Sequence[Ids]) -> tuple[list[Ids], list[list[str]]]:
    """Ids of texts (maybe only their first ones) → the same with unknown words numbered, and those words in order."""
    found, words = [], []
    for text, own in zip(texts, ids, strict=True):
        known: dict[str, int] = {}
        if UNK in own:
            pieces = tokenizer.words(text)
            own = [
                known.setdefault(pieces[place], tokenizer.size + len(known)) if number == UNK else number
                for place, number in enumerate(own)
            ]
        found.append(own)
        words.append(list(known))
    return found, words


def number_copied(
    tokenizer: Tokenizer, texts: Sequence[str], ids: Sequence[Ids], words: Sequence[list[str]]
) -> list[Ids]:
    """Ids of targets, unknown words that are among those of their source numbered as there."""
    found = []
    for text, own, known in zip(texts, ids, words, strict=True):
        if known and UNK in own:
            pieces, numbers = tokenizer.words(text), {word: tokenizer.size + place for place, word in enumerate(known)}
            own = [numbers.get(pieces[place], UNK) if number == UNK else number for place, number in enumerate(own)]
        found.append(own)
    return found


def with_unknown(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], sources: Sequence[Ids], targets: Sequence[Ids]
) -> tuple[list[Ids], list[Ids]]:
    """The ids of both sides of pairs of texts, unknown words numbered."""
    numbered, words = number_unknown(tokenizer, [source for source, _ in pairs], sources)
    return numbered, number_copied(tokenizer, [target for _, target in pairs], targets, words)


def without_unknown(ids: Sequence[int], size: int) -> Ids:
    """The same ids with UNK in the place of those past the end of the vocabulary."""
    return [number if number < size else UNK for number in ids]
