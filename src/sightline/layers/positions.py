"""Positional encodings.

- `Sinusoidal`, `Learned`: vectors added to the embeddings or concatenated with them
- `Rotation`: queries and keys are rotated
- `Alibi`, `Buckets`, `RelativeKeys`: the scores depend on the distance, key position − query position (negative in
  the past). ALiBi and T5 biases are shared by all layers of a stack; Shaw's relative keys belong to one layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from sightline.layers.devices import widest
from sightline.layers.initialization import normal_
from sightline.layers.linear import Linear
from sightline.layers.tap import TapModule
from sightline.recipe.model import PositionsConfig
from sightline.registry import Implementations


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """(…,) → (…, D): PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(…) (Vaswani et al. 2017, §3.5)."""
    rates = torch.exp(
        torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
        * (-torch.log(torch.tensor(1e4)) / width)
    )
    angles = positions[..., None].float() * rates  # (…, D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


class Sinusoidal(TapModule):
    """x + PE(position), without parameters or a maximum length: the table grows when needed."""

    entry_points: ClassVar[tuple[str, ...]] = ("vectors",)

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table", torch.empty(longest, width), persistent=False)
        self.table: Tensor
        self.reset_buffers()

    def reset_buffers(self) -> None:
        if not self.table.is_meta:
            self.table = sinusoids(torch.arange(len(self.table), device=self.table.device), self.width)

    def vectors(self, positions: Tensor, reach: int) -> Tensor:
        """(…,) → (…, D)."""
        table = self.table  # other threads may replace self.table at any time
        if reach > table.shape[0]:
            table = self.table = sinusoids(torch.arange(2 * reach, device=positions.device), self.width)
        return self.tap("vectors", table[positions], "PE(position)")

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        return self.tap("output", x + self.vectors(positions, reach).to(x.dtype), "x + PE", ["vectors"])


class Learned(TapModule):
    """x + P[position] with a learned table P."""

    entry_points: ClassVar[tuple[str, ...]] = ("vectors",)

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.longest = longest
        self.table = nn.Parameter(torch.empty(longest, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        normal_(self.table, self.table.shape[1] ** -0.5)

    def vectors(self, positions: Tensor, reach: int) -> Tensor:
        """(…,) → (…, D)."""
        if reach > self.longest:
            raise ValueError(
                f"position {reach} is past the {self.longest} learned ones; shorten the input, or train with a "
                f"larger positions.max_positions or another kind of positions"
            )
        return self.tap("vectors", self.table[positions], "P[position]")

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        return self.tap("output", x + self.vectors(positions, reach), "x + P[position]", ["vectors"])


class Concatenated(TapModule):
    """[x ; p] Wᵀ + b: embedding and position vector concatenated and projected back to the model's width D.

    Not `project`: [x ; p] itself, of embeddings x of width D − P and positions p of width P.
    """

    def __init__(self, table: Sinusoidal | Learned, position_width: int, width: int, *, project: bool = True) -> None:
        super().__init__()
        self.table = table
        self.project = Linear(width + position_width, width) if project else None

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        vectors = self.table.vectors(positions, reach).to(x.dtype)  # (1, T, P) or (N, P)
        both = torch.cat([x, vectors.expand(*x.shape[:-1], -1)], dim=-1)
        if self.project is None:
            return self.tap("output", both, "[x ; p]")
        return self.tap("output", self.project(both), "[x ; p] Wᵀ + b")


class NoPositions(nn.Module):
    """The identity."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        return x


TABLES: dict[str, type[Sinusoidal] | type[Learned]] = {"sinusoidal": Sinusoidal, "learned": Learned}
POSITIONS = Implementations("positions")


class Rotation(NamedTuple):
    """Rotary positions: (x₂ᵢ, x₂ᵢ₊₁) ↦ R(pos / 10000^(2i/Dh)) (x₂ᵢ, x₂ᵢ₊₁) in every head (Su et al. 2021).

    So q·k depends on the distance alone.
    """

    sine: Tensor  # (…, 1, Dh/2)
    cosine: Tensor

    @staticmethod
    def at(positions: Tensor, width: int) -> Rotation:
        """The rotation at positions (…,) of heads with `width` features."""
        rates = 10_000.0 ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
        angles = positions[..., None, None].float() * rates
        return Rotation(angles.sin(), angles.cos())

    def __call__(self, x: Tensor) -> Tensor:
        """(…, H, Dh) → the same, rotated."""
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        rotated = [even * self.cosine - odd * self.sine, even * self.sine + odd * self.cosine]
        return torch.stack(rotated, dim=-1).flatten(-2).to(x.dtype)


class PositionEmbedding(nn.Module):
    """Base class for further position embeddings: `Embedding(width, **options)`."""

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        """x (…, D) at positions (…,), all less than `reach` → (…, D)."""
        raise NotImplementedError


class ScoreBias(nn.Module):
    """Base class for further distance biases, shared by all layers: `Bias(heads, causal=…, **options)`."""

    def forward(self, distances: Distances) -> Tensor:
        """(1, H, T, S), added to the scores."""
        raise NotImplementedError


def build_added(recipe: PositionsConfig, width: int) -> nn.Module:
    """Build the positions that are added to the embeddings; the identity for kinds that change the attention."""
    custom = POSITIONS[recipe.kind]
    if issubclass(custom, PositionEmbedding):
        return custom(width, **recipe.options(PositionsConfig))
    if recipe.kind not in TABLES:
        return NoPositions(width, recipe.max_positions)
    if recipe.combine == "add":
        return TABLES[recipe.kind](width, recipe.max_positions)
    position_width = recipe.width or width
    table = TABLES[recipe.kind](position_width, recipe.max_positions)
    return Concatenated(table, position_width, width, project=recipe.project)


@dataclass(frozen=True)
class Distances:
    """Positions of T queries and S keys, the same for every sentence of a batch."""

    queries: Tensor  # (T,)
    keys: Tensor  # (S,)
    whole: bool = False  # both are 0, …, T − 1 (training)

    @staticmethod
    def within(count: int, device: torch.device) -> Distances:
        """Distances between all positions of whole sequences."""
        positions = torch.arange(count, device=device)
        return Distances(positions, positions, whole=True)

    def matrix(self) -> Tensor:
        """(T, S): key position − query position."""
        return self.keys[None, :] - self.queries[:, None]


@dataclass(frozen=True)
class Relative:
    """Relative positions for the self-attention of every layer of a stack."""

    distances: Distances
    bias: Tensor | None = None  # (1, H, T, S), if all layers share one


def slopes(heads: int) -> Tensor:
    """(H,): m_h = 2^(−8h/H) for h = 1 … H (Press et al. 2022, §3)."""
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


class Alibi(nn.Module):
    """Bias −m_h · |distance|, not learned (Press et al. 2022); symmetric in an encoder."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.empty(heads), persistent=False)
        self.slopes: Tensor
        self.reset_buffers()

    def reset_buffers(self) -> None:
        if not self.slopes.is_meta:
            self.slopes.copy_(slopes(len(self.slopes)))

    def forward(self, distances: Distances) -> Tensor:
        return (-self.slopes[:, None, None] * distances.matrix().abs())[None]  # (1, H, T, S)


def buckets_of(distances: Tensor, buckets: int, farthest: int, causal: bool) -> Tensor:
    """The bucket of each distance (Raffel et al. 2020, §2.1; the formula of their code).

    Half of the buckets hold one distance each; the rest grow logarithmically up to `farthest`, and the last one also
    holds all larger distances. If not `causal`, past and future keys get half of the buckets each.
    """
    if causal:
        first, size = torch.zeros_like(distances), (-distances).clamp(min=0)
    else:
        buckets //= 2
        first, size = (distances > 0) * buckets, distances.abs()
    exact = buckets // 2
    share = torch.log(widest(size.clamp(min=1)) / exact) / math.log(farthest / exact)  # 0 at `exact`, 1 at `farthest`
    logarithmic = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(size < exact, size, logarithmic)


class Buckets(nn.Module):
    """A learned bias for each head and bucket of distances (Raffel et al. 2020, but with scores scaled by 1/√Dh)."""

    def __init__(self, heads: int, width: int, buckets: int, farthest: int, *, causal: bool) -> None:
        super().__init__()
        self.buckets, self.farthest, self.causal = buckets, farthest, causal
        self.width = width
        self.table = nn.Parameter(torch.empty(heads, buckets))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        normal_(self.table, self.width**-0.5)

    def forward(self, distances: Distances) -> Tensor:
        index = buckets_of(distances.matrix(), self.buckets, self.farthest, self.causal)  # (T, S)
        return self.table[:, index][None]  # (1, H, T, S)


def skew(products: Tensor, count: int) -> Tensor:
    """(…, T, R), column r at distance r − (T − 1) → (…, T, T), column s at position s (Huang et al. 2018, §3.4.1).

    Row t starts at column T − 1 − t: a row stride of R − 1 instead of R, without copying or indexing. Distances
    without a column contain values of other rows.
    """
    width = products.shape[-1] - 1
    flat = products.flatten(-2)[..., count - 1 : count - 1 + count * width]
    return flat.unflatten(-1, (count, width))[..., :count]


class RelativeKeys(nn.Module):
    """Bias q·a_{j−i}: a learned vector for each distance, clipped at `farthest` (Shaw et al. 2018, §3.2).

    Heads share the vectors, layers do not. There are no vectors for the values, which the authors found unnecessary
    (§4.3). Queries are multiplied by the table and the products rearranged, without a (T, S, Dh) tensor.
    """

    def __init__(self, head_width: int, farthest: int, *, causal: bool) -> None:
        super().__init__()
        self.farthest, self.causal = farthest, causal
        count = farthest + 1 if causal else 2 * farthest + 1
        self.table = nn.Parameter(torch.empty(count, head_width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        normal_(self.table, self.table.shape[1] ** -0.5)

    def index(self, distances: Tensor) -> Tensor:
        """Table row of each distance."""
        return distances.clamp(-self.farthest, 0 if self.causal else self.farthest) + self.farthest

    def forward(self, query: Tensor, distances: Distances) -> Tensor:
        """(B, H, T, Dh) → (B, H, T, S). If causal, the values for later keys are arbitrary."""
        count = query.shape[-2]
        if distances.whole:
            last = 1 if self.causal else count  # `skew` needs one column past the largest distance
            columns = torch.arange(1 - count, last + 1, device=query.device)  # (R,)
            return skew(query @ self.table[self.index(columns)].mT, count)
        products = query @ self.table.mT  # (B, H, T, rows of the table)
        index = self.index(distances.matrix())  # (T, S)
        return products.gather(-1, index.expand(*query.shape[:2], -1, -1))


def build_bias(recipe: PositionsConfig, heads: int, width: int, *, causal: bool) -> nn.Module | None:
    """Build the bias that all layers of a stack share; None for other kinds of positions."""
    if recipe.kind == "alibi":
        return Alibi(heads)
    custom = POSITIONS[recipe.kind]
    if issubclass(custom, ScoreBias):
        return custom(heads, causal=causal, **recipe.options(PositionsConfig))
    if recipe.kind == "t5":
        return Buckets(heads, width, recipe.buckets, recipe.max_distance_or_default, causal=causal)
    return None


def build_relative_keys(recipe: PositionsConfig, head_width: int, *, causal: bool) -> RelativeKeys | None:
    """Build the relative keys of one layer; None for other kinds of positions."""
    return RelativeKeys(head_width, recipe.max_distance_or_default, causal=causal) if recipe.kind == "shaw" else None
