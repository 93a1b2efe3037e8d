"""LocalAttention and memory-compressed self-attention (Liu et al. 2018).

Both rearrange packed sequences (`split_blocks`, `Thinned`) and call the one `attend`, so every kernel serves them. In a
recording the explicit kernel runs over the sequences as they are, with a mask of the same meaning: (T, S) weights for
local attention, (T, C) over C compressed keys. Steps of a search use the mask, too.

On CUDA and in compiled steps the new layouts have static shapes: their sizes follow from the old layout's sizes alone.
Shapes beside the usual: N tokens, M rows or blocks after the rearrangement, s the stride.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from sightline.layers.layout import Layout, Packed
from sightline.layers.linear import Linear
from sightline.layers.positions import Rotation
from sightline.layers.tap import Tap
from sightline.recipe.model import AttentionPattern, CompressedAttentionConfig, LocalAttentionConfig


def packed(layout: Layout, device: torch.device) -> Packed:
    """The same sequences end to end."""
    return layout if isinstance(layout, Packed) else Packed.of(layout.lengths, device, longest=layout.longest)


def _parts(layout: Packed, size: int) -> tuple[Tensor, Tensor]:
    """(B,) how many parts of up to `size` tokens each sequence has, and (N,) in which part of all each token is."""
    each = -(-layout.offsets.diff().long() // size)
    first = each.cumsum(0) - each
    return each, layout.spread(first) + layout.index // size


def countable(device: torch.device) -> bool:
    """Whether a size may follow from what is in a tensor: nobody waits for it, and nothing is compiled for one size."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def _room(layout: Packed, each: Tensor, size: int, exact: bool) -> int:
    """How many parts there are, exactly or the most that so many sequences and tokens may have."""
    return int(each.sum()) if exact else layout.index.shape[0] // size + layout.batch


def blocks(layout: Packed, size: int) -> Packed:
    """Each block of up to `size` tokens as a sequence; where room is left, empty ones follow."""
    each, part = _parts(layout, size)
    count, longest = _room(layout, each, size, countable(each.device)), min(size, layout.longest)
    within = layout.index % size
    edges = torch.arange(count + 1, device=part.device)
    offsets = torch.searchsorted(part, edges, out_int32=True)  # (M + 1,)
    return Packed(offsets, within, part * longest + within, count, longest, layout.real)


def neighbours(x: Tensor, before: int, behind: int) -> Tensor:
    """(M, b, …) → (M, (before + 1 + behind)·b, …): each row between its neighbours; zeros where there is none."""
    rows, around = len(x), functional.pad(x, (0, 0) * (x.dim() - 1) + (before, behind))
    return torch.cat([around[shift : shift + rows] for shift in range(before + 1 + behind)], dim=1)


def seen_neighbours(layout: Packed, cut: Packed, size: int, before: int, behind: int) -> Tensor:
    """(M, (before + 1 + behind)·b), True where a neighbour of a block is a token of the same sequence.

    Where room is left, an empty block sees all: its queries are nobody's, but in some fused kernels a query that sees
    nothing is not a number, and neither is the gradient of the neighbours it does not see.
    """
    last = max(layout.index.shape[0] - 1, 0)
    number = (layout.index // size)[cut.offsets[:-1].long().clamp(max=last)]  # (M,) which of its sequence a block is
    lengths = cut.offsets.diff()
    real = torch.arange(cut.longest, device=number.device)[None, :] < lengths[:, None]  # (M, b)
    spots = torch.where(real, number[:, None] + 1, 0)  # (M, b) from 1 on; 0: nothing stands there
    shifts = torch.arange(-before, behind + 1, device=number.device).repeat_interleave(cut.longest)
    found = neighbours(spots, before, behind)
    same = (found > 0) & (found == number[:, None] + 1 + shifts)
    return same | (lengths == 0)[:, None]


@dataclass(frozen=True)
class Thinned:
    """Rows that stand for up to s tokens each, and where the tokens are in them."""

    layout: Packed  # of the M rows; where room is left, sequences of one row each follow that stand for nothing
    anchors: Tensor  # (M,) the first token of each row
    bounds: tuple[Tensor, Tensor]  # (M,) where the sequence of each row begins and ends; twice the same: nothing there
    places: Tensor  # (N,) where each token is among the M·s
    stride: int

    @staticmethod
    def of(layout: Packed, stride: int) -> Thinned:
        """Every s-th token of each sequence, from its first on."""
        each, part = _parts(layout, stride)
        device, exact = each.device, countable(each.device)
        count, ends = _room(layout, each, stride, exact), each.cumsum(0)
        if not exact:  # as many sequences again, for what is left of the room: a row each, or none
            spare = torch.arange(1, layout.batch + 1, device=device) + ends[-1]
            ends = torch.cat([ends, spare.clamp(max=count)])
        offsets = functional.pad(ends, (1, 0))  # (B' + 1,)
        rows = torch.arange(count, device=device)
        sequence = torch.searchsorted(offsets, rows, right=True) - 1  # (M,)
        index, longest = rows - offsets[sequence], -(-layout.longest // stride)
        thin = Packed(offsets.int(), index, sequence * longest + index, len(ends), longest)
        edges = functional.pad(layout.offsets.long(), (0, max(len(ends) - layout.batch, 0)), value=0)
        starts, stops = edges[sequence], edges[sequence + 1]
        stops = torch.where(sequence < layout.batch, stops, starts)
        return Thinned(thin, starts + index * stride, (starts, stops), part * stride + layout.index % stride, stride)

    def windows(self, x: Tensor, kernel: int, *, causal: bool) -> Tensor:
        """(N, I) → (M, k·I): k tokens end to end, the last (causal) or the first of them at the row's anchor.

        What stands before a sequence or behind it is zero.
        """
        first = 1 - kernel if causal else 0
        tokens = self.anchors[:, None] + torch.arange(first, first + kernel, device=x.device)  # (M, k)
        inside = (tokens >= self.bounds[0][:, None]) & (tokens < self.bounds[1][:, None])
        found = x.index_select(0, tokens.clamp(0, len(x) - 1).flatten())  # (M·k, I)
        return found.masked_fill(~inside.flatten()[:, None], 0.0).view(len(tokens), -1)

    def fold(self, heads: Tensor) -> Tensor:
        """(N, H, Dh) → (M, H·s, Dh): the queries of a row beside one another, those of one head together."""
        rows = heads.new_zeros(len(self.anchors) * self.stride, *heads.shape[1:]).index_copy(0, self.places, heads)
        return rows.unflatten(0, (-1, self.stride)).transpose(1, 2).flatten(1, 2)

    def unfold(self, heads: Tensor) -> Tensor:
        """(M, H·s, Dh) → (N, H, Dh)."""
        rows = heads.unflatten(1, (-1, self.stride)).transpose(1, 2).flatten(0, 1)
        return rows.index_select(0, self.places)


Attend = Callable[..., Tensor]  # `attend` with its score and dropout, and the tap if somebody listens


class LocalAttention(nn.Module):
    """Queries see keys of their own block of b tokens, of `look_back` blocks before it, and not causal as many behind.

    ⌊s / b⌋ ≤ ⌊t / b⌋ ≤ ⌊s / b⌋ + look_back for query t and key s ≤ t (Liu et al. 2018, §4.2.4: look_back = 0).
    """

    rotates_keys = False  # rotary positions are the layer's affair

    def __init__(self, block: int, look_back: int = 0) -> None:
        super().__init__()
        self.block, self.look_back = block, look_back

    @property
    def reach(self) -> int:
        """How many tokens up to itself a query may see."""
        return (self.look_back + 1) * self.block

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Positions (…, T) and (…, S) → (…, T, S), True where the blocks are near enough on either side."""
        first, second = ((places / self.block).floor() for places in (queries, keys))  # exact up to millions
        return (first[..., :, None] - second[..., None, :]).abs() <= self.look_back

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, attend: Attend, causal: bool, tap: Tap | None
    ) -> Tensor:
        """Heads (…, H, Dh) of whole sequences, as the layout says → the same."""
        if tap is not None:
            places = torch.arange(layout.longest, device=query.device)
            return attend(query, key, value, mask=self.sees(places, places), causal=causal, layout=(layout, layout))
        ends = packed(layout, query.device)
        query, key, value = (ends.unpad(part) if ends is not layout else part for part in (query, key, value))
        cut = blocks(ends, self.block)
        if self.look_back and ends.longest > self.block:
            seen = self._around(query, key, value, ends, cut, attend, causal)
        else:
            seen = attend(query, key, value, causal=causal, layout=(cut, cut))
        return seen if ends is layout else ends.pad(seen)

    def _around(
        self, query: Tensor, key: Tensor, value: Tensor, ends: Packed, cut: Packed, attend: Attend, causal: bool
    ) -> Tensor:
        """With blocks beside one's own: (N, H, Dh) → (N, H, Dh)."""
        before, behind = self.look_back, 0 if causal else self.look_back
        mask = seen_neighbours(ends, cut, self.block, before, behind)[:, None, None, :]  # (M, 1, 1, S)
        query, key, value = (cut.pad(part) for part in (query, key, value))  # (M, b, H, Dh)
        key, value = neighbours(key, before, behind), neighbours(value, before, behind)  # (M, S, H, Dh)
        seen = attend(*(part.transpose(1, 2) for part in (query, key, value)), mask=mask, causal=causal)
        return cut.unpad(seen.transpose(1, 2))


class CompressedAttention(nn.Module):
    """Queries see keys and values that a strided convolution made of k tokens each (Liu et al. 2018, §4.2.4).

    k̃_c = Σ_j W_j k_{cs − k + 1 + j} + b, and ṽ_c likewise. Causal, a compressed key ends at token c·s and query t sees
    those with c·s ≤ t: all that each is made of lies at or before the query, and the first one, made of the first
    token, is there for every query. Not causal, it begins at c·s, and all are seen.
    """

    entry_points: ClassVar[tuple[str, ...]] = ("compress",)

    def __init__(self, width: int, kernel: int = 3, stride: int = 3, *, rotary: bool = False) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.keys, self.values = Linear(kernel * width, width), Linear(kernel * width, width)
        self.rotates_keys = rotary

    def positions(self, index: Tensor, *, causal: bool) -> Tensor:
        """Where compressed keys number `index` stand, among the tokens: at the last one of them, or in their middle."""
        return index * self.stride + (0 if causal else (self.kernel - 1) // 2)

    def compress(self, windows: Sequence[Tensor], positions: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
        """Windows (…, k·G·Dh) of keys and of values, and where they stand (…,) → two of (…, G, Dh)."""
        keys, values = windows
        key, value = (part.unflatten(-1, (-1, head_width)) for part in (self.keys(keys), self.values(values)))
        return Rotation.at(positions, head_width)(key) if self.rotates_keys else key, value

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, attend: Attend, causal: bool, tap: Tap | None
    ) -> Tensor:
        """Heads (…, H, Dh) of whole sequences, as the layout says → the same."""
        if tap is not None:
            return self._explicit(query, key, value, layout, attend, causal, tap)
        ends = packed(layout, query.device)
        query, key, value = (ends.unpad(part) if ends is not layout else part for part in (query, key, value))
        thin = Thinned.of(ends, self.stride)
        windows = [thin.windows(part.flatten(1), self.kernel, causal=causal) for part in (key, value)]
        keys, values = self.compress(windows, self.positions(thin.layout.index, causal=causal), key.shape[-1])
        rows = attend(thin.fold(query), keys, values, causal=causal, layout=(thin.layout, thin.layout))
        seen = thin.unfold(rows)
        return seen if ends is layout else ends.pad(seen)

    def _explicit(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, attend: Attend, causal: bool, tap: Tap
    ) -> Tensor:
        """The same step by step, over padded sequences: (…, H, Dh) → (…, H, Dh)."""
        query, key, value = (layout.pad(part) for part in (query, key, value))  # (B, T, ·, Dh)
        real = layout.key_mask()  # (B, T)
        windows = [self._windows(part.flatten(2), real, causal) for part in (key, value)]  # (B, C, k·G·Dh)
        tokens = torch.arange(layout.longest, device=query.device)
        index = torch.arange(windows[0].shape[1], device=query.device)
        keys, values = self.compress(windows, self.positions(index, causal=causal), key.shape[-1])
        thinned = {1: self.stride}
        keys = tap("compressed_key", keys, "Σ_j W_j key_{c·s+j} + b", ["key"], axes=thinned)  # (B, C, G, Dh)
        values = tap("compressed_value", values, "Σ_j W_j value_{c·s+j} + b", ["value"], axes=thinned)
        mask = index * self.stride <= tokens[:, None] if causal else None  # (T, C)
        if real is not None:
            there = real[:, None, None, :: self.stride]  # (B, 1, 1, C)
            mask = there if mask is None else mask & there
        seen = attend(*(part.transpose(1, 2) for part in (query, keys, values)), mask=mask)
        return layout.unpad(seen.transpose(1, 2))

    def _windows(self, x: Tensor, real: Tensor | None, causal: bool) -> Tensor:
        """(B, T, I) → (B, C, k·I): what each compressed key is made of; zeros before a sequence and behind it."""
        if real is not None:
            x = x.masked_fill(~real[..., None], 0.0)
        count, before = -(-x.shape[1] // self.stride), self.kernel - 1 if causal else 0
        behind = max((count - 1) * self.stride + self.kernel - before - x.shape[1], 0)
        around = nn.functional.pad(x, (0, 0, before, behind))
        return around.unfold(1, self.kernel, self.stride)[:, :count].transpose(2, 3).flatten(2)


Pattern = LocalAttention | CompressedAttention


def build_pattern(recipe: AttentionPattern, width: int, *, rotary: bool) -> Pattern | None:
    """The span of a layer whose keys have `width` features over all heads; None: everything is seen."""
    if isinstance(recipe, LocalAttentionConfig):
        return LocalAttention(recipe.block, recipe.look_back)
    if isinstance(recipe, CompressedAttentionConfig):
        return CompressedAttention(width, recipe.kernel, recipe.stride, rotary=rotary)
    return None
