"""Config of the encoder without layers. Free of torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from sightline.recipe.model import AnyPositions, BodyConfig, PositionsConfig
from sightline.recipe.schema import Probability

_BIASES = ("rotary", "alibi", "t5", "shaw")


class EmbeddingConfig(BodyConfig):
    """Token embeddings and positions alone: an encoder with neither recursion nor self-attention."""

    packable: ClassVar[bool] = True

    kind: Literal["embedding"] = "embedding"
    positions: AnyPositions = Field(PositionsConfig(), description="positional encoding: sinusoidal, learned or none")
    dropout: Probability = Field(0.1, description="share of features dropped, in training")

    @property
    def reads_backwards(self) -> bool:
        return False

    @property
    def max_positions(self) -> int | None:
        return self.positions.max_positions if self.positions.kind == "learned" else None

    def embedding_width(self, width: int) -> int:
        return self.positions.embedding_width(width)

    def check_width(self, width: int, side: str) -> None:
        self.positions.check_width(width, side)

    def describe(self) -> str:
        return f"token embeddings, {self.positions.kind} positions"

    @model_validator(mode="after")
    def _positions_are_vectors(self) -> EmbeddingConfig:
        if self.positions.kind in _BIASES:
            raise ValueError(
                f"positions.kind: {self.positions.kind} changes the scores of self-attention, and kind: embedding has "
                f"none; use sinusoidal, learned or no positions"
            )
        return self
