"""Configs of models with a fixed context: feed-forward nets and n-gram counts. Free of torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sightline.recipe.model import BodyConfig
from sightline.recipe.schema import Probability


class WindowConfig(BodyConfig):
    """A feed-forward net over a fixed window of tokens (Bengio et al. 2003)."""

    kind: Literal["window"] = "window"
    size: int = Field(4, ge=1, description="tokens in the window: the last ones (decoder), or on each side (encoder)")
    layers: int = Field(1, ge=1, description="number of hidden layers")
    hidden: int | None = Field(None, ge=1, description="width of the hidden layers; by default twice the model's")
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    def describe(self) -> str:
        return f"feed-forward net over a window of {self.size}"


class NgramConfig(BodyConfig):
    """An n-gram language model: counts, smoothed or as they are."""

    counted: ClassVar[bool] = True

    kind: Literal["ngram"] = "ngram"
    order: int = Field(5, ge=1, description="length of the longest n-gram")
    smoothing: Literal["kneser-ney", "none"] = Field(
        "kneser-ney",
        description="kneser-ney: interpolated with shorter n-grams; none: count(h w) / count(h), 0 for n-grams that "
        "the training text does not have",
    )

    def describe(self) -> str:
        return f"{self.order}-grams, counted" + (", without smoothing" if self.smoothing == "none" else "")
