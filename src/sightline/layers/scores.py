"""Score functions e(q, h): how well a query fits each of the keys.

Each is split in two, so that what depends on the keys alone is computed once a sentence and not once a step:
`prepare(keys)`, then `forward(query, prepared)`. Whether a softmax follows is the score's own affair (`softmax`).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sightline.layers.kernels import triton_takes
from sightline.layers.linear import Linear
from sightline.layers.tap import TapModule
from sightline.registry import Implementations


class AttentionScore(nn.Module):
    """Base: e(q, h) for query (B, H, T, K) and prepared keys (B, H, S, K) → (B, H, T, S)."""

    entry_points: ClassVar[tuple[str, ...]] = ("prepare",)
    softmax = True  # α = softmax(e); else α = e / N over the N real keys
    scale = 1.0  # of the dot product, where it is one
    fused_scale: float | None = None  # set when PyTorch's fused kernel computes this score with that scale
    formula = ""

    def __init__(self, width: int = 0) -> None:
        """For queries and keys with `width` features."""
        super().__init__()

    def prepare(self, keys: Tensor) -> Tensor:
        """What the score needs of the keys."""
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

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.scale = self.fused_scale = 1.0 / math.sqrt(width)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (query * self.scale) @ keys.mT  # (B, H, T, S)


class Bilinear(AttentionScore):
    """qᵀ W h (Luong et al. 2015)."""

    fused_scale = 1.0  # with W h as keys it is the dot score
    formula = "qᵀ W h"

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.weight = Linear(width, width, bias=False)

    def prepare(self, keys: Tensor) -> Tensor:
        prepared: Tensor = self.weight(keys)
        return prepared

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.mT  # (B, H, T, S)


class Additive(AttentionScore, TapModule):
    """vᵀ tanh(W q + U h) (Bahdanau et al. 2015); by the formula where somebody follows the arithmetic."""

    formula = "vᵀ tanh(W q + U h)"

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.query = Linear(width, width, bias=True)
        self.key = Linear(width, width, bias=False)
        self.v = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if not self.v.is_meta:
            self.v.uniform_(-1, 1).div_(math.sqrt(len(self.v)))

    def prepare(self, keys: Tensor) -> Tensor:
        prepared: Tensor = self.key(keys)
        return prepared

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        asked = self.query(query)  # (B, H, T, K)
        if triton_takes(asked) and asked.shape[:-2] == keys.shape[:-2] and not self.recorded:
            return self._fused(asked, keys)
        hidden = torch.tanh(asked[..., :, None, :] + keys[..., None, :, :])  # (B, H, T, S, K)
        return hidden @ self.v  # (B, H, T, S)

    def _fused(self, asked: Tensor, keys: Tensor) -> Tensor:
        """The same without ever holding the hidden numbers; under autocast in float32, as the softmax wants it."""
        from sightline.layers.kernels.additive_scores import additive_scores

        scores: Tensor = additive_scores(asked.flatten(0, -3), keys.flatten(0, -3), self.v)
        scores = scores.view(*asked.shape[:-1], keys.shape[-2])
        return scores if torch.is_autocast_enabled(asked.device.type) else scores.to(asked.dtype)


class LinearScore(AttentionScore):
    """q·h / √Dh with no softmax after it: the context is linear in the states (mean over the N real keys)."""

    softmax = False
    formula = "q·h / √d_k"

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.scale = 1.0 / math.sqrt(width)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (query * self.scale) @ keys.mT  # (B, H, T, S)


class UnscaledLinearScore(AttentionScore):
    """q·h with no softmax after it."""

    softmax = False
    formula = "q·h"

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.mT  # (B, H, T, S)


SCORES = Implementations("score")


def build_score(kind: str, width: int, **options: Any) -> AttentionScore:
    """The score registered under a name, for vectors of a width: `Class(width, **options)`."""
    score: AttentionScore = SCORES[kind](width, **options)
    return score
