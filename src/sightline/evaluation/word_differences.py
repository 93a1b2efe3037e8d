"""Words of any script, and where two texts differ, word by word.

Everything that compares systems by their words uses this one splitting, so all its numbers count the same words. It
needs no language and no model, keeps case, and leaves the text unchanged:

- letters, digits, their marks and joiners form a word (`grün`, `كِتاب`, `हिन्दी`), including an apostrophe between them
  (`don't`), and a point or a comma between digits (`1,000.5`);
- in scripts written without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each character is a
  word, with its marks;
- each other visible character (`-`, `!`, `€`) is a word;
- spaces and layout characters (zero-width space, direction marks) separate words.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Literal, NamedTuple

from sightline.text.sentences import UNSPACED

Kind = Literal["same", "removed", "added", "changed"]

_LAYOUT = r"\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"
_JOINERS = "\u00ad\u200c\u200d"  # soft hyphen; Persian and Indic words contain the other two
_WITH_MARKS = (range(0x300, 0x1F000), range(0xE0100, 0xE01F0))  # all marks of Unicode 15


class Segment(NamedTuple):
    """A piece of a text, and how it relates to the other text.

    `removed` occurs only in the baseline and `added` only in the system; `changed` occurs in both, where words of one
    replace words of the other.
    """

    text: str
    kind: Kind


def words(text: str) -> list[str]:
    """The words of a text, in order (see the module's description for what a word is)."""
    return _pattern().findall(text)


def word_frequencies(texts: Iterable[str]) -> Counter[str]:
    """Counts of the words in texts, such as the training targets of a system."""
    return Counter(chain.from_iterable(map(words, texts)))


def word_differences(baseline: str, system: str) -> tuple[list[Segment], list[Segment]]:
    """Both texts in segments; joined, the segments give back each text exactly.

    Words are aligned as in `align_words`. Spaces are not compared, and are in `same` segments unless words of one and
    the same other segment surround them. Swapping the texts swaps the lists, and `removed` with `added`.
    """
    left, right = list(_pattern().finditer(baseline)), list(_pattern().finditer(system))
    pairs = align_words([match[0] for match in left], [match[0] for match in right])
    left_marks: list[tuple[int, int, Kind]] = []
    right_marks: list[tuple[int, int, Kind]] = []
    i = j = 0
    for next_i, next_j in [*pairs, (len(left), len(right))]:
        both = i < next_i and j < next_j
        if i < next_i:
            left_marks.append((left[i].start(), left[next_i - 1].end(), "changed" if both else "removed"))
        if j < next_j:
            right_marks.append((right[j].start(), right[next_j - 1].end(), "changed" if both else "added"))
        i, j = next_i + 1, next_j + 1
    return _segments(baseline, left_marks), _segments(system, right_marks)


def align_words(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs (place in first, place in second) of equal words: as many as can be paired without crossing.

    That is the alignment of least edit distance where a word can be inserted or deleted. Where several are as good,
    words at the start are paired first, then, from the end, words equally far from it. The order of the two
    does not matter.
    """
    if list(second) < list(first):  # else what is chosen among equals would depend on which text comes first
        return [(i, j) for j, i in align_words(second, first)]
    start = 0
    while start < min(len(first), len(second)) and first[start] == second[start]:
        start += 1
    rest = _common(first[start:], second[start:])
    return [(place, place) for place in range(start)] + [(start + i, start + j) for i, j in rest]


def _common(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """A longest common subsequence, one row of its table in one integer (Crochemore et al. 2001; Hyyrö 2004).

    With L(i, j) the length for the first i and j words, bit i of row j is 0 where L(i + 1, j) = L(i, j) + 1.
    """
    places: dict[str, int] = {}
    for i, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << i
    full = (1 << len(first)) - 1
    rows = [full]
    for word in second:
        row = rows[-1]
        hits = row & places.get(word, 0)
        rows.append(((row + hits) | (row - hits)) & full)

    def length(i: int, j: int) -> int:
        return i - (rows[j] & ((1 << i) - 1)).bit_count()

    pairs: list[tuple[int, int]] = []
    i, j = len(first), len(second)
    left = length(i, j)
    while left:
        if first[i - 1] == second[j - 1]:
            i, j, left = i - 1, j - 1, left - 1
            pairs.append((i, j))
        elif length(i - 1, j - 1) == left:
            i, j = i - 1, j - 1
        elif length(i - 1, j) == left:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def _segments(text: str, marks: list[tuple[int, int, Kind]]) -> list[Segment]:
    segments: list[Segment] = []
    done = 0
    for start, end, kind in marks:
        segments += [Segment(text[done:start], "same"), Segment(text[start:end], kind)]
        done = end
    return [segment for segment in [*segments, Segment(text[done:], "same")] if segment.text]


@cache
def _pattern() -> re.Pattern[str]:
    """One match for each word. Made at the first use: `re` does not know which characters are marks."""
    marks = "".join(
        chr(code) for codes in _WITH_MARKS for code in codes if unicodedata.category(chr(code)).startswith("M")
    )
    letter = rf"[^\W{UNSPACED}]"
    joined = rf"(?![\x00-\xac])[{marks}{_JOINERS}]+"  # most words have no mark: five times faster with the guard
    run = f"{letter}+(?:{joined}{letter}*)*"
    inside = r"(?:['’]|(?<=\d)[.,](?=\d))"
    return re.compile(rf"{run}(?:{inside}{run})*|[^\s{_LAYOUT}](?:{joined})?")
