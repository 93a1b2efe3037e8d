"""Where a Transformer decoder stands: what its layers keep, and which of it is in the past of which hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.multi_head import KeysAndValues
from sightline.models.protocol import join_rows
from sightline.models.transformer.kv_cache import CacheJoin, Move, Movers, Slots


@dataclass(frozen=True)
class Cache:
    """What one layer keeps of the tokens so far, and of the source. (G is H but for heads that share.)"""

    own: Slots
    source: KeysAndValues | None  # (B, G, S, Dh); None: there is no source to look at


@dataclass(frozen=True)
class TransformerState:
    """The tokens so far, as slots shared by all hypotheses of a sentence.

    Hypotheses that continue others never copy keys and values: each slot was written once by one hypothesis, and
    `ancestry` (B, W, used) says which slots are in the past of which hypothesis. None: every slot is (W = 1).
    """

    caches: tuple[Cache, ...]
    layout: Layout | None
    batch: int  # B
    device: torch.device
    length: int = 0  # tokens of each hypothesis so far
    used: int = 0  # slots written
    width: int = 1
    widths: tuple[int, ...] = ()  # slots written at each of the `length` steps
    widest: int = 1  # most hypotheses of a sentence at any time so far
    ancestry: Tensor | None = None
    slots: Tensor | None = None  # (used,) the place each slot stands at, where that is asked for
    shift: Tensor | None = None  # (B, 1) places before the first token of each sentence, where some began later

    def select(self, parents: Tensor) -> TransformerState:
        width = parents.shape[1]
        if self.width == 1 and width == 1:
            return self
        past = self.ancestry
        if past is None:
            past = torch.ones(parents.shape[0], 1, self.used, dtype=torch.bool, device=parents.device)
        rows = parents[:, :, None].expand(-1, -1, self.used)
        return replace(
            self,
            caches=tuple(replace(cache, own=cache.own.select(parents)) for cache in self.caches),
            ancestry=past.gather(1, rows),
            width=width,
            widest=max(self.widest, width),
        )

    def keep(self, sentences: Tensor) -> TransformerState:
        movers = Movers.of(sentences)
        assert not isinstance(self.layout, Packed)
        caches = tuple(
            Cache(
                cache.own.keep(movers, self.used),
                cache.source and movers.move(cache.source, cache.source.keys.shape[2]),
            )
            for cache in self.caches
        )
        return replace(
            self,
            caches=caches,
            batch=len(sentences),
            layout=None if self.layout is None else self.layout.select(sentences),
            ancestry=None if self.ancestry is None else self.ancestry.index_select(0, sentences),
            shift=None if self.shift is None else self.shift.index_select(0, sentences),
        )

    def append(self, other: TransformerState) -> TransformerState:
        """The slots of both in one buffer: the last step of one beside the last step of the other.

        Steps before the first token of every sentence are dropped.
        """
        join = join_of(self, other)
        layout = None
        if isinstance(self.layout, Padded) and isinstance(other.layout, Padded):
            layout = self.layout.append(other.layout, join.device)
        caches = tuple(
            Cache(one.own.append(two.own, join), one.source and two.source and join_heads(one.source, two.source))
            for one, two in zip(self.caches, other.caches, strict=True)
        )
        shift = torch.cat([self.shift_or_zero() + join.first.late, other.shift_or_zero() + join.second.late])
        equal = self.shift is None and other.shift is None and join.first.late == join.second.late == 0
        alike = self.ancestry is None and other.ancestry is None and equal
        by_place = self.slots is not None or other.slots is not None
        return TransformerState(
            caches,
            layout,
            self.batch + other.batch,
            self.device,
            length=len(join.widths),
            used=join.count,
            width=self.width,
            widths=join.widths,
            widest=max(self.widest, other.widest),
            ancestry=None
            if alike
            else torch.cat([_joined_ancestry(self, join, join.first), _joined_ancestry(other, join, join.second)]),
            slots=join.steps() if by_place else None,
            shift=None if equal else shift,
        )

    def shift_or_zero(self) -> Tensor:
        """(B, 1)."""
        return torch.zeros(self.batch, 1, dtype=torch.int64, device=self.device) if self.shift is None else self.shift


def join_of(first: TransformerState, second: TransformerState) -> CacheJoin:
    """Where the slots of two states go; steps before the first token of every sentence are dropped."""
    both = (first, second)
    dropped = [0 if state.shift is None else int(state.shift.min()) for state in both]
    lengths = [state.length - drop for state, drop in zip(both, dropped, strict=True)]
    blank = [max(lengths) - length for length in lengths]
    aligned = [(0,) * empty + state.widths[drop:] for state, drop, empty in zip(both, dropped, blank, strict=True)]
    widths = tuple(map(max, *aligned))
    starts = [0, *accumulate(widths)]
    targets = ([start + n for start, width in zip(starts, own, strict=False) for n in range(width)] for own in aligned)
    moves = tuple(
        Move(state.batch, sum(state.widths[:drop]), state.used, target, empty - drop)
        for state, drop, target, empty in zip(both, dropped, targets, blank, strict=True)
    )
    return CacheJoin(widths, starts[-1], moves[0], moves[1], first.device)


def _joined_ancestry(state: TransformerState, join: CacheJoin, move: Move) -> Tensor:
    """(B, W, count): the slots in the past of each hypothesis."""
    past = state.ancestry
    if past is None:
        past = torch.ones(state.batch, 1, state.used, dtype=torch.bool, device=state.device)
    whole = past.new_zeros(len(past), state.width, join.count)
    whole[:, :, move.index(state.device)] = past[:, :, move.start :]
    return whole


def join_heads(first: KeysAndValues, second: KeysAndValues) -> KeysAndValues:
    """Keys and values (B, G, S, Dh) of the sources of two states."""
    return KeysAndValues(*(join_rows(*parts, dim=2) for parts in zip(first, second, strict=True)))


def copied(heads: KeysAndValues) -> KeysAndValues:
    """(B, S, G, Dh) → (B, G, S, Dh) in a memory of its own: without projections it would be the source's."""
    keys, values = (part.transpose(1, 2).clone(memory_format=torch.contiguous_format) for part in heads)
    return KeysAndValues(keys, values)


def step_places(count: int, state: TransformerState, device: torch.device) -> Tensor:
    """(1, W·T): where the new tokens stand; W hypotheses all at one place, T tokens of one at T places."""
    if state.width > 1:
        return torch.full((1, count), state.length, device=device)
    return torch.arange(state.length, state.length + count, device=device)[None, :]


def extend_slots(state: TransformerState, positions: Tensor) -> Tensor:
    """(used + W·T,): where all slots stand, the new ones behind the others. Slots are never moved, nor are these."""
    return positions[0] if state.slots is None else torch.cat([state.slots, positions[0]])


def extend_ancestry(state: TransformerState, tokens: int, device: torch.device) -> Tensor | None:
    """The ancestry with this step's slots: each hypothesis sees its own new one, T tokens of one those before them."""
    if state.ancestry is None:
        return None
    count = state.width * tokens
    own = torch.eye(count, dtype=torch.bool, device=device) if tokens == 1 else lower(count, device)
    past = state.ancestry.expand(-1, count, -1)
    return torch.cat([past, own.expand(past.shape[0], -1, -1)], dim=2)


def lower(count: int, device: torch.device) -> Tensor:
    """(count, count), True on and below the diagonal."""
    return torch.ones(count, count, dtype=torch.bool, device=device).tril()


def aligned_left(x: Tensor, shift: Tensor | None) -> Tensor:
    """(B, T, …) whose rows begin `shift` (B, 1) places late → the same from the first place on; anything behind it."""
    return x if shift is None else _moved(x, shift)


def aligned_right(x: Tensor, shift: Tensor | None) -> Tensor:
    """The way back: rows begin `shift` places late; anything before that."""
    return x if shift is None else _moved(x, -shift)


def _moved(x: Tensor, by: Tensor) -> Tensor:
    places = (torch.arange(x.shape[1], device=x.device) + by).clamp(0, x.shape[1] - 1)  # (B, T)
    flat = x.flatten(2)
    return flat.gather(1, places[..., None].expand_as(flat)).view_as(x)
