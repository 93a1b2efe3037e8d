"""Packed sequences cut anew, so that attention over part of them is the same attention over another layout.

- `blocks`: every block of a sequence becomes a sequence of its own (local attention).
- `Thinned`: every s-th token stands for s of them (memory-compressed attention). The s queries between two keys see the
  same keys, so they are laid beside one another as further heads: with rows of s queries, row c sees the keys up to c.

On CUDA and in compiled steps the new layouts have sizes that follow from the old one's sizes alone (static shapes).
Shapes beside the usual: N tokens, M rows or blocks after the cut, s the stride.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sightline.layers.layout import Layout, Packed


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
        """(N, H, K) → (M, H·s, K): the queries of a row beside one another, those of one head together."""
        rows = heads.new_zeros(len(self.anchors) * self.stride, *heads.shape[1:]).index_copy(0, self.places, heads)
        return rows.unflatten(0, (-1, self.stride)).transpose(1, 2).flatten(1, 2)

    def unfold(self, heads: Tensor) -> Tensor:
        """(M, H·s, K) → (N, H, K)."""
        rows = heads.unflatten(1, (-1, self.stride)).transpose(1, 2).flatten(0, 1)
        return rows.index_select(0, self.places)
