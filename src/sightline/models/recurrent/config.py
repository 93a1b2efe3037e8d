"""The sections of recurrent encoders and decoders."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from sightline.recipe.layers import ExpertsConfig, RecurrentAttentionConfig
from sightline.recipe.model import DecoderConfig, EncoderConfig
from sightline.recipe.sections import Probability
from sightline.terminal import plural

Links = Annotated[
    Literal["none", "residual", "fast-forward"],
    Field(description="past each layer: x + h from the third on (Wu et al. 2016); a linear map of both (Zhou et al.)"),
]
Cell = Literal["elman", "gru", "lstm"]
_DIRECTIONS = {
    "all": "bidirectional",
    "bottom": "bidirectional at the bottom",
    "alternating": "alternating directions",
}


def _check_experts(experts: ExpertsConfig | None, layers: int) -> None:
    if experts is not None and layers < 2:
        raise ValueError(f"experts are placed between recurrent layers, and there is {layers}; set layers to 2 or more")


def _describe_links(links: str) -> str:
    return "" if links == "none" else f", {links} links"


class RecurrentEncoderConfig(EncoderConfig):
    """A stack of recurrent layers that reads the source."""

    encoder_class: ClassVar[str] = "sightline.models.recurrent.modules:RecurrentEncoder"
    recurrent: ClassVar[bool] = True

    kind: Literal["recurrent"] = "recurrent"
    cell: Cell = Field("lstm", description="the recurrence")
    layers: int = Field(1, ge=1, description="number of layers")
    bidirectional: bool = Field(True, description="read backwards, too")
    directions: Literal["all", "bottom", "alternating"] = Field(
        "all",
        description="bidirectional: both directions in all layers, or in the bottom one alone and forwards above it, "
        "or each layer one direction, forwards and backwards in turns",
    )
    links: Links = "none"
    experts: ExpertsConfig | None = Field(None, description="a mixture of feed-forward nets below the top layer")
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    @model_validator(mode="after")
    def _directions_fit(self) -> RecurrentEncoderConfig:
        _check_experts(self.experts, self.layers)
        if self.directions != "all" and not self.bidirectional:
            raise ValueError(
                f"directions: {self.directions} reads backwards too, and bidirectional: false never does; leave one out"
            )
        if self.directions == "alternating" and self.layers == 1:
            raise ValueError("directions: alternating needs at least two layers to take turns, not 1; use all")
        return self

    @property
    def splits_width(self) -> bool:
        """Whether a layer reads in both directions, each with half the width."""
        return self.bidirectional and self.directions != "alternating"

    @property
    def first_state_sees_all(self) -> bool:
        return self.bidirectional

    @property
    def mixture_of_experts(self) -> ExpertsConfig | None:
        return self.experts

    def check(self, part: str, width: int) -> None:
        if self.splits_width and width % 2:
            raise ValueError(
                f"a bidirectional encoder gives each direction half the width, and {width} is odd; set width to "
                f"{width + 1}, or encoder.bidirectional: false"
            )

    def describe(self) -> str:
        directions = _DIRECTIONS[self.directions] if self.bidirectional else "one direction"
        return f"{self.cell.upper()}, {plural(self.layers, 'layer')}, {directions}{_describe_links(self.links)}"


class RecurrentDecoderConfig(DecoderConfig):
    """A stack of recurrent layers that writes the target, with or without attention to the source."""

    decoder_class: ClassVar[str] = "sightline.models.recurrent.modules:RecurrentDecoder"
    recurrent: ClassVar[bool] = True
    carries_state: ClassVar[bool] = True

    kind: Literal["recurrent"] = "recurrent"
    cell: Cell = Field("lstm", description="the recurrence")
    layers: int = Field(1, ge=1, description="number of layers")
    attention: RecurrentAttentionConfig = Field(RecurrentAttentionConfig(), description="attention to the source")
    attention_from: Literal["top", "bottom"] = Field(
        "top",
        description="the layer whose output is the query; bottom: the layers above it read the context (Wu et al. "
        "2016)",
    )
    input_feeding: bool = Field(
        False,
        description="feed the last attentional state (attention_from: bottom: context) back with the next token",
    )
    links: Links = "none"
    experts: ExpertsConfig | None = Field(None, description="a mixture of feed-forward nets below the top layer")
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    @model_validator(mode="after")
    def _parts_need_attention(self) -> RecurrentDecoderConfig:
        _check_experts(self.experts, self.layers)
        if self.experts is not None and self.input_feeding and self.attention_from == "top":
            raise ValueError(
                "experts share out all tokens of a batch at once, and input_feeding: true with attention_from: top "
                "gives them one token a sentence; set input_feeding: false or attention_from: bottom"
            )
        if self.input_feeding and self.attention.kind == "none":
            raise ValueError("input_feeding: true needs an attention; set attention.kind or input_feeding: false")
        if self.attention_from == "bottom" and self.attention.kind == "none":
            raise ValueError("attention_from: bottom needs an attention; set attention.kind or attention_from: top")
        return self

    @property
    def attends_to_source(self) -> bool:
        return self.attention.kind != "none"

    @property
    def attention_kind(self) -> str:
        return self.attention.kind

    @property
    def mixture_of_experts(self) -> ExpertsConfig | None:
        return self.experts

    def check_alone(self) -> None:
        if self.attention.kind != "none":
            raise ValueError(
                f"model.decoder.attention.kind: {self.attention.kind} has no encoder to attend to; set it to none"
            )

    def describe(self) -> str:
        place = ", from the bottom" if self.attention_from == "bottom" else ""
        feeding = ", input feeding" if self.input_feeding else ""
        return (
            f"{self.cell.upper()}, {plural(self.layers, 'layer')}, attention: {self.attention.kind}{place}{feeding}"
            f"{_describe_links(self.links)}"
        )
