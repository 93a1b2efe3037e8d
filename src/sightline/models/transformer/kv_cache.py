"""KV cache of one layer of a Transformer decoder.

`KVCache` holds the keys and values of all tokens, `LocalKVCache` those that local attention still sees, and
`CompressedKVCache` (compressed_kv_cache.py) compressed keys and values. Buffers are shared with earlier caches; slots
are only appended: continue with the cache that `update` returns. Shapes: B sentences with W hypotheses of T new tokens,
where W = 1 or T = 1; G heads of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sightline.layers.attention import combine_masks
from sightline.layers.layout import Packed
from sightline.layers.local_attention import LocalAttention
from sightline.layers.multi_head import KeysValues
from sightline.layers.positions import Relative, Rotation


@dataclass(frozen=True)
class StepContext:
    """Positions and masks of the new tokens of a step, shared by all layers."""

    positions: Tensor  # (1, W·T), or (B, W·T) with left padding
    used: int  # slots written before this step
    past_mask: Tensor | None  # (B, 1, W·T, used + W·T); None: causal, every slot is visible
    memory_mask: Tensor | None  # (B, 1, 1, S); None: no padding
    relative: Relative | None = None  # distances to the slots
    rotation: Rotation | None = None  # at the positions
    valid: Tensor | None = None  # (B, T), True at real tokens; None: all
    length: int = 0  # tokens of each hypothesis before this step
    width: int = 1  # W
    max_width: int = 1  # maximum W so far
    slot_positions: Tensor | None = None  # (used + W·T,) position of each slot, for layers that need it
    left_padding: Tensor | None = None  # (B, 1) positions before the first token of each sentence; None: 0
    prefill: Packed | None = None  # layout of B·T first tokens that attend to one another without the cache


class View(NamedTuple):
    """Keys and values (B, G, S, Dh) for a step, and its mask (B, 1, W·T, S)."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None
    causal: bool


@dataclass(frozen=True)
class RowMoves:
    """Sentences to keep, and which of them move to another row."""

    sentences: Tensor  # (B',)
    rows: Tensor  # (P,) rows that change
    sources: Tensor  # (P,) the rows that they are copied from

    @staticmethod
    def of(sentences: Tensor) -> RowMoves:
        rows = (sentences != torch.arange(len(sentences), device=sentences.device)).nonzero()[:, 0]
        return RowMoves(sentences, rows, sentences[rows])

    def move(self, pair: KeysValues, used: int) -> KeysValues:
        """Move rows of buffers (B, G, capacity, Dh) in place → (B', G, capacity, Dh)."""
        for tensor in pair:
            slots = tensor[:, :, :used]
            slots[self.rows] = slots[self.sources]
        count = len(self.sentences)
        return KeysValues(pair.keys[:count], pair.values[:count])


@dataclass(frozen=True)
class SlotMove:
    """New slots of a state that is joined with another."""

    rows: int  # number of sentences
    start: int  # first slot that is kept
    used: int
    targets: list[int]  # new slots of slots `start` to `used`
    shift: int  # additional left padding (negative: steps were dropped)

    def index(self, device: torch.device, since: int = 0, offset: int = 0) -> Tensor:
        """New slots of slots `since` (at least `start`) and later, in a buffer that begins at slot `offset`."""
        kept = self.targets[max(since - self.start, 0) :]
        return torch.tensor([target - offset for target in kept], dtype=torch.int64, device=device)


@dataclass(frozen=True)
class CacheJoin:
    """The plan for joining two states with the same W, with last steps aligned."""

    widths: tuple[int, ...]  # number of slots of each step: the maximum of both
    count: int  # sum of `widths`
    first: SlotMove
    second: SlotMove
    device: torch.device

    def steps(self) -> Tensor:
        """(count,): the step of each slot."""
        widths = torch.tensor(self.widths, dtype=torch.int64, device=self.device)
        return torch.arange(len(widths), device=self.device).repeat_interleave(widths)


def merge_buffers(parts: Sequence[tuple[KeysValues | None, int, int, Tensor]], count: int) -> KeysValues | None:
    """One buffer of `count` slots for the sentences of several states.

    Each part: buffer, number of sentences, first slot to keep, new slots of the slots from there on. Unwritten slots
    are zero, not NaN, because attention multiplies them by zero.
    """
    first = next((pair for pair, *_ in parts if pair is not None), None)
    if first is None:
        return None
    rows, (_, groups, _, width) = sum(rows for _, rows, _, _ in parts), first.keys.shape
    capacity = max(count + count // 2, 16)
    buffers = []
    for which in range(2):
        buffer = first.keys.new_zeros(capacity, rows, groups, width).permute(1, 2, 0, 3)
        row = 0
        for pair, own, start, index in parts:
            if pair is not None:
                buffer[row : row + own, :, index] = pair[which][:, :, start : start + len(index)]
            row += own
        buffers.append(buffer)
    return KeysValues(*buffers)


def append_slots(own: KeysValues | None, used: int, new: KeysValues, since: int = 0) -> tuple[KeysValues, int]:
    """Write new slots after the used ones; a full buffer is copied to a larger one, from slot `since` on.

    Returns the buffer and the number of dropped slots: 0 or `since`.
    """
    if own is None:
        return new, 0
    count, kept = new.keys.shape[2], used - since
    if used + count > own.keys.shape[2]:
        capacity = max(2 * (kept + count), 16)

        def grow(old: Tensor) -> Tensor:
            # slots are outermost in memory, so that the used ones are contiguous
            buffer = old.new_empty(capacity, *old.shape[:2], old.shape[3]).permute(1, 2, 0, 3)
            buffer[:, :, :kept] = old[:, :, since:used]
            return buffer

        own, used = KeysValues(grow(own.keys), grow(own.values)), kept
    else:
        since = 0
    own.keys[:, :, used : used + count] = new.keys
    own.values[:, :, used : used + count] = new.values
    return own, since


@dataclass(frozen=True)
class KVCache:
    """Keys and values of all tokens."""

    buffers: KeysValues | None = None  # (B, G, capacity, Dh); `keep` writes to them

    @property
    def empty(self) -> bool:
        return self.buffers is None

    def update(self, new: KeysValues, step: StepContext, *, recorded: bool) -> KVCache:
        """Append the keys and values (B, G, W·T, Dh) of a step. `recorded`: drop no slots."""
        return KVCache(append_slots(self.buffers, step.used, new)[0])

    def view(self, step: StepContext, *, recorded: bool) -> View:
        """Keys and values for the tokens of this step, after `update`."""
        assert self.buffers is not None
        used = step.used + step.positions.shape[1]
        keys, values = self.buffers.keys[:, :, :used], self.buffers.values[:, :, :used]
        return View(keys, values, step.past_mask, step.past_mask is None and step.positions.shape[1] > 1)

    def select(self, parents: Tensor) -> KVCache:
        """Reorder hypotheses: the state's `ancestry` selects slots, so that the cache does not change."""
        return self

    def keep(self, moves: RowMoves, used: int) -> KVCache:
        """Keep these sentences."""
        return KVCache(self.buffers and moves.move(self.buffers, used))

    def drop(self, slots: int) -> KVCache:
        """Drop the first slots. A view: memory is freed when the buffer is next copied."""
        return KVCache(self.buffers and self._without(self.buffers, slots))

    @staticmethod
    def _without(buffers: KeysValues, slots: int) -> KeysValues:
        return KeysValues(buffers.keys[:, :, slots:], buffers.values[:, :, slots:])

    def append(self, other: KVCache, join: CacheJoin) -> KVCache:
        """Add the sentences of another cache."""
        parts = [
            (each.buffers, move.rows, move.start, move.index(join.device))
            for each, move in ((self, join.first), (other, join.second))
        ]
        return KVCache(merge_buffers(parts, join.count))


def visible_slots(step: StepContext) -> Tensor | None:
    """(B or 1, 1, W·T, slots): `past_mask`, or the causal mask if it is None."""
    count = step.positions.shape[1]
    if step.past_mask is not None or count == 1:
        return step.past_mask
    device = step.positions.device
    return torch.ones(count, step.used + count, dtype=torch.bool, device=device).tril(step.used)[None, None]


@dataclass(frozen=True)
class LocalKVCache(KVCache):
    """Keys and values that local attention still sees; earlier slots are dropped when a buffer is full."""

    pattern: LocalAttention | None = None
    dropped: int = 0

    def _since(self, step: StepContext, recorded: bool) -> int:
        """Lower bound of the visible slots. (Each position has at most `max_width` slots.)"""
        assert self.pattern is not None
        return self.dropped if recorded else max(self.dropped, step.used - self.pattern.reach * step.max_width)

    def update(self, new: KeysValues, step: StepContext, *, recorded: bool) -> LocalKVCache:
        assert self.pattern is not None
        if step.prefill is not None and not recorded:  # these tokens do not attend to the cache
            first = max(0, new.keys.shape[2] - self.pattern.reach)
            return replace(self, buffers=KeysValues(*(part[:, :, first:].clone() for part in new)), dropped=first)
        since = self._since(step, recorded) - self.dropped
        buffers, dropped = append_slots(self.buffers, step.used - self.dropped, new, since)
        return replace(self, buffers=buffers, dropped=self.dropped + dropped)

    def view(self, step: StepContext, *, recorded: bool) -> View:
        assert self.buffers is not None and self.pattern is not None and step.slot_positions is not None
        since, used = self._since(step, recorded), step.used + step.positions.shape[1]
        positions = step.slot_positions[None, since:]  # (1 or B, S)
        positions = positions if step.left_padding is None else positions - step.left_padding
        past = visible_slots(step)
        visible = self.pattern.sees(step.positions, positions)[:, None]  # (1 or B, 1, W·T, S)
        mask = combine_masks(visible, None if past is None else past[..., since:])
        slots = slice(since - self.dropped, used - self.dropped)
        return View(self.buffers.keys[:, :, slots], self.buffers.values[:, :, slots], mask, False)

    def keep(self, moves: RowMoves, used: int) -> LocalKVCache:
        return replace(self, buffers=self.buffers and moves.move(self.buffers, used - self.dropped))

    def drop(self, slots: int) -> LocalKVCache:
        inside = max(0, slots - self.dropped)
        buffers = self.buffers and self._without(self.buffers, inside)
        return replace(self, buffers=buffers, dropped=max(0, self.dropped - slots))

    def append(self, other: KVCache, join: CacheJoin) -> LocalKVCache:
        assert isinstance(other, LocalKVCache)
        both = ((self, join.first), (other, join.second))
        firsts = [move.targets[max(each.dropped - move.start, 0) :][:1] for each, move in both]
        dropped = min((first[0] for first in firsts if first), default=join.count)
        parts = [
            (
                each.buffers,
                move.rows,
                max(move.start - each.dropped, 0),
                move.index(join.device, each.dropped, dropped),
            )
            for each, move in both
        ]
        return replace(self, buffers=merge_buffers(parts, join.count - dropped), dropped=dropped)
