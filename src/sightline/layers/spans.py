"""How far self-attention sees where it does not see all: its own block, or a compressed memory (Liu et al. 2018).

A span takes the heads of whole sequences and asks the one `attend` about another cut of them (cuts.py), so every kernel
serves it. While somebody listens the explicit kernel runs over the sequences as they are, with a mask that says the
same: (T, S) weights of a block, or (T, C) over C compressed keys. In steps of a search it is the mask too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from sightline.layers.cuts import Thinned, blocks, neighbours, packed, seen_neighbours
from sightline.layers.layout import Layout, Packed
from sightline.layers.linear import Linear
from sightline.layers.positions import Rotation
from sightline.layers.tap import Tap
from sightline.recipe.spans import AnySpan, CompressedSpan, LocalSpan

Attend = Callable[..., Tensor]  # `attend` with its score and dropout, and the tap if somebody listens


class Local(nn.Module):
    """Queries see keys of their own block of b tokens, of `look_back` blocks before it, and not causal as many behind.

    ⌊s / b⌋ ≤ ⌊t / b⌋ ≤ ⌊s / b⌋ + look_back for query t and key s ≤ t (Liu et al. 2018, §4.2.4: look_back = 0).
    """

    turns_keys = False  # rotary positions are the layer's affair

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
        """Heads (…, H, K) of whole sequences, as the layout says → the same."""
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
        """With blocks beside one's own: (N, H, K) → (N, H, K)."""
        before, behind = self.look_back, 0 if causal else self.look_back
        mask = seen_neighbours(ends, cut, self.block, before, behind)[:, None, None, :]  # (M, 1, 1, S)
        query, key, value = (cut.pad(part) for part in (query, key, value))  # (M, b, H, K)
        key, value = neighbours(key, before, behind), neighbours(value, before, behind)  # (M, S, H, K)
        seen = attend(*(part.transpose(1, 2) for part in (query, key, value)), mask=mask, causal=causal)
        return cut.unpad(seen.transpose(1, 2))


class Compressed(nn.Module):
    """Queries see keys and values that a strided convolution made of k tokens each (Liu et al. 2018, §4.2.4).

    k̃_c = Σ_j W_j k_{cs − k + 1 + j} + b, and ṽ_c likewise. Causal, a compressed key ends at token c·s and query t sees
    those with c·s ≤ t: all that each is made of lies at or before the query, and the first one, made of the first
    token, is there for every query. Not causal, it begins at c·s, and all are seen.
    """

    def __init__(self, width: int, kernel: int = 3, stride: int = 3, *, rotary: bool = False) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.keys, self.values = Linear(kernel * width, width), Linear(kernel * width, width)
        self.turns_keys = rotary

    def positions(self, index: Tensor, *, causal: bool) -> Tensor:
        """Where compressed keys number `index` stand, among the tokens: at the last one of them, or in their middle."""
        return index * self.stride + (0 if causal else (self.kernel - 1) // 2)

    def compress(self, windows: Sequence[Tensor], positions: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
        """Windows (…, k·G·K) of keys and of values, and where they stand (…,) → two of (…, G, K)."""
        keys, values = windows
        key, value = (part.unflatten(-1, (-1, head_width)) for part in (self.keys(keys), self.values(values)))
        return Rotation.at(positions, head_width)(key) if self.turns_keys else key, value

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, attend: Attend, causal: bool, tap: Tap | None
    ) -> Tensor:
        """Heads (…, H, K) of whole sequences, as the layout says → the same."""
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
        """The same step by step, over padded sequences: (…, H, K) → (…, H, K)."""
        query, key, value = (layout.pad(part) for part in (query, key, value))  # (B, T, ·, K)
        real = layout.key_mask()  # (B, T)
        windows = [self._windows(part.flatten(2), real, causal) for part in (key, value)]  # (B, C, k·G·K)
        tokens = torch.arange(layout.longest, device=query.device)
        index = torch.arange(windows[0].shape[1], device=query.device)
        keys, values = self.compress(windows, self.positions(index, causal=causal), key.shape[-1])
        keys = tap("compressed_key", keys, "Σ_j W_j key_{c·s+j} + b", ["key"])  # (B, C, G, K)
        values = tap("compressed_value", values, "Σ_j W_j value_{c·s+j} + b", ["value"])
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


Span = Local | Compressed


def build_span(recipe: AnySpan, width: int, *, rotary: bool) -> Span | None:
    """The span of a layer whose keys have `width` features over all heads; None: everything is seen."""
    if isinstance(recipe, LocalSpan):
        return Local(recipe.block, recipe.look_back)
    if isinstance(recipe, CompressedSpan):
        return Compressed(width, recipe.kernel, recipe.stride, rotary=rotary)
    return None
