"""Text for language models: one long stream of tokens, cut into windows.

Transformers take windows in random order, cut at other places each epoch, each behind a start token. Recurrent models
carry their state: the stream is laid out in as many rows as a batch has, a batch is the next window of every row, and
each row starts from the state in which the previous window ended (truncated backpropagation through time).

The stream is read from disk window by window. In memory are eight bytes for each document and the tokens of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.batch_order import order, random_numbers, shuffled
from sightline.data.collate import StaticShape, TrainingBatch, language_model_ids, padded_batch
from sightline.data.epoch_plan import EpochPlan
from sightline.data.store import Store
from sightline.recipe.recipe import carries
from sightline.text.tokenizer import END, START

Indices = NDArray[np.int64]

_OFFSETS, _WINDOWS = 23, 17  # streams of random numbers: shifts of full windows, order of other windows


class TokenStream:
    """The documents of a store, each with its end token, as one stream that is read from disk."""

    def __init__(self, store: Store) -> None:
        if not len(store):
            raise ValueError("there is no text to model; check data.train and data.validation")
        self._ends = np.cumsum(store.target_lengths.astype(np.int64) + 1)  # ends of the documents
        self._parts = [values[offsets[0] : offsets[-1]] for offsets, values in store.targets]
        self._starts = np.cumsum([0] + [len(part) for part in self._parts])  # of the parts, without end tokens
        last = np.searchsorted(store.origin, np.arange(int(store.origin.max()) + 1), side="right")
        self.bounds = np.append(0, self._ends)[np.append(0, last)]  # where each source begins and ends

    def __len__(self) -> int:
        return int(self._ends[-1])

    def between(self, start: int, stop: int) -> Indices:
        """The tokens in [start, stop)."""
        first, last = np.searchsorted(self._ends, [start, stop], side="right")  # end tokens before either
        marks = self._ends[first:last] - 1 - start
        tokens = np.empty(stop - start, np.int64)
        text = np.ones(stop - start, np.bool_)
        text[marks] = False
        tokens[marks] = END
        tokens[text] = self._values(start - int(first), stop - int(last))
        return tokens

    def around(self, start: int, length: int, source: int) -> Indices:
        """`length` tokens of a source from `start` on; after its end it continues at its beginning."""
        low, high = int(self.bounds[source]), int(self.bounds[source + 1])
        length = min(length, high - low)
        over = start + length - high
        if over <= 0:
            return self.between(start, start + length)
        return np.concatenate([self.between(start, high), self.between(low, low + over)])

    def _values(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Tokens of the stream without end tokens."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        parts = []
        while start < stop:
            begin = int(self._starts[first])
            parts.append(self._parts[first][start - begin : stop - begin])
            start, first = int(self._starts[first + 1]), first + 1
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.uint16)])


@dataclass
class FullWindows:
    """The windows of full length of each epoch, identified by their position in the epoch."""

    store_for: Callable[[int], Store]  # epoch → store
    length: int  # tokens
    weights: Sequence[float]  # of the sources
    seed: int
    _texts: dict[Path, TokenStream] = field(init=False, default_factory=dict)
    _newest: tuple[int, Indices, Indices] | None = field(init=False, default=None)  # epoch, starts, sources

    def text(self, epoch: int) -> TokenStream:
        """The text of an epoch."""
        store = self.store_for(epoch)
        if store.folder not in self._texts:
            self._texts[store.folder] = TokenStream(store)
        return self._texts[store.folder]

    def count(self, epoch: int) -> int:
        """The number of windows of an epoch."""
        return len(self._of(epoch)[0])

    def take(self, epoch: int, places: Indices) -> list[Indices]:
        """The tokens of some windows."""
        text, (starts, sources) = self.text(epoch), self._of(epoch)
        pairs = zip(starts[places].tolist(), sources[places].tolist(), strict=True)
        return [text.around(start, self.length, source) for start, source in pairs]

    def _of(self, epoch: int) -> tuple[Indices, Indices]:
        newest = self._newest  # read once: batches are made in another thread
        if newest is None or newest[0] != epoch:
            bounds = self.text(epoch).bounds
            newest = (epoch, *full_windows(bounds, self.length, self.weights, seed=self.seed, epoch=epoch))
            self._newest = newest
        return newest[1:]


def full_windows(
    bounds: Indices, length: int, weights: Sequence[float], *, seed: int, epoch: int
) -> tuple[Indices, Indices]:
    """The start and the source of each window of an epoch, in random order: a pure function.

    Each source is a ring that is cut into windows of `length` tokens, from a different start in each epoch; a rest
    shorter than a window is skipped. Weights apply to windows as to examples (`batch_order.order`).
    """
    starts, sources = [], []
    for number, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        size = high - low
        shift = 0 if epoch == 0 else int(random_numbers(1, _OFFSETS, seed, epoch, number)[0] % length)
        count = max(1, size // length) if size else 0
        starts.append(low + (shift + np.arange(count) * length) % max(1, size))
        sources.append(np.full(count, number))
    origin = np.concatenate(sources)
    chosen = order(origin, [*weights][: len(bounds) - 1], seed=seed, epoch=epoch)
    return np.concatenate(starts)[chosen], origin[chosen]


def token_stream(store: Store) -> np.ndarray:
    """The documents of a store, each with its end token, as one array."""
    stream = TokenStream(store)
    return stream.between(0, len(stream)).astype(np.uint32)


@dataclass
class WindowPlan(EpochPlan):
    """Batches of windows. An example is the number of a window or, with carried state, a position in the stream."""

    def __post_init__(self) -> None:
        batches = self.recipe.training.batches
        self.context, self.carry = batches.context, carries(self.recipe)
        if self.carry:
            self.layout = "padded"  # all rows are full
        self.rows = batches.windows()
        if self.layout == "static":  # at least one dummy sequence, more if windows are missing
            tokens = self.rows * self.context + 8
            self.shape = StaticShape(tokens, self.rows + 1 + -(-tokens // self.context), self.context)
        self._newest: tuple[int, np.ndarray] | None = None  # the last epoch and its window bounds
        weights = [source.weight for source in self.recipe.data.train]
        self.weighted = any(weight != 1.0 for weight in weights)
        self.full = FullWindows(self.store_for, self.context, weights, self.recipe.seed)
        if self.weighted and self.carry:
            raise ValueError(
                f"weights ({', '.join(map(str, weights))}) of data.train need windows in random order, and with "
                f"training.batches.carry each window continues the one before; leave the weights out, or "
                f"set carry: false"
            )
        if self.carry and (tokens := len(self.full.text(0))) <= 2 * self.rows:
            raise ValueError(f"{tokens} tokens of text are too few for {self.rows} rows; lower training.batches.tokens")

    def text(self, epoch: int) -> TokenStream:
        """The text of an epoch."""
        return self.full.text(epoch)

    def epoch(self, number: int) -> Sequence[np.ndarray]:
        if self.carry:
            begins, length = self._rows(number)
            return [begins + at for at in range(0, length, self.context)]
        if self.weighted:
            order = np.arange(self.full.count(number))
        else:
            order = shuffled(len(self._bounds(number)) - 1, _WINDOWS, self.recipe.seed, number)
        return [order[at : at + self.rows] for at in range(0, len(order), self.rows)]

    def _bounds(self, epoch: int) -> np.ndarray:
        """The starts of the windows of an epoch, and the end of the last one."""
        newest = self._newest
        if newest is None or newest[0] != epoch:
            offset = 0 if epoch == 0 else int(shuffled(self.context, _WINDOWS, self.recipe.seed, epoch)[0])
            length = len(self.text(epoch))
            newest = (epoch, np.unique(np.concatenate([[0], np.arange(offset, length, self.context), [length]])))
            self._newest = newest
        return newest[1]

    def _rows(self, epoch: int) -> tuple[np.ndarray, int]:
        """The starts of the rows and their length. The remainder of the division is a different part in each epoch."""
        length, spare = divmod(len(self.text(epoch)) - 1, self.rows)
        return 1 + epoch % (spare + 1) + np.arange(self.rows) * length, length

    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch:
        windows = self._windows(epoch, examples)
        if self.carry:
            begins, _ = self._rows(epoch)
            return replace(padded_batch(language_model_ids([], windows), examples), continues=examples[0] not in begins)
        return self.to_batch(
            language_model_ids([], [np.concatenate([[START], window]) for window in windows]), examples
        )

    def _windows(self, epoch: int, examples: np.ndarray) -> list[np.ndarray]:
        """The tokens of some windows; with carried state, each with the token before it."""
        if self.weighted:
            return self.full.take(epoch, examples)
        text = self.text(epoch)
        if self.carry:
            begins, length = self._rows(epoch)
            at = int(examples[0] - begins[0]) % length  # of any row
            width = min(self.context, length - at)  # the last window of a row may be shorter
            return [text.between(start - 1, start + width) for start in examples.tolist()]
        bounds = self._bounds(epoch)
        return [text.between(int(bounds[number]), int(bounds[number + 1])) for number in examples]

    def waste(self, epoch: int = 0) -> float:
        if self.shape is None:
            return 0.0  # ignoring the last window
        if self.weighted:
            return 1 - self.rows * self.context / self.shape.tokens
        return 1 - len(self.text(epoch)) / (self.shape.tokens * len(self.epoch(epoch)))

    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]:
        before = 1 if self.carry else 0
        windows = (window[before:].tolist() for window in self._windows(epoch, examples))
        return [{"text": self.vocabulary.target.decode(window)} for window in windows]
