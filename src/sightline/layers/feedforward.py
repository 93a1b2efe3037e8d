"""The position-wise network of a Transformer block."""

from __future__ import annotations

from torch import Tensor, nn

from sightline.layers.dropout import Dropout
from sightline.layers.experts import ACTIVATIONS, Experts
from sightline.layers.linear import Linear
from sightline.layers.tap import TapModule
from sightline.recipe.model import FeedForwardConfig
from sightline.registry import Implementations


class FeedForwardNet(TapModule):
    """f(x W₁ + b₁) W₂ + b₂; gated (SwiGLU, Shazeer 2020): (silu(x W₁) ∘ x W₃) W₂."""

    def __init__(self, recipe: FeedForwardConfig, width: int) -> None:
        super().__init__()
        inner = inner_width(recipe, width)
        self.activation = ACTIVATIONS[recipe.kind]
        self.gated = recipe.kind == "swiglu"
        self.up = Linear(width, 2 * inner if self.gated else inner)
        self.down = Linear(inner, width)
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(…, D) → (…, D). Every position is on its own, so it does not matter which are real (`valid`)."""
        if self.gated:
            gate, value = self.up(x).chunk(2, dim=-1)  # (…, F) each
            hidden = self.activation(gate) * value
        elif self.activation is nn.functional.relu:
            hidden = self.up(x, "relu")  # in one pass, where the product can
        else:
            hidden = self.activation(self.up(x))
        formula = "silu(x W₁ᵀ + b₁) ∘ (x W₃ᵀ + b₃)" if self.gated else f"{self.activation.__name__}(x W₁ᵀ + b₁)"
        hidden = self.tap("hidden", hidden, formula)
        output: Tensor = self.down(self.dropout(hidden))
        return self.tap("output", output, "hidden W₂ᵀ + b₂", ["hidden"])


def inner_width(recipe: FeedForwardConfig, width: int) -> int:
    """F: that of the recipe, or four times the model's."""
    return recipe.width or 4 * width


def build_feedforward(recipe: FeedForwardConfig, width: int, layer: int) -> FeedForwardNet | Experts:
    """The net of a layer (they are counted from 0), or experts in its place."""
    experts = recipe.experts
    if experts is None or (layer + 1) % experts.every:
        net: FeedForwardNet = Implementations("feedforward")[recipe.kind](recipe, width)
        return net
    return Experts(experts, width, hidden=inner_width(recipe, width), kind=recipe.kind, dropout=recipe.dropout)
