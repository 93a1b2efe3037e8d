"""The section of n-gram language models."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sightline.recipe.model import DecoderConfig


class NgramConfig(DecoderConfig):
    """Counts with interpolated Kneser–Ney smoothing: a language model without a network."""

    counted: ClassVar[bool] = True

    kind: Literal["ngram"] = "ngram"
    order: int = Field(5, ge=1, description="the longest sequence counted")

    def describe(self) -> str:
        return f"{self.order}-grams, counted"
