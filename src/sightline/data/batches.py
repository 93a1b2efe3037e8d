"""Examples to tensors, in the layout a model wants, made ahead of time in a thread of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from sightline.data.collate import Side, Sides
from sightline.layers.layout import Layout, Packed, Padded
from sightline.text.tokenizer import PAD


class Guide(NamedTuple):
    """Where a head should look, in a batch: p(s | t) wherever it is more than nothing."""

    places: Tensor  # (3, links): sequence, step of the decoder, source piece
    shares: Tensor  # (links,) p(s | t): they sum to one for each linked piece t

    def to(self, device: torch.device) -> Guide:
        """The same on another device."""
        return Guide(*(part.pin_memory().to(device, non_blocking=True) for part in self))


def guide_of(links: Sequence[np.ndarray], *, shift: bool) -> Guide:
    """From the links (links, 2) of each example: source piece, target piece."""
    places, shares = [np.empty((3, 0), np.int64)], [np.empty(0, np.float32)]
    for number, own in enumerate(links):
        source, target = own[:, 0].astype(np.int64), own[:, 1].astype(np.int64)
        _, which, counts = np.unique(target, return_inverse=True, return_counts=True)
        places.append(np.stack([np.full(len(own), number), target + shift, source]))
        shares.append((1.0 / counts[which]).astype(np.float32))
    return Guide(torch.from_numpy(np.concatenate(places, axis=1)), torch.from_numpy(np.concatenate(shares)))


@dataclass(frozen=True)
class TrainingBatch:
    """Some examples as a model takes them (sides.py): read, given, wanted."""

    source: Tensor | None
    source_layout: Layout | None
    given: Tensor | None
    target_layout: Layout | None  # of `given`
    wanted: Tensor
    tokens: int  # answers wanted
    examples: np.ndarray  # which examples of the store
    flops: int = 0  # floating-point operations of a training step over it, once somebody knows
    goes_on: bool = False  # each row goes on where the same row of the batch before it ended
    guide: Guide | None = None  # where a head should look, if somebody says
    source_tokens: int = 0  # its marks included, padding not

    @property
    def processed(self) -> int:
        """The tokens by which speed is measured: of the target text or, where answers are labels, of the source."""
        return self.tokens if self.target_layout is not None else self.source_tokens

    def to(self, device: torch.device) -> TrainingBatch:
        """The same on another device, copied while the one before is computed."""

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.pin_memory().to(device, non_blocking=True)

        def move_layout(layout: Layout | None) -> Layout | None:
            if isinstance(layout, Packed):
                moved = {name: move(getattr(layout, name)) for name in ("offsets", "index", "slots", "real")}
                return replace(layout, **moved)  # type: ignore[arg-type]
            return layout and replace(layout, mask=move(layout.mask))

        return replace(
            self,
            source=move(self.source),
            given=move(self.given),
            wanted=move(self.wanted),  # type: ignore[arg-type]
            source_layout=move_layout(self.source_layout),
            target_layout=move_layout(self.target_layout),
            guide=self.guide and self.guide.to(device),
        )


@dataclass(frozen=True)
class StaticShape:
    """Fixed sizes for a compiled step: tokens on each side, sequences, and the longest of them."""

    tokens: int
    sequences: int
    longest: int
    given: int | None = None  # tokens of what is given, where they are not as many as those that are read
    answers: int | None = None  # most answers, where they are picked (sides.py)

    def sizes(self, sides: Sides) -> list[int]:
        """The tokens of each side a model reads."""
        given = self.tokens if self.given is None else self.given
        return [given if side is sides.given else self.tokens for side in sides.read]


def padded_batch(sides: Sides, examples: np.ndarray) -> TrainingBatch:
    """Rows with PAD behind shorter ones."""

    def rows(side: Side | None) -> tuple[Tensor | None, Padded | None]:
        if side is None:
            return None, None
        lengths = np.asarray(side.lengths())
        table = np.full((len(lengths), max(lengths)), PAD, dtype=np.int64)
        table[np.arange(table.shape[1])[None, :] < lengths[:, None]] = side.joined()
        return torch.from_numpy(table), Padded.of(lengths.tolist())

    wanted, _ = rows(sides.wanted)
    assert wanted is not None
    read = _source_tokens(sides)
    if sides.picked:
        return replace(_picked(*rows(sides.source), wanted, examples), source_tokens=read)
    tokens = int(wanted.count_nonzero())
    return TrainingBatch(*rows(sides.source), *rows(sides.given), wanted, tokens, examples, source_tokens=read)


def _source_tokens(sides: Sides) -> int:
    return 0 if sides.source is None else sum(sides.source.lengths())


def packed_batch(sides: Sides, examples: np.ndarray, static: StaticShape | None = None) -> TrainingBatch:
    """Sequences end to end. With a static shape, dummy sequences of PAD fill it up; nothing is learned from them."""
    wanted = sides.wanted.joined()
    tokens = int(np.count_nonzero(wanted))
    fillers = spare = 0
    if static is not None:
        sizes, places = [sum(side.lengths()) for side in sides.read], static.sizes(sides)
        gaps = [all_ - size for all_, size in zip(places, sizes, strict=True)]
        fillers = max(1, -(-max(gaps) // static.longest))
        spare = static.sequences - len(sides.wanted.sequences) - fillers
        if min(gaps) < fillers or spare < 0:
            raise ValueError(
                f"a batch of {len(sides.wanted.sequences)} examples, {' + '.join(map(str, sizes))} tokens does not fit "
                f"into {static}"
            )
        wanted = np.pad(wanted, (0, places[-1] - len(wanted)), constant_values=PAD)

    def ends(side: Side | None) -> tuple[Tensor | None, Packed | None]:
        if side is None:
            return None, None
        joined, lengths = side.joined(), side.lengths()
        if static is None:
            return torch.from_numpy(joined), Packed.of(lengths)
        places = static.given if side is sides.given and static.given is not None else static.tokens
        gap, real = places - len(joined), torch.arange(places) < len(joined)
        joined = np.pad(joined, (0, gap), constant_values=PAD)
        lengths += [*_split(gap, fillers), *[0] * spare]
        return torch.from_numpy(joined), replace(Packed.of(lengths, longest=static.longest), real=real)

    read = _source_tokens(sides)
    if sides.picked:
        answers = None if static is None else static.answers
        picked = _picked(*ends(sides.source), torch.from_numpy(wanted), examples, answers)
        return replace(picked, source_tokens=read)
    ids = torch.from_numpy(wanted)
    return TrainingBatch(*ends(sides.source), *ends(sides.given), ids, tokens, examples, source_tokens=read)


def _picked(
    source: Tensor | None, layout: Layout | None, wanted: Tensor, examples: np.ndarray, answers: int | None = None
) -> TrainingBatch:
    """A batch whose answers are picked: given are their places among all tokens of the batch, wanted those alone.

    With `answers`, there are always so many; the first place, where nothing is wanted, fills them up.
    """
    flat = wanted.reshape(-1)
    places = flat.nonzero()[:, 0]
    tokens = len(places)
    if answers is not None:
        if tokens > answers:
            raise ValueError(f"{tokens} answers are wanted of a batch that has room for {answers}")
        places = torch.nn.functional.pad(places, (0, answers - tokens))
    picked = flat[places]
    picked[tokens:] = PAD
    return TrainingBatch(source, layout, places, None, picked, tokens, examples)


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
