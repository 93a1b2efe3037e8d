"""BPE-dropout (Provilkov et al. 2020): each time a word is met, some merges are left out, so it is cut differently.

Our own, because the one in `tokenizers` draws from a generator that cannot be seeded, and a run could not be
repeated or resumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random

_TABLE = 400_000  # cuts kept in the table: some 150 MB at most


class MergeDropout:
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
        table = self._table
        for words in texts:
            ids: list[int] = []
            for word in words:
                key: tuple[str, *tuple[int, ...]] = (word,)
                while True:
                    known = table.get(key)
                    if known is None:
                        if len(table) >= _TABLE:
                            table.clear()
                        known = table[key] = self._cut(*key)
                    if known[1] <= keep:
                        break
                    key = (*key, keep)
                    keep = next(gaps)
                keep -= known[1]
                ids += known[0]
            yield ids

    def _cut(self, word: str, *keep: int) -> tuple[list[int], int]:
        """Merge to the end, leaving one out after `keep[0]` were kept, another `keep[1]` later, and so on."""
        ids = self._characters(word)
        limits = iter((*keep, len(ids)))  # no word takes more merges than it has characters
        limit = next(limits)
        kept = 0
        while True:
            for _, at, merged in sorted(
                (self._ranks[pair][0], at, self._ranks[pair][1])
                for at, pair in enumerate(pairwise(ids))
                if pair in self._ranks
            ):
                if kept == limit:
                    kept, limit = 0, next(limits)
                else:
                    kept += 1
                    ids[at : at + 2] = [merged]
                    break
            else:
                return ids, kept

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
