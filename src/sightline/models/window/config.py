"""The section of feed-forward encoders and decoders over a fixed window."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sightline.recipe.model import DecoderConfig, EncoderConfig
from sightline.recipe.sections import Probability


class WindowConfig(EncoderConfig, DecoderConfig):
    """A feed-forward net over a fixed window of tokens (Bengio et al. 2003); it sees nothing beyond the window."""

    encoder_class: ClassVar[str] = "sightline.models.window.modules:WindowEncoder"
    decoder_class: ClassVar[str] = "sightline.models.window.modules:WindowDecoder"

    kind: Literal["window"] = "window"
    size: int = Field(4, ge=1, description="tokens seen: the last ones (decoder), or as many on each side (encoder)")
    layers: int = Field(1, ge=1, description="hidden layers")
    hidden: int | None = Field(None, ge=1, description="their width; by default twice the model's")
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    def describe(self) -> str:
        return f"feed-forward net over a window of {self.size}"
