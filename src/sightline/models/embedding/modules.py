"""Encoder without layers: a recurrent encoder whose recursion is dropped."""

from __future__ import annotations

from torch import Tensor

from sightline.layers.dropout import Dropout
from sightline.layers.layout import Layout
from sightline.layers.positions import build_added
from sightline.layers.tap import TapModule
from sightline.models.embedding.config import EmbeddingConfig
from sightline.models.protocol import Memory


class EmbeddingEncoder(TapModule):
    """h_i = x_i + p_i: the state of a token depends on the token and its position, on no other token."""

    by_layer: tuple[str, ...] = ()
    below: tuple[str, ...] = ("positions",)

    def __init__(self, recipe: EmbeddingConfig, width: int) -> None:
        super().__init__()
        self.positions = build_added(recipe.positions, width)
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        """Embeddings x (B, S, D) or (N, D) → memory."""
        x = self.dropout(self.positions(x, layout.positions(x.device), layout.longest))
        return Memory(self.tap("output", x), layout)
