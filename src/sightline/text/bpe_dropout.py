"""BPE-dropout (Provilkov et al. 2020): each occurrence of a word skips some merges, so it is segmented differently.

We have our own because the one in `tokenizers` draws from a generator that cannot be seeded, so a run could be neither
repeated nor resumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from random import Random

_TABLE = 400_000  # cuts kept in the table: some 150 MB at most
_LONG = 32  # characters of words that are cut anew each time: they hardly come twice, with the same merges left out
_NONE = -1  # where no piece stands


class BpeDropoutEncoder:
    """The merges of a BPE model, applied with some left out.

    At every step the best merge that is not left out is done; each is left out with probability `dropout`, anew at
    every step. Only the draws for merges that come first in line matter, so only those are made; and instead of
    drawing for each, we draw how many are kept before the next is left out, a geometric number. So how a word is cut
    depends on a few such numbers (mostly none or one), and frequent words are found in a table under them.
    """

    def __init__(self, *, vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], unknown: int) -> None:
        self._ids = vocabulary
        self._unknown = unknown
        self._ranks: dict[tuple[int, int], tuple[int, int]] = {}  # pair of ids -> (rank, merged id)
        for rank, (left, right) in enumerate(merges):
            self._ranks.setdefault((vocabulary[left], vocabulary[right]), (rank, vocabulary[left + right]))
        # (word, kept before the first left out, kept before the second, ...) -> ids, merges kept after the last
        self._table: dict[tuple[str, *tuple[int, ...]], tuple[list[int], int]] = {}

    def cut(self, texts: Sequence[Sequence[str]], *, dropout: float, seed: int) -> Iterator[list[int]]:
        """Ids of texts given as lists of words."""
        gaps = _gaps(dropout, seed)
        keep = next(gaps)  # merges to keep before one is left out
        for words in texts:
            ids: list[int] = []
            for word in words:
                cut, keep = (self._found if len(word) < _LONG else self._merged)(word, keep, gaps)
                ids += cut
            yield ids

    def _found(self, word: str, keep: int, gaps: Iterator[int]) -> tuple[list[int], int]:
        """What `_merged` gives, from the table."""
        table = self._table
        key: tuple[str, *tuple[int, ...]] = (word,)
        while True:
            known = table.get(key)
            if known is None:
                if len(table) >= _TABLE:
                    table.clear()
                limits = chain(key[1:], (len(word),))  # no word takes more merges than it has characters
                ids, left = self._merged(word, next(limits), limits)
                known = table[key] = (ids, len(word) - left)
            if known[1] <= keep:
                return known[0], keep - known[1]
            key = (*key, keep)
            keep = next(gaps)

    def _merged(self, word: str, keep: int, gaps: Iterator[int]) -> tuple[list[int], int]:
        """Merge to the end, leaving one out after `keep` were kept, another a gap later, and so on.

        Last comes how many more are to be kept before the next is left out. Pieces stand at the place of their first
        character, and pairs wait in line by their rank: in a script without spaces a word may be a whole text.
        """
        ranks, ids = self._ranks, self._characters(word)
        after, before = list(range(1, len(ids) + 1)), list(range(-1, len(ids)))
        line = [(ranks[pair][0], at) for at, pair in enumerate(pairwise(ids)) if pair in ranks]
        heapify(line)
        ids.append(_NONE)  # behind the last, and (at -1) before the first
        left_out: list[tuple[int, int]] = []
        while line:
            rank, at = heappop(line)
            found = ranks.get((ids[at], ids[after[at]]))
            if found is None or found[0] != rank:
                continue  # one of the two is part of another piece by now
            if keep == 0:
                left_out.append((rank, at))
                keep = next(gaps)
                continue
            keep -= 1
            ids[at], ids[after[at]] = found[1], _NONE
            after[at] = after[after[at]]
            before[after[at]] = at
            for place in (before[at], at):
                if (new := ranks.get((ids[place], ids[after[place]]))) is not None:
                    heappush(line, (new[0], place))
            for again in left_out:
                heappush(line, again)
            left_out.clear()
        return [number for number in ids if number != _NONE], keep

    def _characters(self, word: str) -> list[int]:
        """Where every cut starts from; unknown characters side by side are one unknown, as in the plain model."""
        ids: list[int] = []
        for character in word:
            number = self._ids.get(character, self._unknown)
            if number != self._unknown or not ids or ids[-1] != number:
                ids.append(number)
        return ids


def _gaps(dropout: float, seed: int) -> Iterator[int]:
    """How many draws fail before the next that succeeds with probability `dropout`, again and again."""
    random = Random(seed)
    scale = 1.0 / math.log1p(-dropout)
    while True:
        yield int(math.log(1.0 - random.random()) * scale)
