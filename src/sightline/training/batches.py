"""Examples to tensors, in the layout a model wants, made ahead of time in a thread of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from sightline.layers.layout import Layout, Packed, Padded
from sightline.text.tokenizer import END, PAD, START


@dataclass(frozen=True)
class TrainingBatch:
    """Sources with their end marks; targets shifted right (`given`) and with their end marks (`wanted`)."""

    source: Tensor
    source_layout: Layout
    given: Tensor
    wanted: Tensor
    target_layout: Layout
    tokens: int  # real target tokens, end marks included
    examples: np.ndarray  # which examples of the store
    flops: int = 0  # floating-point operations of a training step over it, once somebody knows

    def to(self, device: torch.device) -> TrainingBatch:
        """The same on another device, copied while the one before is computed."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.pin_memory().to(device, non_blocking=True)

        def move_layout(layout: Layout) -> Layout:
            if isinstance(layout, Packed):
                return replace(layout, offsets=move(layout.offsets), index=move(layout.index), slots=move(layout.slots))
            return replace(layout, mask=None if layout.mask is None else move(layout.mask))

        return replace(
            self,
            source=move(self.source),
            given=move(self.given),
            wanted=move(self.wanted),
            source_layout=move_layout(self.source_layout),
            target_layout=move_layout(self.target_layout),
        )


@dataclass(frozen=True)
class StaticShape:
    """Fixed sizes for a compiled step: tokens on each side, sequences, and the longest of them."""

    tokens: int
    sequences: int
    longest: int


def _joined(sequences: Sequence[np.ndarray], mark: int, *, before: bool) -> np.ndarray:
    """All sequences end to end, each with a mark before or behind it."""
    lengths = np.fromiter((len(sequence) for sequence in sequences), np.int64, len(sequences)) + 1
    ends = np.cumsum(lengths)
    joined = np.full(ends[-1], mark, dtype=np.int64)
    rest = np.ones(len(joined), dtype=bool)
    rest[ends - lengths if before else ends - 1] = False
    joined[rest] = np.concatenate(sequences)
    return joined


def padded_batch(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], examples: np.ndarray) -> TrainingBatch:
    """Rows with PAD behind shorter ones."""

    def rows(sequences: Sequence[np.ndarray], mark: int, *, before: bool) -> tuple[Tensor, list[int]]:
        lengths = [len(sequence) + 1 for sequence in sequences]
        table = np.full((len(sequences), max(lengths)), PAD, dtype=np.int64)
        filled = np.arange(table.shape[1])[None, :] < np.asarray(lengths)[:, None]
        table[filled] = _joined(sequences, mark, before=before)
        return torch.from_numpy(table), lengths

    source, source_lengths = rows(sources, END, before=False)
    given, target_lengths = rows(targets, START, before=True)
    wanted, _ = rows(targets, END, before=False)
    return TrainingBatch(
        source, Padded.of(source_lengths), given, wanted, Padded.of(target_lengths), sum(target_lengths), examples
    )


def packed_batch(
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    examples: np.ndarray,
    static: StaticShape | None = None,
) -> TrainingBatch:
    """Sequences end to end. With a static shape, dummy sequences of PAD fill it up; nothing is learned from them."""
    source, given = _joined(sources, END, before=False), _joined(targets, START, before=True)
    wanted = _joined(targets, END, before=False)
    source_lengths = [len(sequence) + 1 for sequence in sources]
    target_lengths = [len(sequence) + 1 for sequence in targets]
    tokens, longest = len(wanted), None
    if static is not None:
        longest = static.longest
        gaps = static.tokens - len(source), static.tokens - len(wanted)
        fillers = max(1, -(-max(gaps) // longest))
        spare = static.sequences - len(sources) - fillers
        if min(gaps) < fillers or spare < 0:
            raise ValueError(
                f"a batch of {len(sources)} examples, {len(source)} + {len(wanted)} tokens does not fit into {static}"
            )
        source_lengths += [*_split(gaps[0], fillers), *[0] * spare]
        target_lengths += [*_split(gaps[1], fillers), *[0] * spare]
        source, given, wanted = (
            np.pad(part, (0, static.tokens - len(part)), constant_values=PAD) for part in (source, given, wanted)
        )
    return TrainingBatch(
        torch.from_numpy(source),
        Packed.of(source_lengths, longest=longest),
        torch.from_numpy(given),
        torch.from_numpy(wanted),
        Packed.of(target_lengths, longest=longest),
        tokens,
        examples,
    )


def _split(total: int, parts: int) -> list[int]:
    """A number as so many parts that differ by one at most."""
    return [total // parts + (index < total % parts) for index in range(parts)]


Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(items: Iterable[Item], make: Callable[[Item], Made], depth: int = 4) -> Iterator[Made]:
    """`make(item)` for each item, in order, up to `depth` of them made ahead in a thread."""
    ready: queue.Queue[tuple[Made | None, BaseException | None]] = queue.Queue(depth)
    stop = threading.Event()

    def put(made: Made | None, error: BaseException | None) -> bool:
        while not stop.is_set():
            try:
                ready.put((made, error), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(make(item), None):
                    return
            put(None, None)
        except BaseException as error:  # handed to the consumer, who raises it
            put(None, error)

    thread = threading.Thread(target=work, daemon=True, name="batches")
    thread.start()
    try:
        while True:
            made, error = ready.get()
            if error is not None:
                raise error
            if made is None:
                return
            yield made
    finally:
        stop.set()
        thread.join()
