"""Config of Transformer encoders and decoders. Free of torch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from sightline.recipe.model import (
    AnyFeedForward,
    AnyNorm,
    AnyPositions,
    AttentionPattern,
    BodyConfig,
    CompressedAttentionConfig,
    ExpertsConfig,
    FeedForwardConfig,
    FullAttentionConfig,
    LocalAttentionConfig,
    NormConfig,
    PositionsConfig,
)
from sightline.recipe.schema import Probability, Section, default_of, open_union
from sightline.registry import entries
from sightline.terminal import plural


class HeadAttentionConfig(Section):
    """Self-attention and cross-attention of a Transformer, by default as in Vaswani et al. 2017."""

    kind: str = Field("scaled-dot", description="the score function")
    projections: bool = Field(
        True,
        description="false: queries, keys and values are the states themselves, split into heads; nothing is learned",
    )
    bias: bool = Field(True, description="biases in the projections of queries, keys, values and outputs")
    output_projection: bool = Field(
        True, description="multiply the concatenated heads by W_O; false: they are the output"
    )
    kv_heads: int | None = Field(
        None, ge=1, description="heads of keys and values, shared by the heads of queries; by default one for each"
    )
    pattern: tuple[AttentionPattern, ...] = Field(
        (FullAttentionConfig(),),
        min_length=1,
        description="self-attention in the first layer, the second, ..., repeated (local, compressed: DMCA)",
    )

    @model_validator(mode="after")
    def _projections_fit(self) -> HeadAttentionConfig:
        if self.kv_heads is not None and not self.projections:
            raise ValueError(
                f"attention.kv_heads ({self.kv_heads}) share projected keys and values, and attention.projections: "
                f"false has none; leave one of them out"
            )
        return self


if TYPE_CHECKING:
    HeadAttention = HeadAttentionConfig
else:
    HeadAttention = open_union("score", default="scaled-dot", base=HeadAttentionConfig)


class TransformerConfig(BodyConfig):
    """A stack of attention and feed-forward blocks (Vaswani et al. 2017)."""

    packable: ClassVar[bool] = True
    has_transformer_layers: ClassVar[bool] = True

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(6, ge=1, description="number of blocks")
    heads: int = Field(8, ge=1, description="attention heads of each; they divide the width evenly")
    feedforward: AnyFeedForward = Field(FeedForwardConfig(), description="the network after each attention")
    norm: AnyNorm = Field(NormConfig(), description="normalization, and its place")
    residual: bool = Field(True, description="x + sublayer(x); false: sublayer(x)")
    positions: AnyPositions = Field(PositionsConfig(), description="positional encoding")
    attention: HeadAttention = Field(default_factory=partial(default_of, HeadAttention), description="of the heads")
    dropout: Probability = Field(0.1, description="on embeddings and before each residual sum, in training")
    attention_dropout: Probability = Field(0.0, description="on attention weights, in training")

    @property
    def attention_layers(self) -> int:
        return self.layers

    @property
    def attention_heads(self) -> int:
        return self.heads

    @property
    def attention_kind(self) -> str:
        return self.attention.kind

    @property
    def max_positions(self) -> int | None:
        return self.positions.max_positions if self.positions.kind == "learned" else None

    @property
    def mixture(self) -> ExpertsConfig | None:
        return self.feedforward.experts

    @property
    def relative_positions(self) -> bool:
        """True if scores depend on distances: assumed unless the registry entry says `relative=False`."""
        return bool(entries("positions")[self.positions.kind].options.get("relative", True))

    @property
    def fits_packed_kernels(self) -> bool:
        return (
            self.attention_dropout == 0
            and self.attention.kind in ("dot", "scaled-dot")
            and not self.relative_positions
            and (self.norm.kind != "batch" or self.norm.place == "none")
        )

    @property
    def takes_memory_width(self) -> bool:
        return True

    def check_memory(self, encoder: BodyConfig, encoder_width: int, width: int) -> None:
        if encoder_width != width and not self.attention.projections:
            raise ValueError(
                f"attention.projections: false compares the decoder's states ({width} wide) with encoder states "
                f"({encoder_width} wide) themselves; use equal widths, or projections: true"
            )

    def embedding_width(self, width: int) -> int:
        return self.positions.embedding_width(width)

    def check_width(self, width: int, side: str) -> None:
        if width % self.heads:
            near = width - width % self.heads + self.heads
            raise ValueError(
                f"width ({width}) is not divisible by {side}.heads ({self.heads}); set width to {near}, or change heads"
            )
        if self.positions.kind == "rotary" and (width // self.heads) % 2:
            raise ValueError(
                f"rotary positions need an even head width, and width / {side}.heads is {width // self.heads}; change "
                f"one of them, or set positions.kind: sinusoidal"
            )
        self.positions.check_width(width, side)

    def describe(self) -> str:
        norm = "no norm" if self.norm.place == "none" else f"{self.norm.place}-norm ({self.norm.kind})"
        feedforward = "no feed-forward net" if self.feedforward.kind == "none" else self.feedforward.kind
        return (
            f"Transformer, {plural(self.layers, 'layer')}, {plural(self.heads, 'head')}, {norm}, "
            f"{self.positions.kind} positions, {feedforward}{_describe_pattern(self.attention.pattern)}"
            f"{'' if self.residual else ', no residual connections'}"
        )

    @model_validator(mode="after")
    def _some_layer_has_experts(self) -> TransformerConfig:
        experts = self.feedforward.experts
        if experts is not None and experts.every > self.layers:
            raise ValueError(
                f"feedforward.experts.every ({experts.every}) is more than layers ({self.layers}), so none would have "
                f"experts; lower it"
            )
        return self

    @model_validator(mode="after")
    def _attention_fits(self) -> TransformerConfig:
        groups = self.attention.kv_heads
        if groups is not None and self.heads % groups:
            *few, most = [str(each) for each in range(1, min(self.heads, 1_024) + 1) if self.heads % each == 0]
            raise ValueError(
                f"heads ({self.heads}) is not divisible by attention.kv_heads ({groups}); set kv_heads to "
                f"{', '.join(few)}{' or ' if few else ''}{most}"
            )
        # Without a softmax, ALiBi's negative scores would give distant keys large negative weights.
        if self.attention.kind in ("unnormalized", "unnormalized-dot") and self.positions.kind == "alibi":
            raise ValueError(
                "positions.kind: alibi lowers weights through the softmax, and attention.kind: unnormalized has none; "
                "use rotary, t5 or shaw positions, or attention.kind: scaled-dot"
            )
        sparse = [pattern.kind for pattern in self.attention.pattern if pattern.kind != "full"]
        if sparse and self.relative_positions:
            raise ValueError(
                f"positions.kind: {self.positions.kind} needs the distances of all pairs of tokens, and "
                f"attention.pattern: {sparse[0]} skips most of them; use sinusoidal, learned, rotary or no positions"
            )
        return self


def _describe_pattern(patterns: tuple[AttentionPattern, ...]) -> str:
    """Describe the patterns; empty if all layers have full attention."""
    words = []
    for pattern in patterns:
        if isinstance(pattern, LocalAttentionConfig):
            before = f", looking back {pattern.look_back}" if pattern.look_back else ""
            words.append(f"local (blocks of {pattern.block}{before})")
        else:
            words.append(
                f"compressed ({pattern.stride} to 1)" if isinstance(pattern, CompressedAttentionConfig) else "full"
            )
    return "" if set(words) == {"full"} else f", attention {', '.join(words)}{' in turns' if len(words) > 1 else ''}"
