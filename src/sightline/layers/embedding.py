"""Tokens to vectors, and back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sightline.layers.linear import Projection
from sightline.layers.tap import TapModule


class Embedding(TapModule):
    """E[token] · √D: rows start at N(0, 1/D), so that what enters the network has variance one."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, width) * width**-0.5)
        self.scale = width**0.5

    def forward(self, tokens: Tensor) -> Tensor:
        """(…,) → (…, D)."""
        rows = self.tap("rows", nn.functional.embedding(tokens, self.weight), "E[token]")
        return self.tap("vectors", rows * self.scale, "E[token] √D", ["rows"])


class Output(Projection):
    """Features to scores of every word: f Wᵀ + b; W may be the embedding's (Press and Wolf 2017)."""

    def __init__(self, size: int, width: int, tied: Embedding | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, width) * width**-0.5) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(size))
