"""The sections of convolutional encoders and decoders: ConvS2S and ByteNet."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sightline.recipe.model import DecoderConfig, EncoderConfig
from sightline.recipe.sections import Probability, Section
from sightline.terminal import plural


def _check_kernel(part: str, kernel: int) -> None:
    if part == "encoder" and kernel % 2 == 0:
        raise ValueError(
            f"encoder.kernel ({kernel}) must be odd: as many tokens on either side; set it to {kernel + 1}"
        )


class LearnedPositionsConfig(Section):
    """One learned vector for each position, added to the embedding."""

    kind: Literal["learned", "none"] = Field("learned", description="whether there are any")
    longest: int = Field(1024, ge=1, description="size of the table; longer input is an error")


class ConvolutionalConfig(EncoderConfig, DecoderConfig):
    """A stack of gated convolutions; a decoder attends to the source after each of them (Gehring et al. 2017)."""

    encoder_class: ClassVar[str] = "sightline.models.convolutional.convs2s:ConvolutionalEncoder"
    decoder_class: ClassVar[str] = "sightline.models.convolutional.convs2s:ConvolutionalDecoder"
    cross_attention: ClassVar[bool] = True
    supports_packing: ClassVar[bool] = True

    kind: Literal["convolutional"] = "convolutional"
    layers: int = Field(6, ge=1, description="number of layers")
    channels: int | None = Field(
        None,
        ge=1,
        description="width of the layers; by default the model's. Linear maps lead to another width and back, and "
        "attention stays as wide as the model",
    )
    kernel: int = Field(
        3, ge=1, description="tokens in a window: around each token (encoder; odd), or up to it (decoder)"
    )
    positions: LearnedPositionsConfig = Field(
        LearnedPositionsConfig(), description="how order is represented beyond a kernel"
    )
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    @property
    def max_positions(self) -> int | None:
        return self.positions.longest if self.positions.kind == "learned" else None

    @property
    def attention_kind(self) -> str:
        return "dot"

    @property
    def attention_layers(self) -> int:
        return self.layers

    def layer_width(self, width: int) -> int:
        return self.channels or width

    def check(self, part: str, width: int) -> None:
        _check_kernel(part, self.kernel)

    def fits_packed_kernels(self, width: int, *, source: bool) -> bool:
        from sightline.layers.attention import packed_width

        return not source or packed_width(width)  # one head as wide as the model

    def describe(self) -> str:
        wide = "" if self.channels is None else f", {plural(self.channels, 'channel')}"
        return (
            f"gated convolutions, {plural(self.layers, 'layer')}{wide}, kernel {self.kernel}, "
            f"{self.positions.kind} positions"
        )


class ByteNetConfig(EncoderConfig, DecoderConfig):
    """A stack of dilated convolutions; a decoder reads the source at a fixed ratio (Kalchbrenner et al. 2016).

    The ratio of target to source length is estimated on the training data; there is no attention.
    """

    encoder_class: ClassVar[str] = "sightline.models.convolutional.bytenet:ByteNetEncoder"
    decoder_class: ClassVar[str] = "sightline.models.convolutional.bytenet:ByteNetDecoder"
    supports_packing: ClassVar[bool] = True
    needs_length_ratio: ClassVar[bool] = True

    kind: Literal["bytenet"] = "bytenet"
    layers: int = Field(10, ge=1, description="number of layers")
    kernel: int = Field(
        3, ge=1, description="tokens in a window: around each token (encoder; odd), or up to it (decoder)"
    )
    dilations: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1, 2, 4, 8, 16),
        min_length=1,
        description="distance of the tokens in a window: in the first layer, the second, ..., and again from the first",
    )
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    def check(self, part: str, width: int) -> None:
        _check_kernel(part, self.kernel)
        if width % 2:
            raise ValueError(
                f"a bytenet body convolves over half the width, and {width} is odd; set width to {width + 1}"
            )

    def describe(self) -> str:
        dilations = ", ".join(map(str, self.dilations[: self.layers]))
        return f"ByteNet, {plural(self.layers, 'layer')}, kernel {self.kernel}, dilations {dilations}"
