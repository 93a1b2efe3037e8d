"""Positional encodings.

Positions enter a Transformer in one of three places: added to or concatenated with the embeddings (`Sinusoidal`,
`Learned`), as a rotation of queries and keys (`Rotation`), or as the distance of a key from its query, which changes
the scores (`Alibi`, `Buckets`, `RelativeKeys`). A distance is key position minus query position: negative in the past.
ALiBi and T5 biases are shared by all layers of a stack; Shaw's relative keys are multiplied by each layer's queries.
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
    """Adds sinusoids; no parameters, no longest length. The table grows as it is needed."""

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
        table = self.table  # searches run side by side; another one may put a table of its own in this place
        if reach > table.shape[0]:
            table = self.table = sinusoids(torch.arange(2 * reach, device=positions.device), self.width)
        return self.tap("vectors", table[positions], "PE(position)")

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        return self.tap("output", x + self.vectors(positions, reach).to(x.dtype), "x + PE", ["vectors"])


class Learned(TapModule):
    """Adds one learned vector per index."""

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
    """[x; p] W + b: a position vector beside the embedding, projected back to the model's width."""

    def __init__(self, table: Sinusoidal | Learned, position_width: int, width: int) -> None:
        super().__init__()
        self.table = table
        self.project = Linear(width + position_width, width)

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        vectors = self.table.vectors(positions, reach).to(x.dtype)  # (1, T, P) or (N, P)
        joined: Tensor = self.project(torch.cat([x, vectors.expand(*x.shape[:-1], -1)], dim=-1))
        return self.tap("output", joined, "[x ; p] Wᵀ + b")


class NoPositions(nn.Module):
    """Adds nothing: the model does not know the order, or learns it from its attention."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        return x


TABLES: dict[str, type[Sinusoidal] | type[Learned]] = {"sinusoidal": Sinusoidal, "learned": Learned}
POSITIONS = Implementations("positions")


class Rotation(NamedTuple):
    """Rotary positions: each pair of features is rotated by an angle proportional to the position, in all heads.

    (x₂ᵢ, x₂ᵢ₊₁) ↦ R(pos / 10000^(2i/Dh)) (x₂ᵢ, x₂ᵢ₊₁), so that q·k depends on the distance alone (Su et al. 2021).
    """

    sine: Tensor  # (…, 1, Dh/2)
    cosine: Tensor

    @staticmethod
    def at(positions: Tensor, width: int) -> Rotation:
        """Of heads with Dh = `width` features at (…,) positions."""
        rates = 10_000.0 ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
        angles = positions[..., None, None].float() * rates
        return Rotation(angles.sin(), angles.cos())

    def __call__(self, x: Tensor) -> Tensor:
        """(…, H, Dh) → the same, rotated."""
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        rotated = [even * self.cosine - odd * self.sine, even * self.sine + odd * self.cosine]
        return torch.stack(rotated, dim=-1).flatten(-2).to(x.dtype)


class PositionEmbedding(nn.Module):
    """Base of position embeddings of plug-ins: `Embedding(width, **options)`."""

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        """x (…, D) at positions (…,) below `reach` → (…, D)."""
        raise NotImplementedError


class ScoreBias(nn.Module):
    """Base of biases by distance of plug-ins, shared by all layers of a stack: `Bias(heads, causal=…, **options)`."""

    def forward(self, distances: Distances) -> Tensor:
        """What is added to the scores: (1, H, T, S)."""
        raise NotImplementedError


def build_added(recipe: PositionsConfig, width: int) -> nn.Module:
    """Positions that are added to the embeddings; the identity for kinds that enter in the attention."""
    custom = POSITIONS[recipe.kind]
    if issubclass(custom, PositionEmbedding):
        return custom(width, **recipe.options(PositionsConfig))
    if recipe.kind not in TABLES:
        return NoPositions(width, recipe.max_positions)
    if recipe.combine == "add":
        return TABLES[recipe.kind](width, recipe.max_positions)
    position_width = recipe.width or width
    return Concatenated(TABLES[recipe.kind](position_width, recipe.max_positions), position_width, width)


@dataclass(frozen=True)
class Distances:
    """Positions of T queries and S keys, the same in every sentence of a batch."""

    queries: Tensor  # (T,)
    keys: Tensor  # (S,)
    whole: bool = False  # both are 0 … T − 1, as in training

    @staticmethod
    def within(count: int, device: torch.device) -> Distances:
        """Between all positions of whole sequences."""
        positions = torch.arange(count, device=device)
        return Distances(positions, positions, whole=True)

    def matrix(self) -> Tensor:
        """(T, S): key's position − query's."""
        return self.keys[None, :] - self.queries[:, None]


@dataclass(frozen=True)
class Relative:
    """Relative positions, for the self-attention of every layer of a stack."""

    distances: Distances
    bias: Tensor | None = None  # (1, H, T, S), where all layers share one


def slopes(heads: int) -> Tensor:
    """(H,): m_h = 2^(−8h/H) for h = 1 … H (Press et al. 2022, §3)."""
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


class Alibi(nn.Module):
    """−m_h · |distance| on the scores; nothing is learned (Press et al. 2022). In an encoder both sides fade alike."""

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
    """One learned bias for each head and bucket of distances (Raffel et al. 2020). (We keep the scale 1/√Dh.)"""

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

    Row t needs the columns from T − 1 − t on. In memory that is one step of R − 1 a row instead of R, so nothing is
    copied or indexed. Distances that have no column show some other row's number.
    """
    width = products.shape[-1] - 1
    flat = products.flatten(-2)[..., count - 1 : count - 1 + count * width]
    return flat.unflatten(-1, (count, width))[..., :count]


class RelativeKeys(nn.Module):
    """q·a_{j−i} on the scores: a learned vector for each distance, clipped at `farthest` (Shaw et al. 2018, §3.2).

    The heads share the vectors; the layers do not. Their variant with vectors for the values too, which they found may
    not be needed (§4.3), is left out. All products of queries and vectors are made first and then put in place, never
    a (T, S, Dh) tensor of vectors.
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
        """The row of the table for each distance."""
        return distances.clamp(-self.farthest, 0 if self.causal else self.farthest) + self.farthest

    def forward(self, query: Tensor, distances: Distances) -> Tensor:
        """(B, H, T, Dh) → (B, H, T, S). In a causal stack the scores of later keys are meaningless."""
        count = query.shape[-2]
        if distances.whole:
            last = 1 if self.causal else count  # one past those that are needed: `skew` steps over it
            columns = torch.arange(1 - count, last + 1, device=query.device)  # (R,)
            return skew(query @ self.table[self.index(columns)].mT, count)
        products = query @ self.table.mT  # (B, H, T, rows of the table)
        index = self.index(distances.matrix())  # (T, S)
        return products.gather(-1, index.expand(*query.shape[:2], -1, -1))


def build_bias(recipe: PositionsConfig, heads: int, width: int, *, causal: bool) -> nn.Module | None:
    """The bias on the scores that all layers of a stack share; None for other kinds of positions."""
    if recipe.kind == "alibi":
        return Alibi(heads)
    custom = POSITIONS[recipe.kind]
    if issubclass(custom, ScoreBias):
        return custom(heads, causal=causal, **recipe.options(PositionsConfig))
    if recipe.kind == "t5":
        return Buckets(heads, width, recipe.buckets, recipe.max_distance_or_default, causal=causal)
    return None


def build_relative_keys(recipe: PositionsConfig, head_width: int, *, causal: bool) -> RelativeKeys | None:
    """The relative keys of one layer; None for other kinds of positions."""
    return RelativeKeys(head_width, recipe.max_distance_or_default, causal=causal) if recipe.kind == "shaw" else None
