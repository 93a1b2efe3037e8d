"""The position-wise network of a Transformer block."""

from __future__ import annotations

from torch import Tensor, nn

from sightline.layers.dropout import Dropout
from sightline.layers.linear import Linear
from sightline.layers.tap import TapModule
from sightline.recipe_model import FeedForward

ACTIVATIONS = {"relu": nn.functional.relu, "gelu": nn.functional.gelu, "swiglu": nn.functional.silu}


class FeedForwardNet(TapModule):
    """f(x W₁ + b₁) W₂ + b₂; gated (SwiGLU, Shazeer 2020): (silu(x W₁) ∘ x W₃) W₂."""

    def __init__(self, recipe: FeedForward, width: int) -> None:
        super().__init__()
        inner = recipe.width or 4 * width
        self.activation = ACTIVATIONS[recipe.kind]
        self.gated = recipe.kind == "swiglu"
        self.widen = Linear(width, 2 * inner if self.gated else inner)
        self.narrow = Linear(inner, width)
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, value = self.widen(x).chunk(2, dim=-1)  # (…, F) each
            hidden = self.activation(gate) * value
        elif self.activation is nn.functional.relu:
            hidden = self.widen(x, "relu")  # in one pass, where the product can
        else:
            hidden = self.activation(self.widen(x))
        hidden = self.tap("hidden", hidden, "f(x W1 + b1)")
        output: Tensor = self.narrow(self.dropout(hidden))
        return self.tap("output", output, "hidden W2 + b2", ["hidden"])
