"""Two kinds of positions: `{kind: parity}` changes the embeddings, `{kind: recency, slope: 0.5}` the scores."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import sightline
from sightline.layers.positions import Distances, PositionEmbedding, ScoreBias
from sightline.recipe.model import PositionsConfig


class Parity(PositionEmbedding):
    """x with its features reversed at even positions."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        return torch.where((positions % 2 == 0)[..., None], x.flip(-1), x)


class RecencyConfig(PositionsConfig):
    """−slope · |query position − key position|, the same for all heads."""

    kind: Literal["recency"] = "recency"  # type: ignore[assignment]
    slope: float = Field(1.0, gt=0, description="of the bias")


class Recency(ScoreBias):
    def __init__(self, heads: int, *, causal: bool, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, distances: Distances) -> Tensor:
        return -self.slope * distances.matrix().abs().to(torch.float32)[None, None]  # (1, 1, T, S)


sightline.register("positions", "parity", Parity, relative=False)
sightline.register("positions", "recency", Recency, config=RecencyConfig)
