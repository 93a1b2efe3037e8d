"""A score of attention: the cosine of query and key. `attention: {kind: cosine, temperature: 0.1}`"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

import sightline
from sightline.layers.scores import AttentionScore
from sightline.recipe.schema import Section


class CosineConfig(Section):
    """cos(q, h) / temperature."""

    kind: Literal["cosine"] = "cosine"
    temperature: float = Field(0.1, gt=0, description="divides the cosine")


class Cosine(AttentionScore):
    formula = "cos(q, h) / temperature"

    def __init__(self, width: int, temperature: float) -> None:
        super().__init__(width)
        self.temperature = temperature

    def prepare(self, keys: Tensor) -> Tensor:
        return normalize(keys, dim=-1)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return normalize(query, dim=-1) @ keys.mT / self.temperature  # (B, H, T, S)


sightline.register("score", "cosine", Cosine, config=CosineConfig)
