"""An encoder that adds the mean of all tokens to each: `encoder: {kind: bag-of-words}`"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

import sightline
from sightline.layers.layout import Layout
from sightline.layers.tap import TapModule
from sightline.models.protocol import Memory
from sightline.recipe.model import BodyConfig


class BagOfWordsConfig(BodyConfig):
    """Each token with the mean of all tokens; the order is lost."""

    kind: Literal["bag-of-words"] = "bag-of-words"
    layers: int = Field(1, ge=1, description="number of hidden layers")


@sightline.register("encoder", "bag-of-words", config=BagOfWordsConfig)
class BagOfWordsEncoder(TapModule):
    by_layer: tuple[str, ...] = ("layers",)
    below: tuple[str, ...] = ()

    def __init__(self, config: BagOfWordsConfig, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(config.layers))

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        states = layout.pad(x) + Memory(x, layout).mean()[:, None]  # (B, S, D)
        for layer in self.layers:
            states = layer(states).tanh()
        return Memory(layout.unpad(self.tap("output", states)), layout)
