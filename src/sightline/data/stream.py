"""A store of texts as one long stream of tokens, read from disk window by window: memory does not grow with it.

Of the text in memory there are eight bytes for each document, of the tokens only those of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.batching import order, random_numbers
from sightline.data.store import Store
from sightline.text.tokenizer import END

Indices = NDArray[np.int64]

_OFFSET = 23  # the stream of random numbers that shifts windows


class TextStream:
    """Every document of a store with its end mark, one after the other."""

    def __init__(self, store: Store) -> None:
        if not len(store):
            raise ValueError("there is no text to model; check data.train and data.validation")
        self._ends = np.cumsum(store.target_lengths.astype(np.int64) + 1)  # where each document ends, mark included
        self._parts = [values[offsets[0] : offsets[-1]] for offsets, values in store.targets]
        self._starts = np.cumsum([0] + [len(part) for part in self._parts])  # of the parts, end marks not counted
        last = np.searchsorted(store.origin, np.arange(int(store.origin.max()) + 1), side="right")
        self.bounds = np.append(0, self._ends)[np.append(0, last)]  # where the text of each source begins and ends

    def __len__(self) -> int:
        return int(self._ends[-1])

    def between(self, start: int, stop: int) -> Indices:
        """Its tokens from `start` to before `stop`."""
        first, last = np.searchsorted(self._ends, [start, stop], side="right")  # end marks before either
        marks = self._ends[first:last] - 1 - start
        tokens = np.empty(stop - start, np.int64)
        text = np.ones(stop - start, np.bool_)
        text[marks] = False
        tokens[marks] = END
        tokens[text] = self._values(start - int(first), stop - int(last))
        return tokens

    def around(self, start: int, length: int, source: int) -> Indices:
        """So many tokens of a source from `start` on; behind its end comes its beginning."""
        low, high = int(self.bounds[source]), int(self.bounds[source + 1])
        length = min(length, high - low)
        over = start + length - high
        if over <= 0:
            return self.between(start, start + length)
        return np.concatenate([self.between(start, high), self.between(low, low + over)])

    def _values(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """The same of the text without its end marks."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        found = []
        while start < stop:
            begin = int(self._starts[first])
            found.append(self._parts[first][start - begin : stop - begin])
            start, first = int(self._starts[first + 1]), first + 1
        return found[0] if len(found) == 1 else np.concatenate([*found, np.empty(0, np.uint16)])


@dataclass
class FullWindows:
    """The full windows of each epoch over a store, known by their places in the epoch."""

    store_for: Callable[[int], Store]  # epoch → store
    length: int  # tokens
    weights: Sequence[float]  # of the sources
    seed: int
    _texts: dict[Path, TextStream] = field(init=False, default_factory=dict)
    _newest: tuple[int, Indices, Indices] | None = field(init=False, default=None)  # epoch, starts, sources

    def text(self, epoch: int) -> TextStream:
        """The text of an epoch."""
        store = self.store_for(epoch)
        if store.folder not in self._texts:
            self._texts[store.folder] = TextStream(store)
        return self._texts[store.folder]

    def count(self, epoch: int) -> int:
        """How many windows an epoch has."""
        return len(self._of(epoch)[0])

    def take(self, epoch: int, places: Indices) -> list[Indices]:
        """The tokens of some windows."""
        text, (starts, sources) = self.text(epoch), self._of(epoch)
        pairs = zip(starts[places].tolist(), sources[places].tolist(), strict=True)
        return [text.around(start, self.length, source) for start, source in pairs]

    def _of(self, epoch: int) -> tuple[Indices, Indices]:
        newest = self._newest  # batches are made in a thread of their own
        if newest is None or newest[0] != epoch:
            bounds = self.text(epoch).bounds
            newest = (epoch, *full_windows(bounds, self.length, self.weights, seed=self.seed, epoch=epoch))
            self._newest = newest
        return newest[1:]


def full_windows(
    bounds: Indices, length: int, weights: Sequence[float], *, seed: int, epoch: int
) -> tuple[Indices, Indices]:
    """Where the windows of an epoch begin and of which source each is, in random order: a pure function.

    Each source is a ring, cut into windows of `length` tokens from another place each epoch, and what is left over
    (less than a window) is left out. Weights count windows as they count examples (data/batching.py).
    """
    starts, sources = [], []
    for number, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        size = high - low
        shift = 0 if epoch == 0 else int(random_numbers(1, _OFFSET, seed, epoch, number)[0] % length)
        count = max(1, size // length) if size else 0
        starts.append(low + (shift + np.arange(count) * length) % max(1, size))
        sources.append(np.full(count, number))
    origin = np.concatenate(sources)
    chosen = order(origin, [*weights][: len(bounds) - 1], seed=seed, epoch=epoch)
    return np.concatenate(starts)[chosen], origin[chosen]
