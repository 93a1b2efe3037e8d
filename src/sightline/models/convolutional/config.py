"""The configs of convolutional encoders and decoders. Free of torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sightline.recipe.model import BodyConfig, LearnedPositionsConfig
from sightline.recipe.schema import Probability
from sightline.terminal import plural

_KERNEL = "tokens per filter: around each token (encoder; odd), or up to it (decoder)"


class ConvolutionalConfig(BodyConfig):
    """A stack of gated convolutions; a decoder attends to the source after each of them (Gehring et al. 2017)."""

    packable: ClassVar[bool] = True

    kind: Literal["convolutional"] = "convolutional"
    layers: int = Field(6, ge=1, description="number of convolutions")
    channels: int | None = Field(
        None,
        ge=1,
        description="width of the layers; by default the model's. Linear maps lead to another width and back, and "
        "attention has the width of the model",
    )
    kernel: int = Field(3, ge=1, description=_KERNEL)
    positions: LearnedPositionsConfig = Field(LearnedPositionsConfig(), description="positional encoding")
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    @property
    def attention_layers(self) -> int:
        return self.layers

    @property
    def attention_kind(self) -> str:
        return "dot"

    @property
    def max_positions(self) -> int | None:
        return self.positions.max_positions if self.positions.kind == "learned" else None

    def layer_width(self, width: int) -> int:
        return self.channels or width

    def check_width(self, width: int, side: str) -> None:
        _check_kernel(self.kernel, side)

    def describe(self) -> str:
        wide = "" if self.channels is None else f", {plural(self.channels, 'channel')}"
        layers = plural(self.layers, "layer")
        return f"gated convolutions, {layers}{wide}, kernel {self.kernel}, {self.positions.kind} positions"


class ByteNetConfig(BodyConfig):
    """A stack of dilated convolutions; a decoder runs over the source at a fixed ratio (Kalchbrenner et al. 2016).

    The ratio is fitted on the training data; there is no attention.
    """

    packable: ClassVar[bool] = True
    follows_source: ClassVar[bool] = True

    kind: Literal["bytenet"] = "bytenet"
    layers: int = Field(10, ge=1, description="number of convolutions")
    kernel: int = Field(3, ge=1, description=_KERNEL)
    dilations: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1, 2, 4, 8, 16),
        min_length=1,
        description="distance of the tokens of a filter: in the first layer, the second, ..., repeated",
    )
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    def check_width(self, width: int, side: str) -> None:
        _check_kernel(self.kernel, side)
        if width % 2:
            raise ValueError(
                f"a bytenet body convolves over half the width, and {width} is odd; set width to {width + 1}"
            )

    def describe(self) -> str:
        dilations = ", ".join(map(str, self.dilations[: self.layers]))
        return f"ByteNet, {plural(self.layers, 'layer')}, kernel {self.kernel}, dilations {dilations}"


def _check_kernel(kernel: int, side: str) -> None:
    if side == "encoder" and kernel % 2 == 0:
        raise ValueError(
            f"encoder.kernel ({kernel}) must be odd: as many tokens on either side; set it to {kernel + 1}"
        )
