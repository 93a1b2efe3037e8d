"""Local attention and memory-compressed attention (Liu et al. 2018).

Both rearrange packed sequences (`blocks`, `StridedRows`) and call `attend` with any kernel. Recordings and decoding
steps use the original sequences with an equivalent mask: weights (T, S) for local attention, (T, C) for C compressed
keys.

On CUDA and in compiled steps the new layouts have static shapes, which depend only on the shape of the old one.
Additional shapes: N tokens, M rows or blocks after the rearrangement, s the stride.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from sightline.layers.attention import combine_masks
from sightline.layers.layout import Layout, Packed
from sightline.layers.linear import Linear
from sightline.layers.positions import Rotation
from sightline.layers.tap import Tap
from sightline.recipe.model import AttentionPattern, CompressedAttentionConfig, LocalAttentionConfig


def packed(layout: Layout, device: torch.device) -> Packed:
    """Convert to a packed layout."""
    return layout if isinstance(layout, Packed) else Packed.of(layout.lengths, device, longest=layout.longest)


def _parts(layout: Packed, size: int) -> tuple[Tensor, Tensor]:
    """Split sequences into parts of `size` tokens: (B,) number of parts, (N,) index of each token's part among all."""
    each = -(-layout.offsets.diff().long() // size)
    first = each.cumsum(0) - each
    return each, layout.spread(first) + layout.index // size


def countable(device: torch.device) -> bool:
    """True if shapes may depend on values: on the CPU, outside compiled graphs."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def _capacity(layout: Packed, each: Tensor, size: int, exact: bool) -> int:
    """The number of parts, or its maximum for this number of sequences and tokens."""
    return int(each.sum()) if exact else layout.index.shape[0] // size + layout.batch


def blocks(layout: Packed, size: int) -> Packed:
    """The layout with each block of up to `size` tokens as a sequence, followed by empty ones."""
    each, part = _parts(layout, size)
    count, longest = _capacity(layout, each, size, countable(each.device)), min(size, layout.longest)
    within = layout.index % size
    edges = torch.arange(count + 1, device=part.device)
    offsets = torch.searchsorted(part, edges, out_int32=True)  # (M + 1,)
    return Packed(offsets, within, part * longest + within, count, longest, layout.real)


def neighbours(x: Tensor, before: int, behind: int) -> Tensor:
    """(M, b, …) → (M, (before + 1 + behind)·b, …): each block with its neighbours, zero-padded at the ends."""
    rows, around = len(x), functional.pad(x, (0, 0) * (x.dim() - 1) + (before, behind))
    return torch.cat([around[shift : shift + rows] for shift in range(before + 1 + behind)], dim=1)


def seen_neighbours(layout: Packed, block_layout: Packed, size: int, before: int, behind: int) -> Tensor:
    """(M, (before + 1 + behind)·b), True at tokens of neighbouring blocks in the same sequence.

    Empty blocks have no queries but see everything, because some fused kernels return NaN for queries without keys, and
    NaN as the gradient of the neighbours.
    """
    firsts = block_layout.offsets[:-1].long().clamp(max=max(layout.index.shape[0] - 1, 0))
    number = (layout.index // size)[firsts]  # (M,) index of each block in its sequence
    lengths = block_layout.offsets.diff()
    real = torch.arange(block_layout.longest, device=number.device)[None, :] < lengths[:, None]  # (M, b)
    numbers = neighbours(torch.where(real, number[:, None] + 1, 0), before, behind)  # from 1; 0: padding
    shifts = torch.arange(-before, behind + 1, device=number.device).repeat_interleave(block_layout.longest)
    same = (numbers > 0) & (numbers == number[:, None] + 1 + shifts)
    return same | (lengths == 0)[:, None]


@dataclass(frozen=True)
class StridedRows:
    """Sequences split into rows of s tokens."""

    layout: Packed  # of the M rows, followed by sequences of one unused row each
    anchors: Tensor  # (M,) first token of each row
    bounds: tuple[Tensor, Tensor]  # (M,) start and end of each row's sequence; equal for unused rows
    places: Tensor  # (N,) index of each token in the flattened rows (M·s)
    stride: int

    @staticmethod
    def of(layout: Packed, stride: int) -> StridedRows:
        """Rows that start at every s-th token of each sequence."""
        each, part = _parts(layout, stride)
        device, exact = each.device, countable(each.device)
        count, ends = _capacity(layout, each, stride, exact), each.cumsum(0)
        if not exact:  # add B sequences of at most one unused row, so that the rows sum to `count`
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
        """(N, I) → (M, k·I): concatenate k tokens, the last (causal) or the first at the anchor, zeros outside."""
        first = 1 - kernel if causal else 0
        tokens = self.anchors[:, None] + torch.arange(first, first + kernel, device=x.device)  # (M, k)
        inside = (tokens >= self.bounds[0][:, None]) & (tokens < self.bounds[1][:, None])
        rows = x.index_select(0, tokens.clamp(0, len(x) - 1).flatten())  # (M·k, I)
        return rows.masked_fill(~inside.flatten()[:, None], 0.0).view(len(tokens), -1)

    def fold(self, heads: Tensor) -> Tensor:
        """(N, H, Dh) → (M, H·s, Dh): queries of each row, by head."""
        rows = heads.new_zeros(len(self.anchors) * self.stride, *heads.shape[1:]).index_copy(0, self.places, heads)
        return rows.unflatten(0, (-1, self.stride)).transpose(1, 2).flatten(1, 2)

    def unfold(self, heads: Tensor) -> Tensor:
        """(M, H·s, Dh) → (N, H, Dh)."""
        rows = heads.unflatten(1, (-1, self.stride)).transpose(1, 2).flatten(0, 1)
        return rows.index_select(0, self.places)


Attend = Callable[..., Tensor]  # `attend` with score, dropout and tap bound


class LocalAttention(nn.Module):
    """Queries see the keys of their block of b tokens, of `look_back` blocks before it and, if not causal, after it.

    ⌊s / b⌋ ≤ ⌊t / b⌋ ≤ ⌊s / b⌋ + look_back for query t and key s ≤ t (Liu et al. 2018, §4.2.4: look_back = 0).
    """

    rotates_keys = False  # MultiHeadAttention rotates them

    def __init__(self, block: int, look_back: int = 0) -> None:
        super().__init__()
        self.block, self.look_back = block, look_back

    @property
    def reach(self) -> int:
        """Maximum number of tokens that a query sees, itself included."""
        return (self.look_back + 1) * self.block

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Positions (…, T) and (…, S) → (…, T, S), True where the blocks are at most `look_back` apart."""
        query_blocks, key_blocks = ((positions / self.block).floor() for positions in (queries, keys))
        return (query_blocks[..., :, None] - key_blocks[..., None, :]).abs() <= self.look_back

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, attend: Attend, causal: bool, tap: Tap | None
    ) -> Tensor:
        """(…, H, Dh) of whole sequences → the same shape."""
        if tap is not None:
            positions = torch.arange(layout.longest, device=query.device)
            mask = self.sees(positions, positions)  # (T, S)
            return attend(query, key, value, mask=mask, causal=causal, layout=(layout, layout))
        ends = packed(layout, query.device)
        query, key, value = (ends.unpad(part) if ends is not layout else part for part in (query, key, value))
        block_layout = blocks(ends, self.block)
        if self.look_back and ends.longest > self.block:
            before, behind = self.look_back, 0 if causal else self.look_back
            mask = seen_neighbours(ends, block_layout, self.block, before, behind)[:, None, None, :]  # (M, 1, 1, S)
            query, key, value = (block_layout.pad(part) for part in (query, key, value))  # (M, b, H, Dh)
            key, value = neighbours(key, before, behind), neighbours(value, before, behind)  # (M, S, H, Dh)
            context = attend(*(part.transpose(1, 2) for part in (query, key, value)), mask=mask, causal=causal)
            context = block_layout.unpad(context.transpose(1, 2))
        else:
            context = attend(query, key, value, causal=causal, layout=(block_layout, block_layout))
        return context if ends is layout else ends.pad(context)


class CompressedAttention(nn.Module):
    """Keys and values compressed by a strided convolution over k tokens (Liu et al. 2018, §4.2.4).

    k̃_c = Σ_j W_j k_{cs − k + 1 + j} + b, and ṽ_c likewise. Causal: window c ends at token c·s, and query t sees the
    windows with c·s ≤ t, which include the first one for every t. Not causal: window c starts at token c·s, and every
    query sees all of them.
    """

    entry_points: ClassVar[tuple[str, ...]] = ("compress",)

    def __init__(self, width: int, kernel: int = 3, stride: int = 3, *, rotary: bool = False) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.keys, self.values = Linear(kernel * width, width), Linear(kernel * width, width)
        self.rotates_keys = rotary

    def positions(self, index: Tensor, *, causal: bool) -> Tensor:
        """Token positions of compressed keys: the last token of the window (causal), or the middle."""
        return index * self.stride + (0 if causal else (self.kernel - 1) // 2)

    def compress(self, windows: Sequence[Tensor], positions: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
        """Windows (…, k·G·Dh) of keys and of values at positions (…,) → compressed keys and values (…, G, Dh)."""
        key_windows, value_windows = windows
        key, value = self.keys(key_windows), self.values(value_windows)  # (…, G·Dh)
        key, value = (part.unflatten(-1, (-1, head_width)) for part in (key, value))
        return Rotation.at(positions, head_width)(key) if self.rotates_keys else key, value

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, attend: Attend, causal: bool, tap: Tap | None
    ) -> Tensor:
        """(…, H, Dh) of whole sequences → the same shape."""
        if tap is not None:
            return self._explicit(query, key, value, layout, attend, causal, tap)
        ends = packed(layout, query.device)
        query, key, value = (ends.unpad(part) if ends is not layout else part for part in (query, key, value))
        strided = StridedRows.of(ends, self.stride)
        windows = [strided.windows(part.flatten(1), self.kernel, causal=causal) for part in (key, value)]
        keys, values = self.compress(windows, self.positions(strided.layout.index, causal=causal), key.shape[-1])
        rows = attend(strided.fold(query), keys, values, causal=causal, layout=(strided.layout, strided.layout))
        context = strided.unfold(rows)
        return context if ends is layout else ends.pad(context)

    def _explicit(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, attend: Attend, causal: bool, tap: Tap
    ) -> Tensor:
        """The same over padded sequences, with taps: (…, H, Dh) → (…, H, Dh)."""
        query, key, value = (layout.pad(part) for part in (query, key, value))  # (B, T, ·, Dh)
        real = layout.key_mask()  # (B, T)
        windows = [self._windows(part.flatten(2), real, causal) for part in (key, value)]  # (B, C, k·G·Dh)
        tokens = torch.arange(layout.longest, device=query.device)
        index = torch.arange(windows[0].shape[1], device=query.device)
        keys, values = self.compress(windows, self.positions(index, causal=causal), key.shape[-1])
        axes = {1: self.stride}
        keys = tap("compressed_key", keys, "Σ_j W_j key_{c·s+j} + b", ["key"], axes=axes)  # (B, C, G, Dh)
        values = tap("compressed_value", values, "Σ_j W_j value_{c·s+j} + b", ["value"], axes=axes)
        mask = index * self.stride <= tokens[:, None] if causal else None  # (T, C)
        if real is not None:
            mask = combine_masks(mask, real[:, None, None, :: self.stride])  # (B, 1, T or 1, C)
        context = attend(*(part.transpose(1, 2) for part in (query, keys, values)), mask=mask)
        return layout.unpad(context.transpose(1, 2))

    def _windows(self, x: Tensor, real: Tensor | None, causal: bool) -> Tensor:
        """(B, T, I) → (B, C, k·I): the tokens of each compressed key, zeros outside the sequence."""
        if real is not None:
            x = x.masked_fill(~real[..., None], 0.0)
        count, before = -(-x.shape[1] // self.stride), self.kernel - 1 if causal else 0
        behind = max((count - 1) * self.stride + self.kernel - before - x.shape[1], 0)
        around = nn.functional.pad(x, (0, 0, before, behind))
        return around.unfold(1, self.kernel, self.stride)[:, :count].transpose(2, 3).flatten(2)


Pattern = LocalAttention | CompressedAttention


def build_pattern(recipe: AttentionPattern, width: int, *, rotary: bool) -> Pattern | None:
    """Build the attention pattern of a layer whose heads of keys have `width` features in all; None: full attention."""
    if isinstance(recipe, LocalAttentionConfig):
        return LocalAttention(recipe.block, recipe.look_back)
    if isinstance(recipe, CompressedAttentionConfig):
        return CompressedAttention(width, recipe.kernel, recipe.stride, rotary=rotary)
    return None
