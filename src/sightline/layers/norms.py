"""Normalization of the features of one token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sightline.layers.dropout import Dropout
from sightline.recipe import Norm


class LayerNorm(nn.LayerNorm):
    """(x − μ) / σ · γ + β over the features of one token (Ba et al. 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-5)


class RMSNorm(nn.Module):
    """x / rms(x) · γ (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


NORMS: dict[str, type[nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm}


class Residual(nn.Module):
    """x + sublayer(x), normalized before the sublayer (`pre`) or after the sum (`post`, the original)."""

    def __init__(self, recipe: Norm, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = NORMS[recipe.kind](width)
        self.pre = recipe.place == "pre"
        self.dropout = Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        """What the sublayer sees."""
        normalized: Tensor = self.norm(x) if self.pre else x
        return normalized

    def leave(self, x: Tensor, output: Tensor) -> Tensor:
        """What the block hands on, given its input and the sublayer's output.

        In mixed precision a post-norm block hands on the sublayer's precision: every sum is normalized again at once,
        so nothing accumulates, and half the memory is moved. A pre-norm sum runs through the whole stack and stays
        in the precision of the embeddings.
        """
        total = self.dropout.add(x, output)
        return total if self.pre else self.norm(total).to(output.dtype)
