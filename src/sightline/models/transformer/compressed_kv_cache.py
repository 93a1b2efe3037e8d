"""KV cache of a layer with compressed attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sightline.layers.attention import combine_masks
from sightline.layers.local_attention import CompressedAttention, LocalAttention, Pattern
from sightline.layers.multi_head import KeysValues
from sightline.models.protocol import keep_rows, select_hypotheses
from sightline.models.transformer.kv_cache import (
    CacheJoin,
    KVCache,
    LocalKVCache,
    RowMoves,
    SlotMove,
    StepContext,
    View,
    append_slots,
    merge_buffers,
    visible_slots,
)


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
        mask, past = None, visible_slots(step)
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
