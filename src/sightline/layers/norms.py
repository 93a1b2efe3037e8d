"""Normalization and residual connections.

Norms take `valid`, True at real tokens of a padded tensor (None: all); only batch norm uses it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from sightline.layers.dropout import Dropout
from sightline.layers.tap import TapModule
from sightline.recipe.model import NormConfig
from sightline.registry import Implementations

Gain = bool | Literal["scalar"]


class AffineNorm(nn.Module):
    """Base class of norms with an optional gain γ (`weight`; scalar: γ ∈ R) and an optional bias β."""

    normalized = "(x − μ) / σ"

    def __init__(self, width: int, *, gain: Gain, bias: bool) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(1 if gain == "scalar" else width)) if gain else None
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        AffineNorm.reset_parameters(self)

    @property
    def formula(self) -> str:
        return self.normalized + ("" if self.weight is None else " · γ") + ("" if self.bias is None else " + β")

    @property
    def gain(self) -> Tensor | None:
        """(D,) or None; a scalar gain is repeated."""
        if self.weight is None or len(self.weight) == self.width:
            return self.weight
        return self.weight.repeat(self.width)  # not expand: PyTorch's batch norm reads weights as contiguous memory

    def reset_parameters(self) -> None:
        """γ = 1, β = 0."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class LayerNorm(AffineNorm):
    """(x − μ) / σ · γ + β with μ and σ over the features of each token (Ba et al. 2016)."""

    def __init__(self, width: int, *, gain: Gain = True, bias: bool = True) -> None:
        super().__init__(width, gain=gain, bias=bias)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        if self.weight is None and self.bias is not None:  # PyTorch's kernel has no gradient for this under autocast
            return nn.functional.layer_norm(x, (self.width,), None, None, 1e-5) + self.bias
        return nn.functional.layer_norm(x, (self.width,), self.gain, self.bias, 1e-5)


class RMSNorm(AffineNorm):
    """x / rms(x) · γ (Zhang and Sennrich 2019). `bias` is ignored."""

    normalized = "x / rms(x)"

    def __init__(self, width: int, eps: float = 1e-6, *, gain: Gain = True, bias: bool = False) -> None:
        super().__init__(width, gain=gain, bias=False)
        self.eps = eps

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return nn.functional.rms_norm(x, (self.width,), self.gain, self.eps)


class BatchNorm(AffineNorm):
    """(x − μ) / σ · γ + β with μ and σ of each feature over the real tokens of the batch (Ioffe and Szegedy 2015).

    Outputs at padding are zero. Running averages are used in evaluation, for batches of one token, and if gain and bias
    are frozen, which freezes the averages too.
    """

    def __init__(self, width: int, *, gain: Gain = True, bias: bool = True) -> None:
        super().__init__(width, gain=gain, bias=bias)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.mean: Tensor
        self.variance: Tensor

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.mean.zero_()
        self.variance.fill_(1.0)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        if not self.training or self._frozen():
            return self._normalize(x.flatten(0, -2), learn=False).view(x.shape)
        tokens = x.flatten(0, -2) if valid is None else x[valid]  # (N, D)
        normalized = self._normalize(tokens, learn=len(tokens) > 1)
        if valid is None:
            return normalized.view(x.shape)
        return torch.zeros_like(x, dtype=normalized.dtype).masked_scatter(valid[..., None], normalized)

    def _frozen(self) -> bool:
        own = [each for each in (self.weight, self.bias) if each is not None]
        return bool(own) and not any(each.requires_grad for each in own)

    def _normalize(self, tokens: Tensor, learn: bool) -> Tensor:
        """(N, D) → (N, D), in the dtype of the averages: bfloat16 is too imprecise for sums over a batch."""
        return nn.functional.batch_norm(
            tokens.to(self.mean.dtype), self.mean, self.variance, self.gain, self.bias, learn, 0.1, 1e-5
        )


class NoNorm(nn.Module):
    """The identity."""

    formula = "x"

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return x


class Residual(TapModule):
    """Residual connection x + sublayer(x) with a norm before the sublayer (`pre`), after the sum (`post`) or none.

    Not `connected`: sublayer(x) alone, with the same norms.
    """

    entry_points: ClassVar[tuple[str, ...]] = ("prenorm", "add")

    def __init__(self, norm: nn.Module, place: str, dropout: float, *, connected: bool = True) -> None:
        super().__init__()
        self.norm = norm
        self.connected = connected
        self.pre, self.post = place == "pre", place == "post"
        self.dropout = Dropout(dropout)

    def prenorm(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """The input of the sublayer: norm(x) if `pre`, else x."""
        return self.tap("normed", self.norm(x, valid), str(self.norm.formula)) if self.pre else x

    def add(self, x: Tensor, output: Tensor, valid: Tensor | None = None) -> Tensor:
        """x + dropout(output), normalized if `post`.

        In mixed precision, post-norm blocks return the dtype of the sublayer, because normalized sums do not accumulate
        errors; sums that are not normalized run through the whole stack and keep the dtype of the embeddings.
        """
        if self.connected:
            total, inputs = self.tap("sum", self.dropout.add(x, output), "x + sublayer(x)"), ["sum"]
        else:
            total, inputs = self.dropout(output), []
        if not self.post:
            return total
        return self.tap("normed", self.norm(total, valid).to(output.dtype), str(self.norm.formula), inputs)


NORMS = Implementations("norm")


def build_norm(recipe: NormConfig, width: int) -> nn.Module:
    """Build the norm of a residual block: `Norm(width, gain, bias, **options)`."""
    if recipe.place == "none":
        return NoNorm()
    return NORMS[recipe.kind](width, gain=recipe.gain, bias=recipe.bias, **recipe.options(NormConfig))


def build_last_norm(recipe: NormConfig, width: int) -> nn.Module:
    """Build the norm after the last layer, which only pre-norm stacks have."""
    return build_norm(recipe, width) if recipe.place == "pre" else NoNorm()


def build_residual(recipe: NormConfig, width: int, dropout: float, *, connected: bool = True) -> Residual:
    """Build the residual connection around a sublayer."""
    return Residual(build_norm(recipe, width), recipe.place, dropout, connected=connected)
