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

_TABLE = 400_000  # cached segmentations: 150 MB at most
_LONG = 32  # longer words are not cached: the same ones with the same skipped merges hardly occur twice
_NONE = -1  # no piece


class BpeDropoutEncoder:
    """The merges of a BPE model, applied with random merges skipped.

    At every step the best merge that is not skipped is applied; each is skipped with probability `dropout`, drawn anew
    at every step. Only the draws for the best merges matter, so only those are made. Instead of one draw for each
    merge, we draw the number of merges to apply before the next skip, a geometric number. So the segmentation of a
    word depends on few such numbers (mostly none or one), and frequent words are cached under them.
    """

    def __init__(self, *, vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], unknown: int) -> None:
        self._ids = vocabulary
        self._unknown = unknown
        self._ranks: dict[tuple[int, int], tuple[int, int]] = {}  # pair of ids -> (rank, merged id)
        for rank, (left, right) in enumerate(merges):
            self._ranks.setdefault((vocabulary[left], vocabulary[right]), (rank, vocabulary[left + right]))
        # (word, merges before the first skip, before the second, ...) -> ids, merges after the last skip
        self._table: dict[tuple[str, *tuple[int, ...]], tuple[list[int], int]] = {}

    def encode(self, texts: Sequence[Sequence[str]], *, dropout: float, seed: int) -> Iterator[list[int]]:
        """The ids of texts, which are lists of words."""
        gaps = _gaps(dropout, seed)
        keep = next(gaps)  # merges to apply before one is skipped
        for words in texts:
            ids: list[int] = []
            for word in words:
                pieces, keep = (self._cached if len(word) < _LONG else self._merged)(word, keep, gaps)
                ids += pieces
            yield ids

    def _cached(self, word: str, keep: int, gaps: Iterator[int]) -> tuple[list[int], int]:
        """The result of `_merged`, from the cache."""
        table = self._table
        key: tuple[str, *tuple[int, ...]] = (word,)
        while True:
            known = table.get(key)
            if known is None:
                if len(table) >= _TABLE:
                    table.clear()
                limits = chain(key[1:], (len(word),))  # a word has fewer merges than characters
                ids, left = self._merged(word, next(limits), limits)
                known = table[key] = (ids, len(word) - left)
            if known[1] <= keep:
                return known[0], keep - known[1]
            key = (*key, keep)
            keep = next(gaps)

    def _merged(self, word: str, keep: int, gaps: Iterator[int]) -> tuple[list[int], int]:
        """Apply merges until none is left, skipping one after `keep` merges, another one a gap later, and so on.

        Also returns how many merges to apply before the next skip. Pieces are at the index of their first character,
        and pairs are in a heap by rank: in a script without spaces a word may be a whole text.
        """
        ranks, ids = self._ranks, self._characters(word)
        after, before = list(range(1, len(ids) + 1)), list(range(-1, len(ids)))
        heap = [(ranks[pair][0], at) for at, pair in enumerate(pairwise(ids)) if pair in ranks]
        heapify(heap)
        ids.append(_NONE)  # after the last piece and (at −1) before the first
        skipped: list[tuple[int, int]] = []
        while heap:
            rank, at = heappop(heap)
            merge = ranks.get((ids[at], ids[after[at]]))
            if merge is None or merge[0] != rank:
                continue  # one of the two was merged with another piece
            if keep == 0:
                skipped.append((rank, at))
                keep = next(gaps)
                continue
            keep -= 1
            ids[at], ids[after[at]] = merge[1], _NONE
            after[at] = after[after[at]]
            before[after[at]] = at
            for place in (before[at], at):
                if (new := ranks.get((ids[place], ids[after[place]]))) is not None:
                    heappush(heap, (new[0], place))
            for pair in skipped:
                heappush(heap, pair)
            skipped.clear()
        return [number for number in ids if number != _NONE], keep

    def _characters(self, word: str) -> list[int]:
        """The characters of a word as ids; adjacent unknown characters are one UNK, as in the plain model."""
        ids: list[int] = []
        for character in word:
            number = self._ids.get(character, self._unknown)
            if number != self._unknown or not ids or ids[-1] != number:
                ids.append(number)
        return ids


def _gaps(dropout: float, seed: int) -> Iterator[int]:
    """Geometric numbers: failures before the next success of probability `dropout`."""
    random = Random(seed)
    scale = 1.0 / math.log1p(-dropout)
    while True:
        yield int(math.log(1.0 - random.random()) * scale)
