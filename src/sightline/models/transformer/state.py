"""State of a Transformer decoder: the KV cache of every layer, and the slots that each hypothesis sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.multi_head import KeysValues
from sightline.models.protocol import join_rows, keep_rows, select_hypotheses
from sightline.models.transformer.kv_cache import CacheJoin, KVCache, RowMoves, SlotMove


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer."""

    self_attention: KVCache
    cross_attention: KeysValues | None  # (B, G, S, Dh); None without a source

    def keep(self, moves: RowMoves, used: int) -> LayerCache:
        memory = self.cross_attention
        kept = None if memory is None else moves.move(memory, memory.keys.shape[2])
        return LayerCache(self.self_attention.keep(moves, used), kept)

    def append(self, other: LayerCache, join: CacheJoin) -> LayerCache:
        first, second, memory = self.cross_attention, other.cross_attention, None
        if first is not None and second is not None:
            memory = KeysValues(*(join_rows(*parts, dim=2) for parts in zip(first, second, strict=True)))
        return LayerCache(self.self_attention.append(other.self_attention, join), memory)


@dataclass(frozen=True)
class TransformerState:
    """The KV cache of B sentences with W hypotheses each, in slots that the hypotheses of a sentence share.

    Reordering hypotheses copies no keys or values: each slot is written once, by one hypothesis, and `ancestry`
    (B, W, used) marks the slots in the past of each hypothesis. None: all slots (W = 1).
    """

    kv_cache: tuple[LayerCache, ...]
    layout: Layout | None
    batch: int  # B
    device: torch.device
    length: int = 0  # tokens of each hypothesis so far
    used: int = 0  # slots written
    width: int = 1  # W
    widths: tuple[int, ...] = ()  # slots written at each of the `length` steps
    max_width: int = 1  # maximum W so far
    ancestry: Tensor | None = None
    slot_positions: Tensor | None = None  # (used,) position of each slot, for layers that need it
    left_padding: Tensor | None = None  # (B, 1) positions before the first token of each sentence; None: 0

    def select(self, parents: Tensor) -> TransformerState:
        width = parents.shape[1]
        if self.width == 1 and width == 1:
            return self
        past = self.ancestry
        if past is None:
            past = torch.ones(parents.shape[0], 1, self.used, dtype=torch.bool, device=parents.device)
        caches = (replace(cache, self_attention=cache.self_attention.select(parents)) for cache in self.kv_cache)
        return replace(
            self,
            kv_cache=tuple(caches),
            ancestry=select_hypotheses(past, parents),
            width=width,
            max_width=max(self.max_width, width),
        )

    def keep(self, sentences: Tensor) -> TransformerState:
        """Keep these sentences, and drop steps before the first token of all of them."""
        moves = RowMoves.of(sentences)
        assert not isinstance(self.layout, Packed)
        kept = replace(
            self,
            kv_cache=tuple(cache.keep(moves, self.used) for cache in self.kv_cache),
            batch=len(sentences),
            layout=None if self.layout is None else self.layout.select(sentences),
            ancestry=keep_rows(self.ancestry, sentences),
            left_padding=keep_rows(self.left_padding, sentences),
        )
        return kept._without_padding() if kept.batch else kept

    def _without_padding(self) -> TransformerState:
        """Drop the first steps, as far as they are padding in every sentence."""
        if self.left_padding is None or not (steps := int(self.left_padding.min())):
            return self
        slots = sum(self.widths[:steps])
        aligned = int(self.left_padding.max()) == steps
        return replace(
            self,
            kv_cache=tuple(replace(each, self_attention=each.self_attention.drop(slots)) for each in self.kv_cache),
            length=self.length - steps,
            used=self.used - slots,
            widths=self.widths[steps:],
            ancestry=None
            if self.ancestry is None or (aligned and self.max_width == 1)
            else self.ancestry[:, :, slots:],
            slot_positions=None if self.slot_positions is None else self.slot_positions[slots:] - steps,
            left_padding=None if aligned else self.left_padding - steps,
        )

    def append(self, other: TransformerState) -> TransformerState:
        """Join the slots of both in one buffer, last steps aligned; steps that are padding everywhere are dropped."""
        join = join_of(self, other)
        layout = None
        if isinstance(self.layout, Padded) and isinstance(other.layout, Padded):
            layout = self.layout.append(other.layout, join.device)
        parts = ((self, join.first), (other, join.second))
        aligned = all(state.left_padding is None and move.shift == 0 for state, move in parts)
        whole = aligned and self.ancestry is None and other.ancestry is None
        with_positions = self.slot_positions is not None or other.slot_positions is not None
        return TransformerState(
            tuple(one.append(two, join) for one, two in zip(self.kv_cache, other.kv_cache, strict=True)),
            layout,
            self.batch + other.batch,
            self.device,
            length=len(join.widths),
            used=join.count,
            width=self.width,
            widths=join.widths,
            max_width=max(self.max_width, other.max_width),
            ancestry=None if whole else torch.cat([_joined_ancestry(state, join, move) for state, move in parts]),
            slot_positions=join.steps() if with_positions else None,
            left_padding=None if aligned else torch.cat([_padding(state) + move.shift for state, move in parts]),
        )


def _padding(state: TransformerState) -> Tensor:
    """(B, 1)."""
    if state.left_padding is not None:
        return state.left_padding
    return torch.zeros(state.batch, 1, dtype=torch.int64, device=state.device)


def join_of(first: TransformerState, second: TransformerState) -> CacheJoin:
    """Plan the joined buffer; steps before the first token of every sentence are dropped."""
    both = (first, second)
    dropped = [0 if state.left_padding is None else int(state.left_padding.min()) for state in both]
    lengths = [state.length - drop for state, drop in zip(both, dropped, strict=True)]
    empty = [max(lengths) - length for length in lengths]
    aligned = [(0,) * blank + state.widths[drop:] for state, drop, blank in zip(both, dropped, empty, strict=True)]
    widths = tuple(map(max, *aligned))
    starts = [0, *accumulate(widths)]
    targets = ([start + n for start, width in zip(starts, own, strict=False) for n in range(width)] for own in aligned)
    moves = tuple(
        SlotMove(state.batch, sum(state.widths[:drop]), state.used, target, blank - drop)
        for state, drop, target, blank in zip(both, dropped, targets, empty, strict=True)
    )
    return CacheJoin(widths, starts[-1], moves[0], moves[1], first.device)


def _joined_ancestry(state: TransformerState, join: CacheJoin, move: SlotMove) -> Tensor:
    """(B, W, count): ancestry after a move."""
    past = state.ancestry
    if past is None:
        past = torch.ones(state.batch, 1, state.used, dtype=torch.bool, device=state.device)
    whole = past.new_zeros(len(past), state.width, join.count)
    whole[:, :, move.index(state.device)] = past[:, :, move.start :]
    return whole


def heads_first(heads: KeysValues) -> KeysValues:
    """(B, S, G, Dh) → (B, G, S, Dh), always a copy, because `keep` writes to it."""
    keys, values = (part.transpose(1, 2).clone(memory_format=torch.contiguous_format) for part in heads)
    return KeysValues(keys, values)


def step_positions(count: int, state: TransformerState, device: torch.device) -> Tensor:
    """(1, W·T): positions of the new tokens, the same for all W hypotheses (W > 1: T = 1)."""
    if state.width > 1:
        return torch.full((1, count), state.length, device=device)
    return torch.arange(state.length, state.length + count, device=device)[None, :]


def extend_slot_positions(state: TransformerState, positions: Tensor) -> Tensor:
    """(used + W·T,): positions of all slots, including those of this step (1, W·T)."""
    return positions[0] if state.slot_positions is None else torch.cat([state.slot_positions, positions[0]])


def extend_ancestry(state: TransformerState, tokens: int, device: torch.device) -> Tensor | None:
    """Add the slots of this step: each of W hypotheses sees its own, T tokens of one hypothesis are causal."""
    if state.ancestry is None:
        return None
    count = state.width * tokens
    own = torch.eye(count, dtype=torch.bool, device=device) if tokens == 1 else lower_triangle(count, device)
    past = state.ancestry.expand(-1, count, -1)
    return torch.cat([past, own.expand(past.shape[0], -1, -1)], dim=2)


def lower_triangle(count: int, device: torch.device) -> Tensor:
    """(count, count), True on and below the diagonal."""
    return torch.ones(count, count, dtype=torch.bool, device=device).tril()


def align_left(x: Tensor, left_padding: Tensor | None) -> Tensor:
    """Shift rows (B, T, …) left by their left padding (B, 1); the ends are arbitrary."""
    return x if left_padding is None else _shifted(x, left_padding)


def align_right(x: Tensor, left_padding: Tensor | None) -> Tensor:
    """The inverse of `align_left`."""
    return x if left_padding is None else _shifted(x, -left_padding)


def _shifted(x: Tensor, by: Tensor) -> Tensor:
    index = (torch.arange(x.shape[1], device=x.device) + by).clamp(0, x.shape[1] - 1)  # (B, T)
    flat = x.flatten(2)
    return flat.gather(1, index[..., None].expand_as(flat)).view_as(x)
