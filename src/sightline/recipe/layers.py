"""Sections of the layers that encoders and decoders are made of: norms, positions, feed-forward nets, attention."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from sightline.recipe.sections import OpenSection, Probability, Registered, Section

RELATIVE = ("alibi", "t5", "shaw")  # positions that enter as distances between queries and keys
LINEAR = ("linear", "unscaled-linear")  # scores that are weights themselves, without a softmax

NormKind = Annotated[str, Registered("norm")]
PositionsKind = Annotated[str, Registered("positions")]
FeedForwardKind = Annotated[str, Registered("feedforward")]
ScoreKind = Annotated[str, Registered("score")]


class NormConfig(Section):
    """Normalization of the tokens' features, and where it is applied in a block."""

    kind: NormKind = Field(
        "layer", description="batch: each feature over all real tokens of the batch, at test by running averages"
    )
    place: Literal["pre", "post", "none"] = Field("pre", description="before each sublayer, or after its residual sum")
    gain: bool = Field(True, description="learn a factor for each feature")
    bias: bool = Field(True, description="layer and batch: learn an offset for each feature")


class PositionsConfig(Section):
    """How a Transformer represents the order of its tokens."""

    kind: PositionsKind = Field(
        "sinusoidal",
        description="sinusoidal, learned: position embeddings; rotary: queries and keys are rotated; alibi, t5: biases "
        "by distance; shaw: relative keys",
    )
    longest: int = Field(1024, ge=1, description="learned: size of the table; longer input is an error")
    combine: Literal["add", "concatenate"] = Field(
        "add", description="sinusoidal and learned: add to the embedding, or concatenate and project back"
    )
    width: int | None = Field(None, ge=1, description="concatenate: width of a position; by default the model's")
    buckets: int = Field(32, ge=4, description="t5: how many distances have a bias of their own")
    farthest: int | None = Field(
        None, ge=1, description="t5, shaw: distance from which on all share one entry; by default 128 and 16"
    )

    @property
    def farthest_distance(self) -> int:
        """`farthest`, or the default of the kind."""
        return self.farthest or (128 if self.kind == "t5" else 16)

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> PositionsConfig:
        if self.combine == "concatenate" and self.kind not in ("sinusoidal", "learned"):
            raise ValueError(
                f"positions.combine: concatenate has nothing to put beside the embedding with {self.kind}; leave it "
                f"out, or set positions.kind: sinusoidal or learned"
            )
        if self.combine == "add" and self.width is not None:
            raise ValueError(f"positions.width ({self.width}) needs positions.combine: concatenate; what is added fits")
        if self.kind == "t5" and self.buckets % 2:
            raise ValueError(
                f"positions.buckets ({self.buckets}) must be even: half are for each side of the query; set it to "
                f"{self.buckets + 1}"
            )
        if self.kind == "t5" and self.farthest_distance <= self.buckets // 2:
            raise ValueError(
                f"positions.farthest ({self.farthest_distance}) must be more than half of positions.buckets "
                f"({self.buckets}), which hold one distance each; raise it, or lower buckets"
            )
        return self


class ExpertsConfig(Section):
    """A sparsely-gated mixture of experts: many networks, of which each token uses a few (Shazeer et al. 2017)."""

    count: int = Field(8, ge=2, description="number of experts")
    top: int = Field(
        2, ge=1, description="experts per token; with 1, the gates learn only from the load-balancing losses"
    )
    capacity: float = Field(
        2.0,
        gt=0,
        description="training: an expert takes at most this many times its even share of a batch, padding included; "
        "tokens beyond that are dropped. At test there is no limit",
    )
    noise: bool = Field(True, description="training: add noise of a learned width to the gate scores")
    hidden: int | None = Field(None, ge=1, description="inner width of each; by default that of a feed-forward net")
    importance: float = Field(0.1, ge=0, description="weight of the loss that balances the sums of the gates")
    load: float = Field(0.1, ge=0, description="weight of the loss that balances the number of tokens per expert")

    @model_validator(mode="after")
    def _keys_fit(self) -> ExpertsConfig:
        if self.top > self.count:
            raise ValueError(
                f"experts.top ({self.top}) is more than experts.count ({self.count}); lower it, or raise count"
            )
        if self.load and not self.noise:
            raise ValueError(
                f"experts.load ({self.load}) is estimated through the noise, and experts.noise: false has none; set "
                f"experts.load: 0"
            )
        return self


class LayerExpertsConfig(ExpertsConfig):
    """Experts in place of the feed-forward nets of some layers."""

    every: int = Field(1, ge=1, description="n: layers n, 2n, 3n, ... from the bottom have experts")


class FeedForwardConfig(Section):
    """The position-wise network of a Transformer block."""

    kind: FeedForwardKind = Field("relu", description="the activation; swiglu: gated")
    width: int | None = Field(None, ge=1, description="inner width; by default four times the model's")
    dropout: Probability = Field(0.0, description="on the inner activations; the original has none")
    experts: LayerExpertsConfig | None = Field(None, description="a mixture of such nets in some layers")


class LocalAttentionConfig(OpenSection):
    """How far the self-attention of a layer reaches."""

    registry: ClassVar[str] = "local_attention"

    kind: str


class FullAttention(LocalAttentionConfig):
    """Attention to every token: work and memory grow with the square of the length."""

    kind: Literal["full"] = "full"


class BlockAttention(LocalAttentionConfig):
    """Attention within a block of the sequence: work and memory grow with the length (Liu et al. 2018, §4.2.4).

    Blocks are counted from the first token of each sequence. As in the paper none sees another by default; the
    compressed layers between them connect them. A stack of local layers alone needs `look_back: 1`.
    """

    kind: Literal["local"] = "local"
    block: int = Field(256, ge=1, description="tokens in a block")
    look_back: int = Field(
        0, ge=0, description="blocks before a token's own that it sees too; in an encoder, as many after it"
    )


class CompressedAttention(LocalAttentionConfig):
    """Fewer keys and values, made by a strided convolution: work divided by the stride (Liu et al. 2018).

    In a decoder a query sees no compressed key that was made of later tokens, so of the last few tokens (fewer than
    the stride) it may see none but itself.
    """

    kind: Literal["compressed"] = "compressed"
    kernel: int = Field(3, ge=1, description="tokens that one compressed key and value is made of")
    stride: int = Field(3, ge=1, description="tokens from one to the next")

    @model_validator(mode="after")
    def _covers_every_token(self) -> CompressedAttention:
        if self.kernel < self.stride:
            raise ValueError(
                f"local_attention.kernel ({self.kernel}) is less than local_attention.stride ({self.stride}), so some "
                f"tokens would be in no key; raise kernel, or lower stride"
            )
        return self


class AttentionConfig(Section):
    """The attention heads of a Transformer: by default as in Vaswani et al. 2017.

    All keys hold for self-attention and for cross-attention alike, but `local_attention`: every token of a source can
    be attended to.
    """

    kind: ScoreKind = Field(
        "scaled-dot",
        description="the score of a query and a key; linear, unscaled-linear: the scores themselves, divided by the "
        "number of keys, are the weights (no softmax)",
    )
    projections: bool = Field(
        True, description="false: queries, keys and values are the states themselves, split into heads"
    )
    groups: int | None = Field(
        None,
        ge=1,
        description="heads of keys and values, each shared by several query heads (grouped-query attention); by "
        "default one for each",
    )
    local_attention: tuple[LocalAttentionConfig, ...] = Field(
        (FullAttention(),),
        min_length=1,
        description="how far self-attention reaches: in the first layer, the second, ..., and again from the first "
        "(local, compressed: DMCA)",
    )

    @model_validator(mode="after")
    def _groups_need_projections(self) -> AttentionConfig:
        if self.groups is not None and not self.projections:
            raise ValueError(
                f"attention.groups ({self.groups}) share projected keys and values, and attention.projections: false "
                f"has none; leave one of them out"
            )
        return self


class RecurrentAttentionConfig(Section):
    """The attention of a recurrent decoder to the encoder's states."""

    kind: Annotated[str, Registered("score", extra=("none",))] = Field(
        "additive",
        description="the score of a decoder state and an encoder state; none: the encoder's final state is all the "
        "decoder knows of the source",
    )


def divisors(number: int) -> list[int]:
    """The divisors of a number, from 1 on."""
    return [each for each in range(1, number + 1) if number % each == 0]
