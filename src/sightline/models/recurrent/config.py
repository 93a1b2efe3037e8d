"""Configs of recurrent encoders and decoders. Free of torch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from sightline.recipe.model import BodyConfig, ExpertsConfig
from sightline.recipe.schema import Probability, Section, default_of, open_union
from sightline.terminal import plural

SkipConnections = Annotated[
    Literal["none", "residual", "fast-forward"],
    Field(
        description="around each layer. residual: x + h from the third layer on (Wu et al. 2016); fast-forward: a "
        "linear map of both (Zhou et al. 2016)"
    ),
]


class RecurrentConfig(BodyConfig):
    """Base of the configs of recurrent encoders and decoders."""

    recurrent: ClassVar[bool] = True

    cell: Literal["elman", "gru", "lstm"] = Field("lstm", description="the recurrent cell")
    layers: int = Field(1, ge=1, description="number of layers")
    skip_connections: SkipConnections = "none"
    experts: ExpertsConfig | None = Field(None, description="a mixture of feed-forward nets below the top layer")
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    @property
    def mixture(self) -> ExpertsConfig | None:
        return self.experts

    @model_validator(mode="after")
    def _experts_fit(self) -> RecurrentConfig:
        if self.experts is not None and self.layers < 2:
            raise ValueError(
                f"experts are between recurrent layers, and there is {self.layers}; set layers to 2 or more"
            )
        return self

    def _described(self, *parts: str) -> str:
        links = "" if self.skip_connections == "none" else f", {self.skip_connections} links"
        return ", ".join([self.cell.upper(), plural(self.layers, "layer"), *parts]) + links


class RecurrentEncoderConfig(RecurrentConfig):
    """A stack of recurrent layers over the source."""

    kind: Literal["recurrent"] = "recurrent"
    bidirectional: bool = Field(True, description="read the source backwards, too")
    directions: Literal["all", "bottom", "alternating"] = Field(
        "all",
        description="bidirectional: both directions in all layers, or in the bottom one and forwards above it, or "
        "forwards and backwards in turns",
    )

    @property
    def splits_width(self) -> bool:
        """True if some layer is bidirectional, with half the width for each direction."""
        return self.bidirectional and self.directions != "alternating"

    @property
    def reads_backwards(self) -> bool:
        return self.bidirectional

    def check_width(self, width: int, side: str) -> None:
        if self.splits_width and width % 2:
            raise ValueError(
                f"a bidirectional encoder gives each direction half the width, and {width} is odd; set width to "
                f"{width + 1}, or encoder.bidirectional: false"
            )

    def describe(self) -> str:
        named = {
            "all": "bidirectional",
            "bottom": "bidirectional at the bottom",
            "alternating": "both directions in turns",
        }
        return self._described(named[self.directions] if self.bidirectional else "one direction")

    @model_validator(mode="after")
    def _directions_fit(self) -> RecurrentEncoderConfig:
        if self.directions != "all" and not self.bidirectional:
            raise ValueError(
                f"directions: {self.directions} reads backwards too, and bidirectional: false never does; leave one out"
            )
        if self.directions == "alternating" and self.layers == 1:
            raise ValueError("directions: alternating needs at least two layers to take turns, not 1; use all")
        return self


class AttentionConfig(Section):
    """Cross-attention of a recurrent decoder."""

    kind: str = Field("additive", description="the score function; none: the decoder only starts from a vector")


class NoAttentionConfig(AttentionConfig):
    """No attention: the decoder gets the source as its initial state only."""

    kind: Literal["none"] = "none"


if TYPE_CHECKING:
    SourceAttention = AttentionConfig
else:
    SourceAttention = open_union("score", default="additive", base=AttentionConfig, extra={"none": NoAttentionConfig})


class RecurrentDecoderConfig(RecurrentConfig):
    """A stack of recurrent layers over the target, with attention to the source."""

    kind: Literal["recurrent"] = "recurrent"
    attention: SourceAttention = Field(
        default_factory=partial(default_of, SourceAttention), description="attention to the source"
    )
    attention_from: Literal["top", "bottom"] = Field(
        "top", description="the layer that attends; bottom: the layers above it read its context (Wu et al. 2016)"
    )
    input_feeding: bool = Field(
        False,
        description="feed the last attentional state (attention_from: bottom: the context) back with the next token",
    )

    @property
    def attention_layers(self) -> int:
        return 0 if self.attention.kind == "none" else 1

    @property
    def attention_kind(self) -> str:
        return self.attention.kind

    @property
    def needs_encoder(self) -> bool:
        return self.attention.kind != "none"

    def describe(self) -> str:
        place = ", from the bottom" if self.attention_from == "bottom" else ""
        feeding = ", input feeding" if self.input_feeding else ""
        return self._described(f"attention: {self.attention.kind}{place}{feeding}")

    @model_validator(mode="after")
    def _parts_need_attention(self) -> RecurrentDecoderConfig:
        if self.experts is not None and self.input_feeding and self.attention_from == "top":
            raise ValueError(
                "experts take all tokens of a batch at once, and input_feeding: true with attention_from: top "
                "gives them one token per sentence; set input_feeding: false or attention_from: bottom"
            )
        if self.input_feeding and self.attention.kind == "none":
            raise ValueError("input_feeding: true needs an attention; set attention.kind or input_feeding: false")
        if self.attention_from == "bottom" and self.attention.kind == "none":
            raise ValueError("attention_from: bottom needs an attention; set attention.kind or attention_from: top")
        return self
