"""Text for language models: one long stream of tokens, cut into windows.

Transformers take windows in random order, cut at other places each epoch, each behind a start mark of its own.
Recurrent models read on: the stream lies in as many rows as a batch has, a batch is the next window of every row, and
each row starts from the state the window before it ended in (truncated backpropagation through time).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sightline.data.batches import StaticShape, TrainingBatch, padded_batch
from sightline.data.batching import shuffled
from sightline.data.collate import Sides, windows
from sightline.data.store import Store
from sightline.data.store_plan import StorePlan
from sightline.data.stream import FullWindows, TextStream
from sightline.recipe.recipe import carries
from sightline.text.tokenizer import END, START

_WINDOWS = 17  # the stream of random numbers that places windows


def stream_of(store: Store) -> np.ndarray:
    """Every document with its end mark, one after the other."""
    _, documents = store.take(np.arange(len(store)))
    if not documents:
        raise ValueError("there is no text to model; check data.train and data.validation")
    parts = [part for document in documents for part in (document, [END])]
    return np.concatenate(parts).astype(np.uint32)


@dataclass
class WindowPlan(StorePlan):
    """The windows of each epoch; an example is known by its number or, where rows go on, by its place in the stream."""

    def __post_init__(self) -> None:
        batches = self.recipe.training.batches
        self.context, self.carry = batches.context, carries(self.recipe)
        if self.carry:
            self.layout = "padded"  # rows are always full, and stay where they are
        self.rows = batches.windows()
        if self.layout == "static":  # a dummy sequence is always there, more of them where windows are missing
            tokens = self.rows * self.context + 8
            self.shape = StaticShape(tokens, self.rows + 1 + -(-tokens // self.context), self.context)
        self._newest: tuple[int, np.ndarray] | None = None  # an epoch and its bounds
        weights = [source.weight for source in self.recipe.data.train]
        self.weighted = any(weight != 1.0 for weight in weights)
        self.full = FullWindows(self.store_for, self.context, weights, self.recipe.seed)
        if self.weighted and self.carry:
            raise ValueError(
                f"weights ({', '.join(map(str, weights))}) of data.train take windows in any order, and with "
                f"training.batches.carry each goes on from the one before; leave the weights out, or set carry: false"
            )
        if self.carry and len(self.text(0)) <= 2 * self.rows:
            raise ValueError(
                f"{len(self.text(0))} tokens of text are too few for {self.rows} rows; lower training.batches.tokens"
            )

    def text(self, epoch: int) -> TextStream:
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
        """Where the windows of an epoch begin, and where the last one ends."""
        newest = self._newest
        if newest is None or newest[0] != epoch:
            offset = 0 if epoch == 0 else int(shuffled(self.context, _WINDOWS, self.recipe.seed, epoch)[0])
            length = len(self.text(epoch))
            newest = (epoch, np.unique(np.concatenate([[0], np.arange(offset, length, self.context), [length]])))
            self._newest = newest
        return newest[1]

    def _rows(self, epoch: int) -> tuple[np.ndarray, int]:
        """Where the rows begin, and how long each is; what is left over by the division is another part each epoch."""
        length, spare = divmod(len(self.text(epoch)) - 1, self.rows)
        return 1 + epoch % (spare + 1) + np.arange(self.rows) * length, length

    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch:
        cut = self._cut(epoch, examples)
        if self.carry:
            begins, _ = self._rows(epoch)
            return replace(padded_batch(windows([], cut), examples), goes_on=bool(examples[0] != begins[0]))
        return self.laid_out(windows([], [np.concatenate([[START], window]) for window in cut]), examples)

    def _cut(self, epoch: int, examples: np.ndarray) -> list[np.ndarray]:
        """The tokens of some windows; where rows go on, behind the token before each."""
        if self.weighted:
            return self.full.take(epoch, examples)
        text = self.text(epoch)
        if self.carry:
            begins, length = self._rows(epoch)
            width = min(self.context, length - int(examples[0] - begins[0]))  # the last of a row may be shorter
            return [text.between(start - 1, start + width) for start in examples.tolist()]
        bounds = self._bounds(epoch)
        return [text.between(int(bounds[number]), int(bounds[number + 1])) for number in examples]

    def waste(self, epoch: int = 0) -> float:
        """The share of places that hold no token: of the last window, and of what fills a static shape."""
        if self.shape is None:
            return 0.0  # but for the last window
        if self.weighted:
            return 1 - self.rows * self.context / self.shape.tokens
        return 1 - len(self.text(epoch)) / (self.shape.tokens * len(self.epoch(epoch)))

    def tiny(self, sizes: Sequence[np.ndarray]) -> Sides:
        """Windows of about so many tokens."""
        lengths = np.minimum(sizes[0] + 2, self.context)  # one token alone would take other kernels
        return windows([], [np.full(length + 1, END) for length in lengths])

    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]:
        """The windows of a batch, to be read by a person."""
        before = 1 if self.carry else 0
        found = (window[before:].tolist() for window in self._cut(epoch, examples))
        return [{"text": self.vocabulary.target.decode(window)} for window in found]
