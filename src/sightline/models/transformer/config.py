"""The section of a Transformer encoder or decoder."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from sightline.recipe.layers import (
    LINEAR,
    RELATIVE,
    AttentionConfig,
    BlockAttention,
    CompressedAttention,
    ExpertsConfig,
    FeedForwardConfig,
    NormConfig,
    PositionsConfig,
    divisors,
)
from sightline.recipe.model import DecoderConfig, EncoderConfig
from sightline.recipe.sections import Probability
from sightline.terminal import plural


class TransformerConfig(EncoderConfig, DecoderConfig):
    """A stack of attention and feed-forward blocks (Vaswani et al. 2017)."""

    encoder_class: ClassVar[str] = "sightline.models.transformer.modules:TransformerEncoder"
    decoder_class: ClassVar[str] = "sightline.models.transformer.modules:TransformerDecoder"
    cross_attention: ClassVar[bool] = True
    supports_packing: ClassVar[bool] = True
    supports_adapters: ClassVar[bool] = True
    supports_gradient_checkpointing: ClassVar[bool] = True

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(6, ge=1, description="number of blocks")
    heads: int = Field(8, ge=1, description="attention heads of each; they divide the width evenly")
    feedforward: FeedForwardConfig = Field(FeedForwardConfig(), description="the network after each attention")
    norm: NormConfig = Field(NormConfig(), description="normalization, and where it is applied")
    positions: PositionsConfig = Field(PositionsConfig(), description="how token order is represented")
    attention: AttentionConfig = Field(AttentionConfig(), description="the attention heads")
    dropout: Probability = Field(0.1, description="on embeddings and before each residual sum, in training")
    attention_dropout: Probability = Field(0.0, description="on attention weights, in training")

    @model_validator(mode="after")
    def _parts_fit(self) -> TransformerConfig:
        experts = self.feedforward.experts
        if experts is not None and experts.every > self.layers:
            raise ValueError(
                f"feedforward.experts.every ({experts.every}) is more than layers ({self.layers}), so no layer would "
                f"have experts; lower it"
            )
        groups = self.attention.groups
        if groups is not None and self.heads % groups:
            numbers = list(map(str, divisors(self.heads)))
            either = " or ".join([", ".join(numbers[:-1]), numbers[-1]] if len(numbers) > 1 else numbers)
            raise ValueError(
                f"heads ({self.heads}) is not divisible by attention.groups ({groups}); set groups to {either}"
            )
        # What ALiBi subtracts makes a softmax's weight small; without one it would make it large and negative.
        # A learned bias (t5) or one computed from the query (shaw) finds its own sign.
        if self.attention.kind in LINEAR and self.positions.kind == "alibi":
            raise ValueError(
                f"positions.kind: alibi lowers the weights of distant tokens through the softmax, and attention.kind: "
                f"{self.attention.kind} has none; take rotary, t5 or shaw positions, or attention.kind: scaled-dot"
            )
        short = [each.kind for each in self.attention.local_attention if each.kind != "full"]
        if short and self.positions.kind in RELATIVE:
            raise ValueError(
                f"positions.kind: {self.positions.kind} needs the distance of every pair of tokens, and "
                f"attention.local_attention: {short[0]} computes few of them; take sinusoidal, learned, rotary or no "
                f"positions"
            )
        return self

    @property
    def max_positions(self) -> int | None:
        return self.positions.longest if self.positions.kind == "learned" else None

    @property
    def mixture_of_experts(self) -> ExpertsConfig | None:
        return self.feedforward.experts

    @property
    def attention_kind(self) -> str:
        return self.attention.kind

    @property
    def attention_layers(self) -> int:
        return self.layers

    @property
    def attention_heads(self) -> int:
        return self.heads

    def check(self, part: str, width: int) -> None:
        if width % self.heads:
            near = width - width % self.heads + self.heads
            raise ValueError(
                f"width ({width}) is not divisible by {part}.heads ({self.heads}); set width to {near}, or change heads"
            )
        if self.positions.kind == "rotary" and (width // self.heads) % 2:
            raise ValueError(
                f"rotary positions need an even head width, and width / {part}.heads is {width // self.heads}; change "
                f"one of them, or set positions.kind: sinusoidal"
            )
        position_width = self.positions.width or width
        if self.positions.kind == "sinusoidal" and position_width % 2:
            raise ValueError(
                f"sinusoidal positions need an even width, not {position_width}; set it to {position_width + 1}"
            )

    def fits_packed_kernels(self, width: int, *, source: bool) -> bool:
        return (
            self.attention_dropout == 0
            and self.attention.kind not in LINEAR
            and self.positions.kind not in RELATIVE
            and (self.norm.kind != "batch" or self.norm.place == "none")
        )

    def describe(self) -> str:
        norm = "no norm" if self.norm.place == "none" else f"{self.norm.place}-norm ({self.norm.kind})"
        return (
            f"Transformer, {plural(self.layers, 'layer')}, {plural(self.heads, 'head')}, {norm}, "
            f"{self.positions.kind} positions, {self.feedforward.kind}{self._describe_local_attention()}"
        )

    def _describe_local_attention(self) -> str:
        words = []
        for each in self.attention.local_attention:
            if isinstance(each, BlockAttention):
                before = f", looking back {each.look_back}" if each.look_back else ""
                words.append(f"local (blocks of {each.block}{before})")
            else:
                words.append(f"compressed ({each.stride} to 1)" if isinstance(each, CompressedAttention) else each.kind)
        return "" if set(words) == {"full"} else f", attention {', '.join(words)}{' in turns' if len(words) > 1 else ''}"
