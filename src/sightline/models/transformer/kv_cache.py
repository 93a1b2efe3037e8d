"""KV cache of one layer of a Transformer decoder.

`KVCache` holds the keys and values of all tokens, `LocalKVCache` those that local attention still sees,
`CompressedKVCache` compressed keys and values. Buffers are shared with earlier caches and slots are only appended:
continue with the cache that `update` returns. Shapes: B sentences with W hypotheses of T new tokens, where W = 1 or
T = 1; G heads of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sightline.layers.attention import combine_masks
from sightline.layers.layout import Packed
from sightline.layers.local_attention import CompressedAttention, LocalAttention, Pattern
from sightline.layers.multi_head import KeysValues
from sightline.layers.positions import Relative, Rotation
from sightline.models.protocol import keep_rows, select_hypotheses


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


def _past(step: StepContext) -> Tensor | None:
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
        past = _past(step)
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


@dataclass(frozen=True)
class CompressedKVCache(KVCache):
    """Compressed keys and values (B, G, capacity, Dh), and the last k − 1 tokens of each hypothesis.

    A compressed key is visible to the same hypotheses as the last token of its window.
    """

    pattern: CompressedAttention | None = None
    count: int = 0  # number of compressed keys
    at: Tensor | None = None  # (B or 1, count) slot of the last token of each window
    valid: Tensor | None = None  # (B, count) False: padding; None: all are valid
    tail: KeysValues | None = None  # (B, W, k − 1, G·Dh) each; None: before the first token

    def update(self, new: KeysValues, step: StepContext, *, recorded: bool) -> CompressedKVCache:
        assert self.pattern is not None
        pattern, width = self.pattern, step.width
        sentences, head_width = new.keys.shape[0], new.keys.shape[-1]
        flat = [part.transpose(1, 2).flatten(2).unflatten(1, (width, -1)) for part in new]  # (B, W, T, G·Dh)
        if step.left_padding is not None and self.tail is None:  # zeros before the first token
            padding = torch.arange(flat[0].shape[2], device=step.left_padding.device) < step.left_padding  # (B, T)
            flat = [part.masked_fill(padding[:, None, :, None], 0.0) for part in flat]
        tail = self.tail or [part.new_zeros(sentences, width, pattern.kernel - 1, part.shape[3]) for part in flat]
        runs = [torch.cat([old, part], dim=2) for old, part in zip(tail, flat, strict=True)]  # (B, W, k − 1 + T, G·Dh)
        last = KeysValues(*(run[:, :, run.shape[2] - pattern.kernel + 1 :] for run in runs))
        ends, valid = _ends(step, flat[0].shape[2], pattern.stride)  # (B or 1, n) among the T, and which are valid
        if ends.shape[1] == 0:
            return replace(self, tail=last)
        positions = step.length + ends if step.left_padding is None else step.length + ends - step.left_padding
        windows = [_windows(run, ends, pattern.kernel) for run in runs]  # (B, W, n, k·G·Dh)
        compressed = pattern.compress(windows, positions[:, None], head_width)  # (B, W, n, G, Dh) each
        pair = KeysValues(*(part.flatten(1, 2).transpose(1, 2).contiguous() for part in compressed))  # (B, G, W·n, Dh)
        hypotheses = torch.arange(width, device=ends.device)
        at = (step.used + ends[:, None, :] + hypotheses[:, None]).flatten(1)  # (B or 1, W·n)
        if valid is not None:
            valid = valid.repeat(1, width)
        return replace(
            self,
            buffers=append_slots(self.buffers, self.count, pair)[0],
            count=self.count + pair.keys.shape[2],
            at=at if self.at is None else _concat_slots(self.at, at, sentences),
            valid=self._extend_valid(valid, at.shape[1], sentences, at.device),
            tail=last,
        )

    def _extend_valid(self, new: Tensor | None, count: int, sentences: int, device: torch.device) -> Tensor | None:
        """Append the validity of `count` new keys."""
        if self.valid is None and (new is None or self.count == 0):
            return new
        old = torch.ones(sentences, self.count, dtype=torch.bool, device=device) if self.valid is None else self.valid
        new = torch.ones(sentences, count, dtype=torch.bool, device=device) if new is None else new
        return torch.cat([old, new], dim=1)

    def view(self, step: StepContext, *, recorded: bool) -> View:
        assert self.buffers is not None and self.at is not None
        mask, past = None, _past(step)
        if past is not None:
            index = self.at[:, None, None, :].expand(-1, 1, past.shape[2], -1)
            rows = max(len(index), len(past))
            mask = past.expand(rows, -1, -1, -1).gather(3, index.expand(rows, -1, -1, -1))
        mask = combine_masks(mask, None if self.valid is None else self.valid[:, None, None, :])
        return View(self.buffers.keys[:, :, : self.count], self.buffers.values[:, :, : self.count], mask, False)

    def select(self, parents: Tensor) -> CompressedKVCache:
        if self.tail is None:
            return self
        return replace(self, tail=KeysValues(*(select_hypotheses(part, parents) for part in self.tail)))

    def keep(self, moves: RowMoves, used: int) -> CompressedKVCache:
        return replace(
            self,
            buffers=self.buffers and moves.move(self.buffers, self.count),
            at=self.at if self.valid is None else keep_rows(self.at, moves.sentences),
            valid=keep_rows(self.valid, moves.sentences),
            tail=self.tail and KeysValues(*(part.index_select(0, moves.sentences) for part in self.tail)),
        )

    def drop(self, slots: int) -> CompressedKVCache:
        """Drop the first slots, and the compressed keys that no sentence has."""
        if self.buffers is None or self.at is None or self.valid is None:
            return self
        known = self.valid & (self.at >= slots)
        kept = known.any(0).nonzero()[:, 0]
        return replace(
            self,
            buffers=KeysValues(*(part[:, :, : self.count].index_select(2, kept) for part in self.buffers)),
            count=len(kept),
            at=(self.at - slots).clamp(min=0)[:, kept],
            valid=known[:, kept],
        )

    def append(self, other: KVCache, join: CacheJoin) -> CompressedKVCache:
        assert isinstance(other, CompressedKVCache)
        count = max(self.count, other.count)
        both = ((self, join.first), (other, join.second))
        parts = [(each.buffers, move.rows, 0, torch.arange(each.count, device=join.device)) for each, move in both]
        slots = [each._slots_after(move, count, join.device) for each, move in both]
        tail = self.tail or other.tail
        if tail is not None:
            zeros = (KeysValues(*(part.new_zeros(move.rows, *part.shape[1:]) for part in tail)) for _, move in both)
            tails = [each.tail or blank for (each, _), blank in zip(both, zeros, strict=True)]
            tail = KeysValues(*(torch.cat(pair) for pair in zip(*tails, strict=True)))
        return replace(
            self,
            buffers=merge_buffers(parts, count),
            count=count,
            at=torch.cat([at for at, _ in slots]),
            valid=torch.cat([valid for _, valid in slots]),
            tail=tail,
        )

    def _slots_after(self, move: SlotMove, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """(B, count) each: `at` and `valid` after a move."""
        at, valid = torch.zeros(2, move.rows, count, dtype=torch.int64, device=device)
        if self.at is not None:
            old = self.at.expand(move.rows, -1)
            known = old >= move.start if self.valid is None else self.valid & (old >= move.start)
            moved = torch.tensor([0] * move.start + move.targets, dtype=torch.int64, device=device)
            at[:, : self.count] = torch.where(known, moved[old], 0)
            valid[:, : self.count] = known
        return at, valid.bool()


def _concat_slots(first: Tensor, second: Tensor, rows: int) -> Tensor:
    """(B or 1, n) and (B or 1, m) → (B or 1, n + m)."""
    if len(first) != len(second):
        first, second = first.expand(rows, -1), second.expand(rows, -1)
    return torch.cat([first, second], dim=1)


def _ends(step: StepContext, tokens: int, stride: int) -> tuple[Tensor, Tensor | None]:
    """(B or 1, n): index of the last token of each window among the T new tokens; with left padding its validity."""
    device = step.positions.device
    if step.left_padding is None:
        return torch.arange(tokens, device=device)[None, -step.length % stride :: stride], None
    first = step.length - step.left_padding  # (B, 1) position of the first new token
    start = torch.where(first < 0, -first, -first % stride)
    ends = start + torch.arange(0, tokens, stride, device=device)
    return ends.clamp(max=tokens - 1), ends < tokens


def _windows(run: Tensor, ends: Tensor, kernel: int) -> Tensor:
    """(B, W, k − 1 + T, I) → (B, W, n, k·I): windows that end at tokens `ends` (B or 1, n) of the last T."""
    index = (ends[..., None] + torch.arange(kernel, device=run.device)).flatten(1)  # (B or 1, n·k)
    index = index[:, None, :, None].expand(*run.shape[:2], -1, run.shape[3])
    return run.gather(2, index).unflatten(2, (-1, kernel)).flatten(3)


def empty_kv_cache(pattern: Pattern | None) -> KVCache:
    """The empty cache of a layer with this attention pattern."""
    if isinstance(pattern, LocalAttention):
        return LocalKVCache(pattern=pattern)
    return KVCache() if pattern is None else CompressedKVCache(pattern=pattern)
