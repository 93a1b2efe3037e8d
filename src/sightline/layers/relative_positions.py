"""Order as distance: what the scores of self-attention gain from how far a key stands from its query.

A distance is the key's position minus the query's: negative in the past. Two of the kinds are a bias that every layer
of a stack shares (`Alibi`, `Buckets`), one is made of each layer's queries (`RelativeKeys`). None knows a longest
length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.layers.devices import widest
from sightline.recipe.bodies import Positions


@dataclass(frozen=True)
class Distances:
    """Where T queries and S keys stand; the same in every sentence of a batch."""

    queries: Tensor  # (T,)
    keys: Tensor  # (S,)
    whole: bool = False  # both are 0 … T − 1, as in training

    @staticmethod
    def within(count: int, device: torch.device) -> Distances:
        """Between all positions of sequences that are there as a whole."""
        positions = torch.arange(count, device=device)
        return Distances(positions, positions, whole=True)

    def matrix(self) -> Tensor:
        """(T, S): key's position − query's."""
        return self.keys[None, :] - self.queries[:, None]


@dataclass(frozen=True)
class Relative:
    """What a stack tells the self-attention of each of its layers."""

    distances: Distances
    bias: Tensor | None = None  # (1, H, T, S), where all layers share one


def slopes(heads: int) -> Tensor:
    """(H,): m_h = 2^(−8h/H) for h = 1 … H (Press et al. 2022, §3)."""
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


class Alibi(nn.Module):
    """−m_h · |distance| on the scores; nothing is learned (Press et al. 2022). In an encoder both sides fade alike."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", slopes(heads), persistent=False)
        self.slopes: Tensor

    def forward(self, distances: Distances) -> Tensor:
        return (-self.slopes[:, None, None] * distances.matrix().abs())[None]  # (1, H, T, S)


def buckets_of(distances: Tensor, buckets: int, farthest: int, causal: bool) -> Tensor:
    """The bucket of each distance (Raffel et al. 2020, §2.1; the formula is that of their code).

    Half of them hold one distance each, the others grow with its logarithm up to `farthest`; what is farther is in
    the last. Without `causal`, half are for keys behind the query and half for those before it.
    """
    if causal:
        first, ago = torch.zeros_like(distances), (-distances).clamp(min=0)
    else:
        buckets //= 2
        first, ago = (distances > 0) * buckets, distances.abs()
    exact = buckets // 2
    share = torch.log(widest(ago.clamp(min=1)) / exact) / math.log(farthest / exact)  # 0 at `exact`, 1 at `farthest`
    far = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(ago < exact, ago, far)


class Buckets(nn.Module):
    """One learned bias for each head and bucket of distances (Raffel et al. 2020). (We keep the scale 1/√K.)"""

    def __init__(self, heads: int, width: int, buckets: int, farthest: int, *, causal: bool) -> None:
        super().__init__()
        self.buckets, self.farthest, self.causal = buckets, farthest, causal
        self.table = nn.Parameter(torch.randn(heads, buckets) * width**-0.5)

    def forward(self, distances: Distances) -> Tensor:
        index = buckets_of(distances.matrix(), self.buckets, self.farthest, self.causal)  # (T, S)
        return self.table[:, index][None]  # (1, H, T, S)


def skew(products: Tensor, count: int) -> Tensor:
    """(…, T, R), column r at distance r − (T − 1) → (…, T, T), column s at position s (Huang et al. 2018, §3.4.1).

    Row t wants its columns from T − 1 − t on. In memory that is one step of R − 1 a row instead of R, so nothing is
    copied or indexed. Distances that have no column show some other row's number.
    """
    width = products.shape[-1] - 1
    flat = products.flatten(-2)[..., count - 1 : count - 1 + count * width]
    return flat.unflatten(-1, (count, width))[..., :count]


class RelativeKeys(nn.Module):
    """q·a_{j−i} on the scores: a learned vector for each distance, clipped at `farthest` (Shaw et al. 2018, §3.2).

    The heads share the vectors; the layers do not. Their variant with vectors for the values too, which they found may
    not be needed (§4.3), is left out. All products of queries and vectors are made first and then put in place, never
    a (T, S, K) tensor of vectors.
    """

    def __init__(self, head_width: int, farthest: int, *, causal: bool) -> None:
        super().__init__()
        self.farthest, self.causal = farthest, causal
        count = farthest + 1 if causal else 2 * farthest + 1
        self.table = nn.Parameter(torch.randn(count, head_width) * head_width**-0.5)

    def index(self, distances: Tensor) -> Tensor:
        """Which row of the table a distance has."""
        return distances.clamp(-self.farthest, 0 if self.causal else self.farthest) + self.farthest

    def forward(self, query: Tensor, distances: Distances) -> Tensor:
        """(B, H, T, K) → (B, H, T, S). In a causal stack, what stands at later keys has no meaning."""
        count = query.shape[-2]
        if distances.whole:
            last = 1 if self.causal else count  # one past those that are needed: `skew` steps over it
            columns = torch.arange(1 - count, last + 1, device=query.device)  # (R,)
            return skew(query @ self.table[self.index(columns)].mT, count)
        products = query @ self.table.mT  # (B, H, T, rows of the table)
        index = self.index(distances.matrix())  # (T, S)
        return products.gather(-1, index.expand(*query.shape[:2], -1, -1))


def build_bias(recipe: Positions, heads: int, width: int, *, causal: bool) -> nn.Module | None:
    """The bias that all layers of a stack share, where there is one."""
    if recipe.kind == "alibi":
        return Alibi(heads)
    if recipe.kind == "t5":
        return Buckets(heads, width, recipe.buckets, recipe.farthest_distance, causal=causal)
    return None


def build_relative_keys(recipe: Positions, head_width: int, *, causal: bool) -> RelativeKeys | None:
    """The relative keys of one layer, where it has some."""
    return RelativeKeys(head_width, recipe.farthest_distance, causal=causal) if recipe.kind == "shaw" else None
