"""The model section: embeddings, an encoder, a decoder or both, and the sections that all architectures share.

Every architecture has its own config beside its modules (`models/transformer/config.py`, ...), a subclass of
`BodyConfig`. Recipes find it through the registry, so that this package never imports a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import Field, field_validator, model_validator

from sightline.recipe.schema import Probability, Section, open_union
from sightline.terminal import plural

Part = Literal["encoder", "decoder", "embeddings", "head"]


# --- encoders and decoders --------------------------------------------------------------------------------------------


class BodyConfig(Section):
    """Base of the configs of encoders and decoders: the properties of an architecture that other packages read.

    The defaults suit a plain stack of layers.
    """

    recurrent: ClassVar[bool] = False  # has a state that a language model can carry from window to window
    counted: ClassVar[bool] = False  # counts its training text instead of following gradients
    packable: ClassVar[bool] = False  # trains on sequences without padding
    follows_source: ClassVar[bool] = False  # a decoder that needs sources of a length in proportion to the output
    has_transformer_layers: ClassVar[bool] = False  # for adapters and gradient checkpointing

    kind: str
    width: int | None = Field(None, ge=1, description="size of its states, if it is not model.width")

    @property
    def attention_layers(self) -> int:
        """How many layers of a decoder attend to the encoder."""
        return 0

    @property
    def attention_heads(self) -> int:
        """The number of heads in each group."""
        return 1

    @property
    def attention_kind(self) -> str:
        """The score of that attention; `none` without attention."""
        return "none"

    @property
    def needs_encoder(self) -> bool:
        """A decoder that does not work without an encoder."""
        return False

    @property
    def reads_backwards(self) -> bool:
        """The state of an encoder's first token depends on all tokens."""
        return True

    @property
    def max_positions(self) -> int | None:
        """The most tokens that it has learned positions for; None: no limit."""
        return None

    @property
    def mixture(self) -> ExpertsConfig | None:
        """Its mixture of experts."""
        return None

    @property
    def fits_packed_kernels(self) -> bool:
        """CUDA kernels for packed batches compute all of its attention."""
        return True

    @property
    def takes_memory_width(self) -> bool:
        """True if a decoder can attend to encoder states of another width than its own."""
        return False

    def check_memory(self, encoder: BodyConfig, encoder_width: int, width: int) -> None:
        """Raise a ValueError if a decoder of some width cannot read the states of an encoder."""

    def embedding_width(self, width: int) -> int:
        """Width of the token embeddings that it reads, if its states have some width."""
        return width

    def layer_width(self, width: int) -> int:
        """Width of its layers in a model of some width."""
        return width

    def check_width(self, width: int, side: str) -> None:
        """Raise a ValueError if it cannot have the width of the model; `side` is `encoder` or `decoder`."""

    def describe(self) -> str:
        """The architecture in a few words, for model cards."""
        layers = getattr(self, "layers", None)
        return self.kind + ("" if layers is None else f", {plural(layers, 'layer')}")


# --- layers that architectures share ----------------------------------------------------------------------------------


class NormConfig(Section):
    """Normalization of the features of each token, and its place in a residual block."""

    kind: Literal["layer", "rms", "batch"] = Field(
        "layer", description="batch: by feature, over all real tokens of the batch; at test time by running averages"
    )
    place: Literal["pre", "post", "none"] = Field("pre", description="before each block, or after its residual sum")
    gain: bool | Literal["scalar"] = Field(
        True, description="learn a factor for each feature; scalar: one for all of them"
    )
    bias: bool = Field(True, description="layer and batch: learn an offset for each feature")


class PositionsConfig(Section):
    """Positional encoding of a Transformer."""

    kind: Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "none"] = Field(
        "sinusoidal",
        description="sinusoidal, learned: position embeddings; rotary: rotated queries and keys; alibi, t5: biases by "
        "distance; shaw: relative keys",
    )
    max_positions: int = Field(1024, ge=1, description="learned: size of the table; longer input is an error")
    combine: Literal["add", "concatenate"] = Field(
        "add", description="sinusoidal and learned: add to the embedding, or concatenate and project back"
    )
    width: int | None = Field(None, ge=1, description="concatenate: width of a position; by default the model's")
    project: bool = Field(
        True,
        description="concatenate: project back to the model's width; false: token embeddings are narrower by `width`",
    )
    buckets: int = Field(32, ge=4, description="t5: number of distance buckets")
    max_distance: int | None = Field(
        None, ge=1, description="t5, shaw: larger distances share one bias or key; by default 128 and 16"
    )

    @property
    def max_distance_or_default(self) -> int:
        """`max_distance`, or the default of the kind."""
        return self.max_distance or (128 if self.kind == "t5" else 16)

    def embedding_width(self, width: int) -> int:
        """Width of the token embeddings beside these positions in a model of some width."""
        return width if self.project else width - (self.width or 0)

    def check_width(self, width: int, side: str) -> None:
        """Raise a ValueError if there are no such positions in an `encoder` or `decoder` of some width."""
        if self.embedding_width(width) < 1:
            raise ValueError(
                f"{side}.positions.width ({self.width}) leaves token embeddings no part of the width ({width}), of "
                f"which positions.project: false takes it; lower it"
            )
        position_width = self.width or width
        if self.kind == "sinusoidal" and position_width % 2:
            raise ValueError(
                f"sinusoidal positions need an even width, not {position_width}; set it to {position_width + 1}"
            )

    @model_validator(mode="after")
    def _parts_fit_the_kind(self) -> PositionsConfig:
        if self.combine == "concatenate" and self.kind not in ("sinusoidal", "learned"):
            raise ValueError(
                f"positions.combine: concatenate has nothing to put beside the embedding with {self.kind}; leave it "
                f"out, or set positions.kind: sinusoidal or learned"
            )
        if self.combine == "add" and self.width is not None:
            raise ValueError(
                f"positions.width ({self.width}) is only for positions.combine: concatenate; added positions have the "
                f"width of the model. Leave it out, or set combine"
            )
        if not self.project and self.combine == "add":
            raise ValueError(
                "positions.project: false is for positions.combine: concatenate; added positions are never projected. "
                "Leave it out, or set combine"
            )
        if not self.project and self.width is None:
            raise ValueError(
                "positions.project: false needs positions.width, the part of the model's width that positions take"
            )
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


class LearnedPositionsConfig(Section):
    """One learned vector for each position, added to the embedding."""

    kind: Literal["learned", "none"] = Field("learned", description="learned position embeddings, or none")
    max_positions: int = Field(1024, ge=1, description="size of the table; longer input is an error")


class ExpertsConfig(Section):
    """A sparsely-gated mixture of experts: several nets, of which each token uses a few (Shazeer et al. 2017)."""

    count: int = Field(8, ge=2, description="number of experts")
    top_k: int = Field(2, ge=1, description="experts that each token is sent to; with 1, gates only balance the load")
    capacity_factor: float = Field(
        2.0,
        gt=0,
        description="training: an expert takes this many times its even share of a batch, padding included, and drops "
        "the rest; at test time there is no limit",
    )
    noise: bool = Field(True, description="training: add learned noise to the gates")
    hidden: int | None = Field(None, ge=1, description="inner width of each; by default that of a feed-forward net")
    importance: float = Field(0.1, ge=0, description="weight of the loss that balances the sums of the gates")
    load: float = Field(0.1, ge=0, description="weight of the loss that balances the tokens sent to each expert")

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

    every: int = Field(1, ge=1, description="n: use experts in layers n, 2n, 3n, ..., counted from the bottom")


class FeedForwardConfig(Section):
    """The position-wise network of a Transformer block."""

    kind: Literal["relu", "gelu", "tanh", "swiglu", "none"] = Field(
        "relu", description="the activation; swiglu: gated; none: blocks of attention alone"
    )
    width: int | None = Field(None, ge=1, description="inner width; by default four times the model's")
    dropout: Probability = Field(0.0, description="on the inner activations; the original has none")
    experts: LayerExpertsConfig | None = Field(None, description="a mixture of experts in some layers")

    @model_validator(mode="after")
    def _none_has_no_parts(self) -> FeedForwardConfig:
        parts = {"width": self.width, "dropout": self.dropout, "experts": self.experts}
        if self.kind == "none" and (extra := [key for key, value in parts.items() if value]):
            raise ValueError(
                f"feedforward.{extra[0]} belongs to a feed-forward net, and feedforward.kind: none has none; leave "
                f"one of them out"
            )
        return self


class FullAttentionConfig(Section):
    """Self-attention to all tokens: work and memory grow with the square of the length."""

    kind: Literal["full"] = "full"


class LocalAttentionConfig(Section):
    """Self-attention within blocks: work and memory grow with the length (Liu et al. 2018, §4.2.4).

    Blocks are counted from the first token of each sequence. As in the paper, no block sees another by default; the
    compressed layers in between connect them. A stack of local layers alone should set `look_back: 1`.
    """

    kind: Literal["local"] = "local"
    block: int = Field(256, ge=1, description="tokens in a block")
    look_back: int = Field(0, ge=0, description="preceding blocks that are seen too; in an encoder as many following")


class CompressedAttentionConfig(Section):
    """Self-attention to keys and values that a strided convolution compresses (Liu et al. 2018, §4.2.4).

    In a decoder, a query sees compressed keys of preceding tokens only, so it may miss its own last few tokens (fewer
    than the stride), but for itself.
    """

    kind: Literal["compressed"] = "compressed"
    kernel: int = Field(3, ge=1, description="tokens that make one compressed key and value")
    stride: int = Field(3, ge=1, description="tokens from one to the next")

    @model_validator(mode="after")
    def _covers_everything(self) -> CompressedAttentionConfig:
        if self.kernel < self.stride:
            raise ValueError(
                f"pattern.kernel ({self.kernel}) is less than pattern.stride ({self.stride}), so some tokens would "
                f"be seen by none; raise kernel, or lower stride"
            )
        return self


if TYPE_CHECKING:
    EncoderConfig = BodyConfig
    DecoderConfig = BodyConfig
    AttentionPattern = FullAttentionConfig | LocalAttentionConfig | CompressedAttentionConfig
    AnyNorm = NormConfig
    AnyPositions = PositionsConfig
    AnyFeedForward = FeedForwardConfig
else:
    EncoderConfig = open_union("encoder", base=BodyConfig)
    DecoderConfig = open_union("decoder", base=BodyConfig)
    AttentionPattern = open_union("pattern")
    AnyNorm = open_union("norm", default="layer", base=NormConfig)
    AnyPositions = open_union("positions", default="sinusoidal", base=PositionsConfig)
    AnyFeedForward = open_union("feedforward", default="relu", base=FeedForwardConfig)


# --- around them ------------------------------------------------------------------------------------------------------


class InitFromConfig(Section):
    """A finished run whose tokenizer and weights initialize a training; `init_from: RUN` is short for `{run: RUN}`.

    The run may be of another task. Keys that the recipe's model section leaves out are those of the run. Without
    `parts`, everything that fits is loaded; with it, each part is loaded whole or the training is refused. The run
    prints what was loaded, what is new and what was left, and stores it in start.json.
    """

    short_for: ClassVar[str | None] = "run"

    run: str = Field(description="its folder")
    parts: tuple[Part, ...] | None = Field(
        None,
        min_length=1,
        description="what to load; head: the output layer, and for a classifier also the layers before it",
    )
    extend_vocabulary: bool = Field(
        False,
        description="add tokens that a tokenizer trained on this recipe's text would have and the run's lacks; "
        "existing tokens keep their ids",
    )


class AdaptersConfig(Section):
    """Low-rank adapters (LoRA; Hu et al. 2021): W + (alpha / rank) B A beside frozen weights W.

    Only A, B and layers that are new to the model are trained. `sightline runs merge RUN --out DIR` merges them into W.
    """

    rank: int = Field(8, ge=1, description="rows of A, columns of B")
    alpha: float = Field(16.0, gt=0, description="scale: the product of A and B is multiplied by alpha / rank")
    target_modules: tuple[Literal["query", "key", "value", "output", "feedforward"], ...] = Field(
        ("query", "value"), min_length=1, description="the maps of a Transformer layer that get an adapter"
    )
    dropout: Probability = Field(0.0, description="on the input of A")
    modules_to_save: tuple[str, ...] = Field((), description="modules to train in full, named as in training.freeze")


class PoolingConfig(Section):
    """Pool the states of a sequence into one vector, which a small network maps to the classes."""

    kind: Literal["last", "last-word", "mean", "max", "class"] = Field(
        "mean",
        description="last: the state after </s>; last-word: that of the token before it; class: that of a class token "
        "at the front",
    )
    hidden: int | None = Field(None, ge=1, description="width of the hidden layer; by default the model's")
    dropout: Probability = Field(0.1, description="share of features dropped, in training")


class CharacterCNNConfig(Section):
    """Concatenate to each token embedding a max-pooled convolution over the characters of the token."""

    width: int = Field(64, ge=1, description="of a character embedding")
    channels: int = Field(256, ge=1, description="filters of the convolution")
    window: int = Field(3, ge=1, description="characters per filter; odd")

    @model_validator(mode="after")
    def _window_is_odd(self) -> CharacterCNNConfig:
        if self.window % 2 == 0:
            raise ValueError(
                f"model.character_cnn.window ({self.window}) must be odd: as many characters on either side; set "
                f"it to {self.window + 1}"
            )
        return self


class WordVectorsConfig(Section):
    """Pretrained embeddings: a word2vec or GloVe file, text or binary."""

    file: str = Field(description="its path, relative to data.folder")
    frozen: bool = Field(False, description="do not train them")


class ModelConfig(Section):
    """An encoder, a decoder, or both, and the embeddings around them, all of one width.

    The task decides which of them a model has: a tagger and a classifier have an encoder, a language model a decoder, a
    translator both; a translator with a decoder alone reads and writes one sequence.
    """

    width: int = Field(512, ge=1, description="size of embeddings and of the states between layers")
    encoder: EncoderConfig | None = Field(None, description="reads the source")
    decoder: DecoderConfig | None = Field(None, description="writes the output")
    pooling: PoolingConfig | None = Field(None, description="of a classifier")
    word_vectors: WordVectorsConfig | None = Field(None, description="pretrained embeddings")
    init_from: InitFromConfig | None = Field(
        None,
        description="a run whose tokenizer and weights to start from: its folder, or a section; keys that this model "
        "section leaves out are those of the run",
        json_schema_extra=lambda schema: cast("Any", schema)["anyOf"].append({"type": "string"}),
    )
    adapters: AdaptersConfig | None = Field(None, description="train low-rank adapters on the weights of init_from")
    character_cnn: CharacterCNNConfig | None = Field(
        None, description="classifiers and taggers: embed the characters of tokens too"
    )
    copying: bool | Literal["exact"] = Field(
        False,
        description="seq2seq: a pointer-generator (See et al. 2017), which can copy words of the source that are in no "
        "vocabulary; exact: only behind a space where the source has one, as older runs do",
    )
    tie: Literal["none", "output", "all"] = Field(
        "all", description="output: target embedding = output layer; all: the source embedding too"
    )
    output_bias: bool = Field(True, description="add a bias to the logits")
    scale_embeddings: bool = Field(True, description="multiply token embeddings by √width (Vaswani et al. 2017, §3.4)")

    @field_validator("init_from", mode="before")
    @classmethod
    def _a_run_alone(cls, value: Any) -> Any:
        return {"run": value} if isinstance(value, str) else value

    @property
    def bodies(self) -> dict[str, BodyConfig]:
        """The encoder and the decoder, where the model has them, by their keys."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {side: body for side, body in both.items() if body is not None}

    def width_of(self, side: str) -> int:
        """Width of the states of the `encoder` or `decoder`."""
        body = self.bodies.get(side)
        return self.width if body is None or body.width is None else body.width

    def embedding_width_of(self, side: str) -> int:
        """Width of the token embeddings that the `encoder` or `decoder` reads."""
        body = self.bodies.get(side)
        return self.width if body is None else body.embedding_width(self.width_of(side))

    @property
    def counted(self) -> bool:
        """True for an n-gram model, which counts its text instead of following gradients."""
        return self.decoder is not None and self.decoder.counted

    @property
    def has_attention(self) -> bool:
        """True if a decoder attends to an encoder."""
        return self.encoder is not None and self.decoder is not None and self.decoder.attention_layers > 0

    @property
    def has_transformer_layers(self) -> bool:
        """True if the encoder or the decoder has Transformer layers."""
        return any(body.has_transformer_layers for body in self.bodies.values())

    @model_validator(mode="after")
    def _adapters_fit(self) -> ModelConfig:
        if self.adapters is None:
            return self
        if self.init_from is None:
            raise ValueError("adapters need weights that are already trained; set init_from, or leave them out")
        if not self.has_transformer_layers:
            raise ValueError("adapters are for Transformer layers, and this model has none; leave them out")
        return self

    @model_validator(mode="after")
    def _widths_fit(self) -> ModelConfig:
        for side, body in self.bodies.items():
            body.check_width(self.width_of(side), side)
        return self

    @model_validator(mode="after")
    def _sides_fit(self) -> ModelConfig:
        if self.encoder is None or self.decoder is None:
            return self
        encoder, decoder = self.width_of("encoder"), self.width_of("decoder")
        if encoder != decoder and not self.decoder.takes_memory_width:
            raise ValueError(
                f"decoder.kind: {self.decoder.kind} reads encoder states of its own width ({decoder}), and the encoder "
                f"is {encoder} wide; use equal widths, or decoder.kind: recurrent or transformer"
            )
        if encoder != decoder and self.tie == "all":
            raise ValueError(
                f"tie: all shares one embedding table, and the encoder is {encoder} wide, the decoder {decoder}; set "
                f"tie: output or none"
            )
        if self.copying and self.embedding_width_of("decoder") != decoder:
            raise ValueError(
                "copying reads token embeddings as wide as the decoder, and decoder.positions.project: false leaves "
                "them narrower; leave one of them out"
            )
        if encoder != decoder and self.copying:
            raise ValueError(
                f"copying attends from decoder to encoder states of one width, not {decoder} and {encoder}; use equal "
                f"widths, or leave copying out"
            )
        self.decoder.check_memory(self.encoder, encoder, decoder)
        return self

    @model_validator(mode="after")
    def _embeddings_fit(self) -> ModelConfig:
        if self.decoder is None or self.tie == "none":
            return self
        target, source = self.embedding_width_of("decoder"), self.embedding_width_of("encoder")
        if target != self.width_of("decoder"):
            raise ValueError(
                f"tie: {self.tie} makes the output layer the target embedding, which decoder.positions.project: false "
                f"leaves {target} wide, and features are {self.width_of('decoder')} wide; set tie: none"
            )
        if self.tie == "all" and self.encoder is not None and source != target:
            raise ValueError(
                f"tie: all shares one embedding table, and encoder.positions.project: false leaves the source's "
                f"{source} wide, while the target's is {target} wide; set tie: output or none"
            )
        return self

    @model_validator(mode="after")
    def _features_fit(self) -> ModelConfig:
        if getattr(self.decoder, "readout", "attentional") != "concatenate":
            return self
        if self.tie != "none":
            raise ValueError(
                f"tie: {self.tie} makes the output layer the target embedding, with a row as wide as the decoder, and "
                f"decoder.readout: concatenate gives it [x ; c], which is wider; set tie: none"
            )
        if self.copying:
            raise ValueError(
                "copying reads features as wide as the decoder, and decoder.readout: concatenate gives [x ; c]; leave "
                "one of them out"
            )
        return self
