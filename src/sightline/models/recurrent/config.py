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


_EQUAL_WIDTHS = ("dot", "scaled-dot", "unnormalized", "unnormalized-dot")  # scores that multiply query and key


class RecurrentConfig(BodyConfig):
    """Base of the configs of recurrent encoders and decoders."""

    recurrent: ClassVar[bool] = True

    cell: Literal["elman", "gru", "lstm"] = Field("lstm", description="the recurrent cell")
    activation: Literal["tanh", "relu", "sigmoid"] = Field("tanh", description="elman: g in h = g(W_h h + W₁ x)")
    bias: bool = Field(True, description="add biases to the products of the cell")
    layers: int = Field(1, ge=1, description="number of layers")
    skip_connections: SkipConnections = "none"
    experts: ExpertsConfig | None = Field(None, description="a mixture of feed-forward nets below the top layer")
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    @property
    def mixture(self) -> ExpertsConfig | None:
        return self.experts

    @property
    def full_cell(self) -> str:
        """The name of the cell with its activation, as in `layers.recurrent.CELLS`."""
        return self.cell if self.activation == "tanh" else f"{self.cell}_{self.activation}"

    @model_validator(mode="after")
    def _activation_fits(self) -> RecurrentConfig:
        if self.activation != "tanh" and self.cell != "elman":
            raise ValueError(
                f"activation: {self.activation} is for cell: elman, and {self.cell} has gates with activations of "
                f"their own; leave it out, or set cell: elman"
            )
        return self

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
    merge: Literal["concatenate", "sum", "mean"] = Field(
        "concatenate",
        description="bidirectional: concatenate both directions, each of half the width, or add or average them, each "
        "of full width",
    )

    @property
    def splits_width(self) -> bool:
        """True if some layer is bidirectional, with half the width for each direction."""
        return self.bidirectional and self.directions != "alternating" and self.merge == "concatenate"

    @property
    def reads_backwards(self) -> bool:
        return self.bidirectional

    def check_width(self, width: int, side: str) -> None:
        if self.splits_width and width % 2:
            raise ValueError(
                f"a bidirectional encoder gives each direction half the width, and {width} is odd; set width to "
                f"{width + 1}, encoder.merge: sum, or encoder.bidirectional: false"
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
    query: Literal["current", "previous"] = Field(
        "current",
        description="the state that attends: current: of this step (Luong et al. 2015); previous: of the step before, "
        "and the step reads the context (Bahdanau et al. 2015)",
    )
    readout: Literal["attentional", "concatenate"] = Field(
        "attentional",
        description="features for the output layer, from state x and context c: attentional: tanh(W_c [x ; c]); "
        "concatenate: [x ; c] itself",
    )
    init_hidden: Literal["bridge", "last", "zero", "learned"] = Field(
        "bridge",
        description="initial state: bridge: tanh(W h + b) of the encoder's final h; last: its final h (and c) "
        "unchanged; zero; learned. Without a source, bridge and last start from zero",
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
        feeding += ", query from the previous state" if self.query == "previous" else ""
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
        for key, value in {"query": "previous", "readout": "concatenate"}.items():
            if getattr(self, key) == value and self.attention.kind == "none":
                raise ValueError(f"{key}: {value} needs an attention; set attention.kind, or leave {key} out")
        if self.query == "previous" and (self.input_feeding or self.attention_from == "bottom"):
            other = "input_feeding: true" if self.input_feeding else "attention_from: bottom"
            raise ValueError(
                f"query: previous feeds the context into the bottom layer before its step, and {other} attends after "
                f"it; leave one of them out"
            )
        return self

    @property
    def takes_memory_width(self) -> bool:
        return True

    def check_memory(self, encoder: BodyConfig, encoder_width: int, width: int) -> None:
        if encoder_width != width and self.attention.kind in _EQUAL_WIDTHS:
            raise ValueError(
                f"attention.kind: {self.attention.kind} multiplies the decoder's state ({width} wide) and encoder "
                f"states ({encoder_width} wide) element by element; use bilinear or additive, or equal widths"
            )
        if self.init_hidden != "last":
            return
        if not isinstance(encoder, RecurrentEncoderConfig):
            raise ValueError(
                f"init_hidden: last takes the final state of a recurrent encoder, and encoder.kind is {encoder.kind}; "
                f"set init_hidden: bridge"
            )
        if encoder_width != width:
            raise ValueError(
                f"init_hidden: last takes the encoder's final state unchanged, {encoder_width} wide, and the decoder "
                f"is {width} wide; set init_hidden: bridge, or equal widths"
            )
        if (encoder.cell == "lstm") != (self.cell == "lstm"):
            raise ValueError(
                f"init_hidden: last takes h and c of an LSTM, or h of other cells, and the cells are {encoder.cell} "
                f"and {self.cell}; set init_hidden: bridge, or cells of one kind"
            )
