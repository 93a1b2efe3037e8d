"""Attention score functions e(q, h).

Each has two parts, so that decoding computes what depends on the keys alone once per sentence: `prepare(keys)`, then
`forward(query, prepared)`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sightline.layers.kernels import supports_triton
from sightline.layers.linear import Linear
from sightline.layers.tap import TapModule
from sightline.registry import Implementations


class AttentionScore(nn.Module):
    """Base class: e(q, h) for query (B, H, T, Dh) and prepared keys (B, H, S, Dh) → (B, H, T, S)."""

    entry_points: ClassVar[tuple[str, ...]] = ("prepare",)
    softmax = True  # α = softmax(e); False: α = e / N over the N visible keys
    scale = 1.0  # of dot products
    fused_scale: float | None = None  # scale with which PyTorch's fused kernel computes this score; None: it cannot
    formula = ""
    takes_key_width = False  # True if keys may have another width than queries

    def __init__(self, width: int = 0, key_width: int | None = None) -> None:
        """`width`: number of features of queries; `key_width`: of keys, by default the same."""
        super().__init__()
        if key_width not in (None, width) and not self.takes_key_width:
            raise ValueError(
                f"{type(self).__name__} multiplies queries and keys element by element, and they are {width} and "
                f"{key_width} wide; use bilinear or additive attention, or equal widths"
            )

    def prepare(self, keys: Tensor) -> Tensor:
        """Transform the keys; the result is cached in decoding."""
        return keys

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        raise NotImplementedError


class Dot(AttentionScore):
    """q·h (Luong et al. 2015)."""

    fused_scale = 1.0
    formula = "q·h"

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.mT  # (B, H, T, S)


class ScaledDot(AttentionScore):
    """q·h / √d_k (Vaswani et al. 2017)."""

    formula = "q·h / √d_k"

    def __init__(self, width: int, key_width: int | None = None) -> None:
        super().__init__(width, key_width)
        self.scale = self.fused_scale = 1.0 / math.sqrt(width)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (query * self.scale) @ keys.mT  # (B, H, T, S)


class Bilinear(AttentionScore):
    """qᵀ W h (Luong et al. 2015)."""

    fused_scale = 1.0  # the dot score of q and W h
    formula = "qᵀ W h"
    takes_key_width = True

    def __init__(self, width: int, key_width: int | None = None) -> None:
        super().__init__(width, key_width)
        self.weight = Linear(key_width or width, width, bias=False)  # (D₂, D₁)

    def prepare(self, keys: Tensor) -> Tensor:
        return self.weight(keys)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.mT  # (B, H, T, S)


class Additive(AttentionScore, TapModule):
    """vᵀ tanh(W q + U h) (Bahdanau et al. 2015). Recordings use the formula, not the fused kernel."""

    formula = "vᵀ tanh(W q + U h)"
    takes_key_width = True

    def __init__(self, width: int, key_width: int | None = None) -> None:
        super().__init__(width, key_width)
        self.query = Linear(width, width, bias=True)
        self.key = Linear(key_width or width, width, bias=False)
        self.v = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if not self.v.is_meta:
            self.v.uniform_(-1, 1).div_(math.sqrt(len(self.v)))

    def prepare(self, keys: Tensor) -> Tensor:
        return self.key(keys)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        query = self.query(query)  # (B, H, T, Dh)
        if supports_triton(query) and query.shape[:-2] == keys.shape[:-2] and not self.recorded:
            return self._fused(query, keys)
        hidden = torch.tanh(query[..., :, None, :] + keys[..., None, :, :])  # (B, H, T, S, Dh)
        return hidden @ self.v  # (B, H, T, S)

    def _fused(self, query: Tensor, keys: Tensor) -> Tensor:
        """The same scores without storing `hidden`; float32 under autocast, as input of the softmax."""
        from sightline.layers.kernels.additive_scores import additive_scores

        scores: Tensor = additive_scores(query.flatten(0, -3), keys.flatten(0, -3), self.v)
        scores = scores.view(*query.shape[:-1], keys.shape[-2])  # (B, H, T, S)
        return scores if torch.is_autocast_enabled(query.device.type) else scores.to(query.dtype)


class LinearScore(Additive):
    """vᵀ (W q + U h): a linear function of query and key, the additive score without its tanh.

    The query's part vᵀ W q is the same for every key, so the softmax cancels it: α = softmax(vᵀ U h), whatever the
    query is.
    """

    formula = "vᵀ (W q + U h)"

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (self.query(query) @ self.v)[..., None] + (keys @ self.v)[..., None, :]  # (B, H, T, S)


class UnnormalizedScore(AttentionScore):
    """q·h / √d_k without a softmax: weights are scores divided by the number of visible keys."""

    softmax = False
    formula = "q·h / √d_k"

    def __init__(self, width: int, key_width: int | None = None) -> None:
        super().__init__(width, key_width)
        self.scale = 1.0 / math.sqrt(width)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (query * self.scale) @ keys.mT  # (B, H, T, S)


class UnnormalizedDot(AttentionScore):
    """q·h without a softmax."""

    softmax = False
    formula = "q·h"

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.mT  # (B, H, T, S)


SCORES = Implementations("score")


def build_score(kind: str, width: int, key_width: int | None = None, **options: Any) -> AttentionScore:
    """Build the score that is registered as `kind`: `Class(width, **options)`, and `key_width` if it differs."""
    other = {} if key_width in (None, width) else {"key_width": key_width}
    return SCORES[kind](width, **other, **options)
