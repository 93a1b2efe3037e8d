"""The sections of a recipe that say how far the self-attention of a Transformer sees."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sightline.recipe.schema import Section


class FullAttentionConfig(Section):
    """Everything: work and memory grow with the square of the length."""

    kind: Literal["full"] = "full"


class LocalAttentionConfig(Section):
    """Its own block of the sequence: work and memory grow with the length (Liu et al. 2018, §4.2.4).

    Blocks are counted from the first token of each sequence. As in the paper none sees another by default; it is the
    compressed layers between them that join them. A stack of local layers alone wants `look_back: 1`.
    """

    kind: Literal["local"] = "local"
    block: int = Field(256, ge=1, description="tokens in a block")
    look_back: int = Field(
        0, ge=0, description="so many blocks before one's own are seen too, and in an encoder as many behind it"
    )


class CompressedAttentionConfig(Section):
    """Fewer keys and values, made by a strided convolution over them: work divided by the stride (Liu et al. 2018).

    In a decoder a query sees those made of nothing that stands after it, so of its own last few tokens (fewer than the
    stride) it may know nothing but itself.
    """

    kind: Literal["compressed"] = "compressed"
    kernel: int = Field(3, ge=1, description="tokens that one compressed key and value is made of")
    stride: int = Field(3, ge=1, description="tokens from one to the next")

    @model_validator(mode="after")
    def _covers_everything(self) -> CompressedAttentionConfig:
        if self.kernel < self.stride:
            raise ValueError(
                f"span.kernel ({self.kernel}) is less than span.stride ({self.stride}), so some tokens would be seen "
                f"by none; raise kernel, or lower stride"
            )
        return self


SpanConfig = Annotated[
    FullAttentionConfig | LocalAttentionConfig | CompressedAttentionConfig, Field(discriminator="kind")
]
