"""What encoders and decoders can be: the sections of a recipe that a model is put together from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sightline.recipe.schema import Probability, Section


class NormConfig(Section):
    """Normalization of the tokens' features, and where it stands in the block."""

    kind: Literal["layer", "rms", "batch"] = Field(
        "layer", description="batch: each feature over all real tokens of the batch, at test by running averages"
    )
    place: Literal["pre", "post", "none"] = Field("pre", description="before each block, or after its residual sum")
    gain: bool = Field(True, description="learn a factor for each feature")
    bias: bool = Field(True, description="layer and batch: learn an addend for each feature")


class PositionsConfig(Section):
    """How a Transformer knows the order of its tokens."""

    kind: Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "none"] = Field(
        "sinusoidal",
        description="sinusoidal, learned: vectors of places; rotary: queries and keys are turned; alibi, t5: biases by "
        "distance; shaw: keys by distance",
    )
    max_positions: int = Field(1024, ge=1, description="learned: size of the table; longer input is an error")
    combine: Literal["add", "concatenate"] = Field(
        "add", description="sinusoidal and learned: add to the embedding, or put beside it and project back"
    )
    width: int | None = Field(None, ge=1, description="concatenate: width of a position; by default the model's")
    buckets: int = Field(32, ge=4, description="t5: how many distances are told apart")
    max_distance: int | None = Field(
        None, ge=1, description="t5, shaw: distance from which on all are alike; by default 128 and 16"
    )

    @property
    def max_distance_or_default(self) -> int:
        """`max_distance`, or the default of the kind."""
        return self.max_distance or (128 if self.kind == "t5" else 16)

    @model_validator(mode="after")
    def _parts_fit_the_kind(self) -> PositionsConfig:
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
        if self.kind == "t5" and self.max_distance_or_default <= self.buckets // 2:
            raise ValueError(
                f"positions.max_distance ({self.max_distance_or_default}) must be more than half of positions.buckets "
                f"({self.buckets}), which hold one distance each; raise it, or lower buckets"
            )
        return self


class ExpertsConfig(Section):
    """A sparsely-gated mixture of experts: many nets, of which each token sees a few (Shazeer et al. 2017)."""

    count: int = Field(8, ge=2, description="how many there are")
    top_k: int = Field(
        2,
        ge=1,
        description="how many of them each token is sent to; with one alone, gates learn only to share out",
    )
    capacity_factor: float = Field(
        2.0,
        gt=0,
        description="training: an expert takes so many times its even share of a batch, padding included; what is over "
        "that is dropped. At test there is no limit",
    )
    noise: bool = Field(True, description="training: choose with noise, as wide as is learned")
    hidden: int | None = Field(None, ge=1, description="inner width of each; by default that of a feed-forward net")
    importance: float = Field(0.1, ge=0, description="weight of the loss that evens out the sums of the gates")
    load: float = Field(0.1, ge=0, description="weight of the loss that evens out how many tokens each is sent")

    @model_validator(mode="after")
    def _can_be_chosen(self) -> ExpertsConfig:
        if self.top_k > self.count:
            raise ValueError(
                f"experts.top_k ({self.top_k}) is more than experts.count ({self.count}); lower it, or raise count"
            )
        if self.load and not self.noise:
            raise ValueError(
                f"experts.load ({self.load}) is estimated through the noise, and experts.noise: false has none; set "
                f"experts.load: 0"
            )
        return self


class LayerExpertsConfig(ExpertsConfig):
    """Experts in place of the feed-forward nets of some layers."""

    every: int = Field(1, ge=1, description="n: the n-th layer from the bottom has them, the 2n-th, the 3n-th, ...")


class FeedForwardConfig(Section):
    """The position-wise network of a Transformer block."""

    kind: Literal["relu", "gelu", "swiglu"] = Field("relu", description="the activation; swiglu: gated")
    width: int | None = Field(None, ge=1, description="inner width; by default four times the model's")
    dropout: Probability = Field(0.0, description="on the inner activations; the original has none")
    experts: LayerExpertsConfig | None = Field(None, description="a mixture of such nets in some layers")


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
                f"pattern.kernel ({self.kernel}) is less than pattern.stride ({self.stride}), so some tokens would "
                f"be seen by none; raise kernel, or lower stride"
            )
        return self


SpanConfig = Annotated[
    FullAttentionConfig | LocalAttentionConfig | CompressedAttentionConfig, Field(discriminator="kind")
]


class HeadAttentionConfig(Section):
    """How the heads of a Transformer look: by default as in Vaswani et al. 2017; the variants are to be compared with.

    They hold for self-attention and for attention to a source alike, but for `pattern`: all of a source is looked at.
    """

    kind: Literal["softmax", "linear"] = Field(
        "softmax",
        description="linear: no softmax; the scores themselves, divided by how many keys are seen, are weights",
    )
    scaled: bool = Field(True, description="divide the scores q·k by the root of the head width")
    projections: bool = Field(
        True,
        description="false: queries, keys and values are the states themselves, cut into heads; nothing is learned",
    )
    kv_heads: int | None = Field(
        None, ge=1, description="heads of keys and values, each shared by several of queries; by default one for each"
    )
    pattern: tuple[SpanConfig, ...] = Field(
        (FullAttentionConfig(),),
        min_length=1,
        description="how far self-attention sees: in the first layer, the second, ..., again (local, compressed: DMCA)",
    )

    @model_validator(mode="after")
    def _groups_have_something_to_share(self) -> HeadAttentionConfig:
        if self.kv_heads is not None and not self.projections:
            raise ValueError(
                f"attention.kv_heads ({self.kv_heads}) share projected keys and values, and attention.projections: "
                f"false has none; leave one of them out"
            )
        return self


class TransformerConfig(Section):
    """A stack of attention and feed-forward blocks (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(6, ge=1, description="how many blocks")
    heads: int = Field(8, ge=1, description="attention heads of each; they divide the width evenly")
    feedforward: FeedForwardConfig = Field(FeedForwardConfig(), description="the network after each attention")
    norm: NormConfig = Field(NormConfig(), description="normalization, and where it stands")
    positions: PositionsConfig = Field(PositionsConfig(), description="how order is known")
    attention: HeadAttentionConfig = Field(HeadAttentionConfig(), description="how heads look")
    dropout: Probability = Field(0.1, description="on embeddings and before each residual sum, in training")
    attention_dropout: Probability = Field(0.0, description="on attention weights, in training")

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
            raise ValueError(
                f"heads ({self.heads}) is not divisible by attention.kv_heads ({groups}); set groups to "
                f"{_either(divisors(self.heads))}"
            )
        # What ALiBi subtracts makes a softmax's weight small; without one it would make it large and negative.
        # A bias that is learned (t5) or asked for by the query (shaw) finds its own sign.
        if self.attention.kind == "linear" and self.positions.kind == "alibi":
            raise ValueError(
                "positions.kind: alibi fades what is far through the softmax, and attention.kind: linear has none; "
                "take rotary, t5 or shaw positions, or attention.kind: softmax"
            )
        short = [span.kind for span in self.attention.pattern if span.kind != "full"]
        if short and self.positions.kind in ("alibi", "t5", "shaw"):
            raise ValueError(
                f"positions.kind: {self.positions.kind} tells every pair of tokens apart, and attention.pattern: "
                f"{short[0]} never looks at most of them; take sinusoidal, learned, rotary or no positions"
            )
        return self


def divisors(number: int) -> list[int]:
    """Those of a number, from 1 on."""
    return [each for each in range(1, number + 1) if number % each == 0]


def _either(numbers: list[int]) -> str:
    return " or ".join([", ".join(map(str, numbers[:-1])), str(numbers[-1])] if len(numbers) > 1 else map(str, numbers))


SkipConnections = Annotated[
    Literal["none", "residual", "fast-forward"],
    Field(description="past each layer: x + h from the third on (Wu et al. 2016); a linear map of both (Zhou et al.)"),
]


def _check_between(experts: ExpertsConfig | None, layers: int) -> None:
    if experts is not None and layers < 2:
        raise ValueError(f"experts stand between recurrent layers, and there is {layers}; set layers to 2 or more")


class RecurrentEncoderConfig(Section):
    """A stack of recurrent layers that reads the source."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["elman", "gru", "lstm"] = Field("lstm", description="the recurrence")
    layers: int = Field(1, ge=1, description="how many")
    bidirectional: bool = Field(True, description="read backwards, too")
    directions: Literal["all", "bottom", "alternating"] = Field(
        "all",
        description="bidirectional: both ways in all layers, or in the bottom one alone and forwards above it, or each "
        "layer one way, forwards and backwards in turns",
    )
    skip_connections: SkipConnections = "none"
    experts: ExpertsConfig | None = Field(None, description="a mixture of feed-forward nets below the top layer")
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    @model_validator(mode="after")
    def _directions_fit(self) -> RecurrentEncoderConfig:
        _check_between(self.experts, self.layers)
        if self.directions != "all" and not self.bidirectional:
            raise ValueError(
                f"directions: {self.directions} reads backwards too, and bidirectional: false never does; leave one out"
            )
        if self.directions == "alternating" and self.layers == 1:
            raise ValueError("directions: alternating needs at least two layers to take turns, not 1; use all")
        return self

    @property
    def splits_width(self) -> bool:
        """Whether a layer reads both ways, each direction with half the width."""
        return self.bidirectional and self.directions != "alternating"


class NoAttentionConfig(Section):
    """The bottleneck: all the decoder knows of the source is the vector it starts from."""

    kind: Literal["none"] = "none"


class ScoredAttentionConfig(Section):
    """Attention with one of the score functions."""

    kind: Literal["dot", "scaled-dot", "bilinear", "additive", "linear"] = Field(
        "additive", description="the score of a decoder state and a source state; linear: scores without softmax"
    )


AttentionConfig = Annotated[NoAttentionConfig | ScoredAttentionConfig, Field(discriminator="kind")]


class RecurrentDecoderConfig(Section):
    """A stack of recurrent layers that writes the target, looking back at the source through its attention."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["elman", "gru", "lstm"] = Field("lstm", description="the recurrence")
    layers: int = Field(1, ge=1, description="how many")
    attention: AttentionConfig = Field(ScoredAttentionConfig(), description="how it looks back at the source")
    attention_from: Literal["top", "bottom"] = Field(
        "top", description="bottom: the bottom layer looks, and the layers above it read what it saw (Wu et al. 2016)"
    )
    input_feeding: bool = Field(
        False,
        description="give the last attentional state (attention_from: bottom: context) back with the next token",
    )
    skip_connections: SkipConnections = "none"
    experts: ExpertsConfig | None = Field(None, description="a mixture of feed-forward nets below the top layer")
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    @model_validator(mode="after")
    def _parts_need_attention(self) -> RecurrentDecoderConfig:
        _check_between(self.experts, self.layers)
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


class WindowConfig(Section):
    """A feed-forward net over a fixed window of tokens (Bengio et al. 2003): what is further away does not exist."""

    kind: Literal["window"] = "window"
    size: int = Field(4, ge=1, description="tokens seen: the last ones (decoder), or as many on each side (encoder)")
    layers: int = Field(1, ge=1, description="hidden layers")
    hidden: int | None = Field(None, ge=1, description="their width; by default twice the model's")
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")


class LearnedPositionsConfig(Section):
    """One learned vector for each place, added to what stands there."""

    kind: Literal["learned", "none"] = Field("learned", description="whether there are any")
    max_positions: int = Field(1024, ge=1, description="size of the table; longer input is an error")


class ConvolutionalConfig(Section):
    """A stack of gated convolutions; a decoder looks at the source after each of them (Gehring et al. 2017)."""

    kind: Literal["convolutional"] = "convolutional"
    layers: int = Field(6, ge=1, description="how many")
    channels: int | None = Field(
        None,
        ge=1,
        description="how wide the layers are; by default as the model. Linear maps lead to another width and back, and "
        "what attention looks at stays as wide as the model",
    )
    kernel: int = Field(3, ge=1, description="tokens seen at once: around each (encoder; odd), or up to it (decoder)")
    positions: LearnedPositionsConfig = Field(
        LearnedPositionsConfig(), description="how order is known beyond a kernel"
    )
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")

    def layer_width(self, width: int) -> int:
        """How wide the layers are in a model of this width."""
        return self.channels or width


class ByteNetConfig(Section):
    """A stack of dilated convolutions; a decoder runs over the source at a fixed ratio (Kalchbrenner et al. 2016).

    The ratio is fitted on the training data; there is no attention.
    """

    kind: Literal["bytenet"] = "bytenet"
    layers: int = Field(10, ge=1, description="how many")
    kernel: int = Field(3, ge=1, description="tokens seen at once: around each (encoder; odd), or up to it (decoder)")
    dilations: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1, 2, 4, 8, 16),
        min_length=1,
        description="how far apart they stand: in the first layer, the second, ..., again",
    )
    dropout: Probability = Field(0.1, description="share of features dropped between layers, in training")


class NgramConfig(Section):
    """Counts with interpolated Kneser–Ney smoothing: a language model without a network."""

    kind: Literal["ngram"] = "ngram"
    order: int = Field(5, ge=1, description="the longest sequence counted")


EncoderConfig = Annotated[
    TransformerConfig | RecurrentEncoderConfig | ConvolutionalConfig | ByteNetConfig | WindowConfig,
    Field(discriminator="kind"),
]
DecoderConfig = Annotated[
    TransformerConfig | RecurrentDecoderConfig | ConvolutionalConfig | ByteNetConfig | WindowConfig | NgramConfig,
    Field(discriminator="kind"),
]
BodyConfig = (
    TransformerConfig
    | RecurrentEncoderConfig
    | RecurrentDecoderConfig
    | ConvolutionalConfig
    | ByteNetConfig
    | WindowConfig
    | NgramConfig
)


def learned_positions(body: BodyConfig | None) -> int | None:
    """How many tokens a body has learned positions for; None where it has none, and no limit."""
    if isinstance(body, TransformerConfig | ConvolutionalConfig) and body.positions.kind == "learned":
        return body.positions.max_positions
    return None
