"""A logits processor: no token comes again within a window. `processors: [{kind: no-repeated-token, window: 2}]`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import sightline
from sightline.decoding.request import Request
from sightline.recipe.schema import Section


class NoRepeatedTokenConfig(Section):
    """No token comes again within a window."""

    kind: Literal["no-repeated-token"] = "no-repeated-token"
    window: int = Field(1, ge=1, description="tokens that the next one must differ from")


@dataclass(frozen=True)
class NoRepeatedToken:
    window: int

    @classmethod
    def build(cls, requests: Sequence[Request], device: torch.device, window: int) -> NoRepeatedToken:
        return cls(window)

    def __call__(self, logits: Tensor, tokens: Tensor, step: Tensor) -> Tensor:
        return logits.scatter(2, tokens[:, :, -self.window :], float("-inf"))  # (B, W, V)

    def keep(self, rows: Tensor) -> NoRepeatedToken:
        return self

    def append(self, other: NoRepeatedToken) -> NoRepeatedToken:
        return self


sightline.register("processor", "no-repeated-token", NoRepeatedToken, config=NoRepeatedTokenConfig)
