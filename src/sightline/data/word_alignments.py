"""Word alignments that guide a training: read in step with its examples and mapped from words to pieces.

A file has one line for each example of data.train, in reading order and before cleaning, in the Pharaoh format of word
aligners: `0-0 1-2` links source word 0 to target word 0, and so on. Words are separated by spaces. An empty line has no
links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.sources import Example
from sightline.data.text_files import DataError, read_lines
from sightline.terminal import plural
from sightline.text.tokenizer import SPACE, Tokenizer
from sightline.text.word_pieces import align_words

Links = list[tuple[int, int]]  # (source word, target word)
_LINK = re.compile(r"(\d+)-(\d+)")


def parse_links(line: str, place: str) -> Links:
    """The links of a line; `place` names it in errors."""
    links = []
    for word in line.split():
        if (match := _LINK.fullmatch(word)) is None:
            raise DataError(f"{place}: {word!r} is not a link; write source-target from 0, as in 0-0 1-2")
        links.append((int(match[1]), int(match[2])))
    return links


def in_step(
    examples: Iterable[tuple[int, Example]], path: Path, *, limited: bool
) -> Iterator[tuple[int, Example, Links]]:
    """Each example with its links. The file needs a line for each example; more only if the examples are `limited`."""
    lines = read_lines(path)
    number = 0
    for number, (origin, example) in enumerate(examples, 1):
        line = next(lines, None)
        if line is None:
            raise DataError(
                f"{path} has {plural(number - 1, 'line')}, and there are more training examples; it needs a line for "
                f"each, in their order (sightline align RUN --training writes such a file)"
            )
        links = parse_links(line, f"{path}, line {number}")
        words = len(example.source.split()), len(example.target.split())
        for i, j in links:
            if i >= words[0] or j >= words[1]:
                raise DataError(
                    f"{path}, line {number}: {i}-{j} points past the end of sentences of {words[0]} and {words[1]} "
                    f"words; links are source-target from 0, a line for each training example in order"
                )
        yield origin, example, links
    left = 0 if limited else sum(1 for line in lines if line.strip())
    if left:
        raise DataError(f"{path} has {plural(left, 'line')} more than there are training examples ({number:,})")


def piece_links(links: Links, source: NDArray[np.bool_], target: NDArray[np.bool_]) -> list[int]:
    """Links between all pieces of linked words, flat: s, t, s, t, …, from members (S, words) and (T, words)."""
    pairs: set[tuple[int, int]] = set()
    for i, j in links:
        pairs.update(product(np.flatnonzero(source[:, i]).tolist(), np.flatnonzero(target[:, j]).tolist()))
    return list(chain.from_iterable(sorted(pairs)))


def members(tokenizer: Tokenizer, text: str, ids: Sequence[int], *, dropout: bool) -> NDArray[np.bool_] | None:
    """(pieces, words): which pieces belong to which words; `ids` may be truncated.

    Without BPE-dropout the characters of each piece are known. With it, a word begins where a piece begins with a
    space; None if that gives other words (a character that is normalized to a space).
    """
    if not dropout:
        return align_words(tokenizer, text).members[: len(ids)]
    pieces = tokenizer.pieces(ids)
    words = np.cumsum([piece.startswith(SPACE) for piece in pieces], dtype=np.int64) - 1  # (pieces,)
    count = len(text.split())
    if len(words) and (words[0] != 0 or words[-1] >= count):
        return None
    letters = np.asarray([piece != SPACE for piece in pieces], np.bool_)  # a space on its own belongs to no word
    result: NDArray[np.bool_] = (words[:, None] == np.arange(count)) & letters[:, None]
    return result


def chunk_links(
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Sequence[Example],
    ids: tuple[list[list[int]], list[list[int]]],
    links: Sequence[Links],
    *,
    dropout: bool,
) -> list[list[int]]:
    """The `piece_links` of each example."""
    result = []
    for text, source, target, words in zip(texts, *ids, links, strict=True):
        one, two = (
            members(tokenizer, side, pieces, dropout=dropout) if words else None
            for tokenizer, side, pieces in zip(tokenizers, text, (source, target), strict=True)
        )
        result.append([] if one is None or two is None else piece_links(words, one, two))
    return result
