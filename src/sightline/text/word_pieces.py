"""Which pieces make which words.

Which characters a piece covers is known, so words may be any cut of the text: what stands between spaces, or the tokens
of somebody else's file (`Don't` as `do n't`), whatever their case. A piece that reaches into two words counts for both.

Where sums over pieces must stay sums over words, each piece belongs to one alone: `word_groups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sightline.text.tokenizer import SPACE, SPECIALS, UNK, Tokenizer


@dataclass(frozen=True)
class Cut:
    """A text as pieces and as words, and which pieces make which words."""

    ids: list[int]
    words: list[str]
    members: NDArray[np.bool_]  # (pieces, words)


def cut_text(tokenizer: Tokenizer, text: str, words: Sequence[str] | None = None, number: int = 1) -> Cut:
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


def word_groups(pieces: Sequence[str]) -> list[list[int]]:
    """The places of the pieces of each word, each in one word: one begins at a space, at a mark, and behind a mark.

    Marks are punctuation, and what the tokenizer names in angle brackets: <s>, <mask>. What is unknown ("<unk 犬>" says
    what it stands for) is a mark of its own, with the space before it.
    """
    groups: list[list[int]] = []
    alone = True
    for place, piece in enumerate(pieces):
        unknown = piece.startswith(SPECIALS[UNK][:-1])
        is_mark = not any(character.isalnum() for character in piece) or (piece[0] == "<" and piece[-1] == ">")
        spaced = unknown and place > 0 and pieces[place - 1] == SPACE
        if not spaced and (alone or unknown or is_mark or piece.startswith(SPACE)):
            groups.append([place])
        else:
            groups[-1].append(place)
        alone = unknown or (is_mark and piece != SPACE)
    return groups


def _members(spans: Sequence[tuple[int, int]], words: Sequence[str]) -> NDArray[np.bool_]:
    """(pieces, words), True where a piece [start, stop) of the letters has one of the word's."""
    owners = [number for number, word in enumerate(words) for _ in "".join(word.split())]
    members = np.zeros((len(spans), len(words)), dtype=np.bool_)
    for piece, (start, stop) in enumerate(spans):
        members[piece, owners[start:stop]] = True
    return members
