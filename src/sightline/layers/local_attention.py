"""Local attention and memory-compressed attention (Liu et al. 2018).

Both rearrange packed sequences (`blocks`, `StridedRows`) and call `attend`, so that every kernel serves them. In a
recording the explicit kernel runs over the original sequences with an equivalent mask: weights (T, S) for local
attention, (T, C) over C compressed keys. Decoding steps use the mask, too.

On CUDA and in compiled steps the new layouts have static shapes: their sizes depend only on the sizes of the old one.
Additional shapes: N tokens, M rows or blocks after the rearrangement, s the stride.
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
    """(B,) parts of up to `size` tokens in each sequence, and (N,) the part, among all, of each token."""
    each = -(-layout.offsets.diff().long() // size)
    first = each.cumsum(0) - each
    return each, layout.spread(first) + layout.index // size


def countable(device: torch.device) -> bool:
    """Whether sizes may depend on the contents of tensors: on the CPU, outside compiled graphs."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def _capacity(layout: Packed, each: Tensor, size: int, exact: bool) -> int:
    """The number of parts, exact or the maximum for so many sequences and tokens."""
    return int(each.sum()) if exact else layout.index.shape[0] // size + layout.batch


def blocks(layout: Packed, size: int) -> Packed:
    """The layout with each block of up to `size` tokens as a sequence, filled up with empty ones."""
    each, part = _parts(layout, size)
    count, longest = _capacity(layout, each, size, countable(each.device)), min(size, layout.longest)
    within = layout.index % size
    edges = torch.arange(count + 1, device=part.device)
    offsets = torch.searchsorted(part, edges, out_int32=True)  # (M + 1,)
    return Packed(offsets, within, part * longest + within, count, longest, layout.real)


def neighbours(x: Tensor, before: int, behind: int) -> Tensor:
    """(M, b, …) → (M, (before + 1 + behind)·b, …): each block with its neighbours; zeros where there is none."""
    rows, around = len(x), functional.pad(x, (0, 0) * (x.dim() - 1) + (before, behind))
    return torch.cat([around[shift : shift + rows] for shift in range(before + 1 + behind)], dim=1)


def seen_neighbours(layout: Packed, block_layout: Packed, size: int, before: int, behind: int) -> Tensor:
    """(M, (before + 1 + behind)·b), True where a neighbour of a block is a token of the same sequence.

    Empty blocks see everything: they have no queries, but some fused kernels give NaN for a query without keys, and NaN
    as the gradient of its neighbours.
    """
    last = max(layout.index.shape[0] - 1, 0)
    number = (layout.index // size)[
        block_layout.offsets[:-1].long().clamp(max=last)
    ]  # (M,) number of a block in its sequence
    lengths = block_layout.offsets.diff()
    real = torch.arange(block_layout.longest, device=number.device)[None, :] < lengths[:, None]  # (M, b)
    spots = torch.where(real, number[:, None] + 1, 0)  # (M, b) from 1; 0: padding
    shifts = torch.arange(-before, behind + 1, device=number.device).repeat_interleave(block_layout.longest)
    numbers = neighbours(spots, before, behind)
    same = (numbers > 0) & (numbers == number[:, None] + 1 + shifts)
    return same | (lengths == 0)[:, None]


@dataclass(frozen=True)
class StridedRows:
    """Rows of up to s tokens each, and the place of every token in them."""

    layout: Packed  # of the M rows, filled up with sequences of one unused row each
    anchors: Tensor  # (M,) the first token of each row
    bounds: tuple[Tensor, Tensor]  # (M,) start and end of the sequence of each row; equal for unused rows
    places: Tensor  # (N,) index of each token among the M·s
    stride: int

    @staticmethod
    def of(layout: Packed, stride: int) -> StridedRows:
        """Every s-th token of each sequence, from its first on."""
        each, part = _parts(layout, stride)
        device, exact = each.device, countable(each.device)
        count, ends = _capacity(layout, each, stride, exact), each.cumsum(0)
        if not exact:  # as many sequences again, of one unused row or none, fill up the rest
            spare = torch.arange(1, layout.batch + 1, device=device) + ends[-1]
            ends = torch.cat([ends, spare.clamp(max=count)])
        offsets = functional.pad(ends, (1, 0))  # (B' + 1,)
        rows = torch.arange(count, device=device)
        sequence = torch.searchsorted(offsets, rows, right=True) - 1  # (M,)
        index, longest = rows - offsets[sequence], -(-layout.longest // stride)
        strided = Packed(offsets.int(), index, sequence * longest + index, len(ends), longest)
        edges = functional.pad(layout.offsets.long(), (0, max(len(ends) - layout.batch, 0)), value=0)
        starts, stops = edges[sequence], edges[sequence + 1]
        stops = torch.where(sequence < layout.batch, stops, starts)
        return StridedRows(
            strided, starts + index * stride, (starts, stops), part * stride + layout.index % stride, stride
        )

    def windows(self, x: Tensor, kernel: int, *, causal: bool) -> Tensor:
        """(N, I) → (M, k·I): k tokens concatenated, the last (causal) or the first of them at the row's anchor.

        Tokens outside the sequence are zero.
        """
        first = 1 - kernel if causal else 0
        tokens = self.anchors[:, None] + torch.arange(first, first + kernel, device=x.device)  # (M, k)
        inside = (tokens >= self.bounds[0][:, None]) & (tokens < self.bounds[1][:, None])
        rows = x.index_select(0, tokens.clamp(0, len(x) - 1).flatten())  # (M·k, I)
        return rows.masked_fill(~inside.flatten()[:, None], 0.0).view(len(tokens), -1)

    def fold(self, heads: Tensor) -> Tensor:
        """(N, H, Dh) → (M, H·s, Dh): the queries of each row, head by head."""
        rows = heads.new_zeros(len(self.anchors) * self.stride, *heads.shape[1:]).index_copy(0, self.places, heads)
        return rows.unflatten(0, (-1, self.stride)).transpose(1, 2).flatten(1, 2)

    def unfold(self, heads: Tensor) -> Tensor:
        """(M, H·s, Dh) → (N, H, Dh)."""
        rows = heads.unflatten(1, (-1, self.stride)).transpose(1, 2).flatten(0, 1)
        return rows.index_select(0, self.places)


Attend = Callable[..., Tensor]  # `attend` with its score, dropout and tap


class LocalAttention(nn.Module):
    """Queries see keys of their block of b tokens, of `look_back` blocks before it and, if not causal, after it.

    ⌊s / b⌋ ≤ ⌊t / b⌋ ≤ ⌊s / b⌋ + look_back for query t and key s ≤ t (Liu et al. 2018, §4.2.4: look_back = 0).
    """

    rotates_keys = False  # the layer rotates them

    def __init__(self, block: int, look_back: int = 0) -> None:
        super().__init__()
        self.block, self.look_back = block, look_back

    @property
    def reach(self) -> int:
        """How many tokens, itself included, a query sees at most."""
        return (self.look_back + 1) * self.block

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Positions (…, T) and (…, S) → (…, T, S), True where the blocks are near enough on either side."""
        first, second = ((places / self.block).floor() for places in (queries, keys))  # exact up to millions
        return (first[..., :, None] - second[..., None, :]).abs() <= self.look_back

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, attend: Attend, causal: bool, tap: Tap | None
    ) -> Tensor:
        """Heads (…, H, Dh) of whole sequences, in this layout → the same."""
        if tap is not None:
            places = torch.arange(layout.longest, device=query.device)
            return attend(query, key, value, mask=self.sees(places, places), causal=causal, layout=(layout, layout))
        ends = packed(layout, query.device)
        query, key, value = (ends.unpad(part) if ends is not layout else part for part in (query, key, value))
        block_layout = blocks(ends, self.block)
        if self.look_back and ends.longest > self.block:
            seen = self._around(query, key, value, ends, block_layout, attend, causal)
        else:
            seen = attend(query, key, value, causal=causal, layout=(block_layout, block_layout))
        return seen if ends is layout else ends.pad(seen)

    def _around(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        ends: Packed,
        block_layout: Packed,
        attend: Attend,
        causal: bool,
    ) -> Tensor:
        """With neighbouring blocks: (N, H, Dh) → (N, H, Dh)."""
        before, behind = self.look_back, 0 if causal else self.look_back
        mask = seen_neighbours(ends, block_layout, self.block, before, behind)[:, None, None, :]  # (M, 1, 1, S)
        query, key, value = (block_layout.pad(part) for part in (query, key, value))  # (M, b, H, Dh)
        key, value = neighbours(key, before, behind), neighbours(value, before, behind)  # (M, S, H, Dh)
        seen = attend(*(part.transpose(1, 2) for part in (query, key, value)), mask=mask, causal=causal)
        return block_layout.unpad(seen.transpose(1, 2))


class CompressedAttention(nn.Module):
    """Keys and values compressed by a strided convolution over k tokens each (Liu et al. 2018, §4.2.4).

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
        """Token positions of the compressed keys `index`: their last token (causal), or the middle."""
        return index * self.stride + (0 if causal else (self.kernel - 1) // 2)

    def compress(self, windows: Sequence[Tensor], positions: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
        """Windows (…, k·G·Dh) of keys and of values at positions (…,) → compressed ones, (…, G, Dh) each."""
        keys, values = windows
        key, value = (part.unflatten(-1, (-1, head_width)) for part in (self.keys(keys), self.values(values)))
        return Rotation.at(positions, head_width)(key) if self.rotates_keys else key, value

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, attend: Attend, causal: bool, tap: Tap | None
    ) -> Tensor:
        """Heads (…, H, Dh) of whole sequences, in this layout → the same."""
        if tap is not None:
            return self._explicit(query, key, value, layout, attend, causal, tap)
        ends = packed(layout, query.device)
        query, key, value = (ends.unpad(part) if ends is not layout else part for part in (query, key, value))
        strided = StridedRows.of(ends, self.stride)
        windows = [strided.windows(part.flatten(1), self.kernel, causal=causal) for part in (key, value)]
        keys, values = self.compress(windows, self.positions(strided.layout.index, causal=causal), key.shape[-1])
        rows = attend(strided.fold(query), keys, values, causal=causal, layout=(strided.layout, strided.layout))
        seen = strided.unfold(rows)
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
        """(B, T, I) → (B, C, k·I): the tokens of each compressed key; zeros before and after a sequence."""
        if real is not None:
            x = x.masked_fill(~real[..., None], 0.0)
        count, before = -(-x.shape[1] // self.stride), self.kernel - 1 if causal else 0
        behind = max((count - 1) * self.stride + self.kernel - before - x.shape[1], 0)
        around = nn.functional.pad(x, (0, 0, before, behind))
        return around.unfold(1, self.kernel, self.stride)[:, :count].transpose(2, 3).flatten(2)


Pattern = LocalAttention | CompressedAttention


def build_pattern(recipe: AttentionPattern, width: int, *, rotary: bool) -> Pattern | None:
    """The attention pattern of a layer whose keys have `width` features over all heads; None: full attention."""
    if isinstance(recipe, LocalAttentionConfig):
        return LocalAttention(recipe.block, recipe.look_back)
    if isinstance(recipe, CompressedAttentionConfig):
        return CompressedAttention(width, recipe.kernel, recipe.stride, rotary=rotary)
    return None
