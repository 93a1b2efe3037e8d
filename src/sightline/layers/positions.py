"""How a Transformer knows the order of its tokens.

Three places where an order can enter: added to the embeddings or put beside them (here), turned into the queries and
keys of each attention (`Rotation`), or as a distance between them (`relative_positions`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sightline.layers.linear import Linear
from sightline.layers.tap import TapModule
from sightline.recipe.bodies import Positions


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

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table", sinusoids(torch.arange(longest), width), persistent=False)
        self.table: Tensor

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

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.longest = longest
        self.table = nn.Parameter(torch.randn(longest, width) * width**-0.5)

    def vectors(self, positions: Tensor, reach: int) -> Tensor:
        """(…,) → (…, D)."""
        if reach > self.longest:
            raise ValueError(
                f"position {reach} is past the {self.longest} learned ones; shorten the input, or train with a "
                f"larger positions.longest or another kind of positions"
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
    """Adds nothing: the model is blind to order, or learns it from its attention."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        return x


TABLES: dict[str, type[Sinusoidal] | type[Learned]] = {"sinusoidal": Sinusoidal, "learned": Learned}


class Rotation(NamedTuple):
    """Turns each pair of features by an angle that grows with the position: the same for all heads of all layers.

    (x₂ᵢ, x₂ᵢ₊₁) ↦ R(pos / 10000^(2i/K)) (x₂ᵢ, x₂ᵢ₊₁), so that q·k depends on the distance alone (Su et al. 2021).
    """

    sine: Tensor  # (…, 1, K/2)
    cosine: Tensor

    @staticmethod
    def at(positions: Tensor, width: int) -> Rotation:
        """Of heads with K = `width` features at (…,) positions."""
        rates = 10_000.0 ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
        angles = positions[..., None, None].float() * rates
        return Rotation(angles.sin(), angles.cos())

    def __call__(self, x: Tensor) -> Tensor:
        """(…, H, K) → the same, turned."""
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        turned = [even * self.cosine - odd * self.sine, even * self.sine + odd * self.cosine]
        return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)


def build_added(recipe: Positions, width: int) -> nn.Module:
    """What joins positions to the embeddings; nothing, for kinds that enter in the attention."""
    if recipe.kind not in TABLES:
        return NoPositions(width, recipe.longest)
    if recipe.combine == "add":
        return TABLES[recipe.kind](width, recipe.longest)
    position_width = recipe.width or width
    return Concatenated(TABLES[recipe.kind](position_width, recipe.longest), position_width, width)
