"""Map pieces to words, and bring tokenized text closer to natural text.

The characters of each piece are known, so words may be any segmentation of the text: at spaces, or the tokens of
another file (`Don't` as `do n't`), whatever their case. A piece that reaches into two words counts for both. Where sums
over pieces must stay sums over words, each piece belongs to one word: `word_groups`.

Gold files of tagging, parsing and alignment come tokenized and lowercased (`mr president , commissioner`), which models
segment differently from natural text. `detokenize` and `restore_case` change only spaces and case, never a letter, so
each token is found again by counting letters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sightline.text.tokenizer import SPACE, SPECIALS, UNK, Tokenizer


@dataclass(frozen=True)
class SegmentedText:
    """A text as pieces and as words, and which pieces belong to which words."""

    ids: list[int]
    words: list[str]
    members: NDArray[np.bool_]  # (pieces, words)


def align_words(tokenizer: Tokenizer, text: str, words: Sequence[str] | None = None, number: int = 1) -> SegmentedText:
    """The pieces and words of a text; `number` is its line number in errors."""
    words = text.split() if words is None else list(words)
    letters = "".join(text.split())
    spelled = "".join("".join(word.split()) for word in words)
    if letters.lower() != spelled.lower():
        raise ValueError(f"line {number}: the words {' '.join(words)!r} do not spell the text {text!r}")
    before = np.cumsum([0, *(not character.isspace() for character in text)])  # letters before each offset
    spans = [(int(before[start]), int(before[stop])) for start, stop in tokenizer.spans(text)]
    return SegmentedText(tokenizer.encode(text), list(words), _members(spans, words))


def align_pieces(ids: list[int], pieces: Sequence[str]) -> SegmentedText:
    """The words that pieces with "▁" for spaces spell."""
    words = "".join(pieces).replace(SPACE, " ").split()
    lengths = [len("".join(piece.replace(SPACE, " ").split())) for piece in pieces]
    ends = np.cumsum([0, *lengths]).tolist()
    return SegmentedText(ids, words, _members(list(pairwise(ends)), words))


def word_groups(pieces: Sequence[str]) -> list[list[int]]:
    """The indices of the pieces of each word; each piece is in one word.

    A word begins at a space, at a mark and after a mark. Marks are punctuation and special tokens: <s>, <mask>. An
    unknown piece ("<unk 犬>") is a separate word, with the space before it.
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
    """(pieces, words), True where a piece [start, stop) of the letters contains a letter of the word."""
    owners = [number for number, word in enumerate(words) for _ in "".join(word.split())]
    members = np.zeros((len(spans), len(words)), dtype=np.bool_)
    for piece, (start, stop) in enumerate(spans):
        members[piece, owners[start:stop]] = True
    return members


_NO_SPACE_BEFORE = frozenset(",.;:!?)]}»%…") | {"n't", "'s", "'re", "'ve", "'ll", "'d", "'m", "...", "’s"}
_NO_SPACE_BEHIND = frozenset("([{«¿¡")
_QUOTES = frozenset("\"'")


def detokenize(words: Sequence[str]) -> str:
    """The words with natural spacing; straight quotes open and close in turn."""
    text, glued, opened = "", True, set[str]()
    for word in words:
        closes = word in _QUOTES and word in opened
        if not (glued or closes or word.lower() in _NO_SPACE_BEFORE):
            text += " "
        text += word
        glued = word in _NO_SPACE_BEHIND or (word in _QUOTES and not closes)
        if word in _QUOTES:
            opened ^= {word}
    return text


def learn_casing(lines: Iterable[str]) -> dict[str, str]:
    """The most frequent form of each word inside sentences, where it is not lowercase."""
    forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        for word in line.split()[1:]:  # the first word is capitalized anyway
            plain = word.strip(",.;:!?()[]{}»«\"'„“”…")
            forms[plain.lower()][plain] += 1
    frequent = {word: counted.most_common(1)[0][0] for word, counted in forms.items()}
    return {word: form for word, form in frequent.items() if form != word and len(form) == len(word)}


def restore_case(words: Sequence[str], casing: Mapping[str, str]) -> list[str]:
    """Lowercase words in their most frequent form, the first of a sentence with a capital."""
    result, begins = [], True
    for word in words:
        form = casing.get(word, word)
        if begins and len(form[:1].upper()) == 1:
            form = form[:1].upper() + form[1:]
        begins = word in (".", "!", "?") or (begins and not any(map(str.isalnum, word)))
        result.append(form)
    return result
