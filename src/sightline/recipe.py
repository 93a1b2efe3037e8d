"""The recipe: one YAML file that describes a whole experiment.

Each section is a frozen pydantic model; the parts of a model (encoder, decoder, attention, positions, ...) are
discriminated unions on `kind`, so a recipe is put together, not flagged. Unknown keys fail with the nearest right
key and the line they stand on. See `recipe_files.py` for reading, overriding and saving.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Column = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base of every part of a recipe: immutable, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# --- data ----------------------------------------------------------------------------------------------------------


class Source(Section):
    """What every source of examples has."""

    weight: float = Field(1.0, gt=0, description="how often each example is seen per epoch (0.5: half of them)")
    share: tuple[float, float] | None = Field(
        None, description="keep the examples whose source text hashes into [from, to) of [0, 1): disjoint splits"
    )

    @model_validator(mode="after")
    def _share_is_an_interval(self) -> Source:
        if self.share is not None and not 0.0 <= self.share[0] < self.share[1] <= 1.0:
            raise ValueError(f"share {list(self.share)} must be [from, to] with 0 <= from < to <= 1")
        return self


class TextSource(Source):
    """Two text files read side by side, line by line."""

    kind: Literal["text"] = "text"
    source: str
    target: str


class TsvSource(Source):
    """One file of tab-separated columns."""

    kind: Literal["tsv"] = "tsv"
    file: str
    columns: tuple[Column, Column] = Field((1, 2), description="which columns hold source and target, counted from 1")


class JsonLinesSource(Source):
    """One JSON object a line."""

    kind: Literal["jsonl"] = "jsonl"
    file: str
    source: str = Field("source", description="the key of the source text")
    target: str = Field("target", description="the key of the target text")


class PatternSource(Source):
    """One file whose lines match, end to end, a regular expression with the named groups `source` and `target`."""

    kind: Literal["pattern"] = "pattern"
    file: str
    pattern: str
    skip: str | None = Field(None, description="lines that have a match of this are passed over (comments)")
    spell: bool = Field(False, description="put a space between the characters of the source (spelling to sound)")

    @model_validator(mode="after")
    def _expressions_are_sound(self) -> PatternSource:
        for name, expression in (("pattern", self.pattern), ("skip", self.skip or "")):
            try:
                groups = re.compile(expression).groupindex
            except re.error as error:
                raise ValueError(f"{name} {expression!r} is not a regular expression: {error}") from error
            if name == "pattern" and not {"source", "target"} <= set(groups):
                raise ValueError(f"pattern {expression!r} needs the groups (?P<source>...) and (?P<target>...)")
        return self


class DatesSource(Source):
    """The built-in corpus: dates as people write them, in many languages, and the same dates in ISO 8601."""

    kind: Literal["dates"] = "dates"
    part: Literal["train", "validation", "test"]
    examples: int = Field(20_000, ge=1)
    locales: tuple[str, ...] = ("en_US", "en_GB", "de", "fr", "es", "it", "nl", "pt", "sv", "pl")
    seed: int = 1


AnySource = Annotated[
    TextSource | TsvSource | JsonLinesSource | PatternSource | DatesSource, Field(discriminator="kind")
]


class Clean(Section):
    """What is dropped from the training text before it is learned from; every drop is counted by reason."""

    max_tokens: int = Field(256, ge=2, description="longest side kept, in tokens")
    max_ratio: float | None = Field(None, gt=1, description="most times longer, in tokens, one side may be")
    deduplicate: Literal["none", "pairs", "sources", "targets"] = "none"
    drop_copies: bool = Field(False, description="drop pairs whose sides are the same text")


class Data(Section):
    """Where the examples come from."""

    folder: str | None = Field(
        None, description="where relative file names start: beside the recipe, or in $SIGHTLINE_CORPORA"
    )
    train: tuple[AnySource, ...] = Field(min_length=1)
    validation: AnySource
    tests: dict[str, AnySource] = {}
    swap: bool = Field(False, description="exchange source and target: the other direction of the same corpus")
    limit: int | None = Field(None, ge=1, description="use only the first so many training examples")
    validation_limit: int | None = Field(None, ge=1, description="use only the first so many validation examples")
    clean: Clean = Clean()


# --- tokenizer -----------------------------------------------------------------------------------------------------


class TokenizerSection(Section):
    """What every tokenizer has."""

    shared: bool = Field(True, description="one vocabulary for both sides, or one each")
    normalize: Literal["none", "nfc", "nfkc"] = "nfc"
    lowercase: bool = False


class WordTokenizer(TokenizerSection):
    """Words and punctuation marks; rare ones are unknown."""

    kind: Literal["word"] = "word"
    size: int = Field(10_000, ge=8)
    min_count: int = Field(2, ge=1)


class CharacterTokenizer(TokenizerSection):
    """One token a character."""

    kind: Literal["character"] = "character"
    size: int = Field(1_000, ge=8)
    min_count: int = Field(1, ge=1)


class BpeTokenizer(TokenizerSection):
    """Byte-pair encoding (Sennrich et al. 2016)."""

    kind: Literal["bpe"] = "bpe"
    size: int = Field(8_000, ge=8)
    min_count: int = Field(2, ge=1)
    dropout: Probability = Field(0.0, description="BPE-dropout (Provilkov et al. 2020): share of merges left out")
    variants: int = Field(8, ge=1, description="with dropout: how many differently cut copies of the text are made")


class UnigramTokenizer(TokenizerSection):
    """Unigram language model pieces (Kudo 2018)."""

    kind: Literal["unigram"] = "unigram"
    size: int = Field(8_000, ge=8)


AnyTokenizer = Annotated[
    WordTokenizer | CharacterTokenizer | BpeTokenizer | UnigramTokenizer, Field(discriminator="kind")
]


# --- model ---------------------------------------------------------------------------------------------------------


class Norm(Section):
    """Normalization of the tokens' features, and where it stands in the block."""

    kind: Literal["layer", "rms", "batch"] = Field(
        "layer", description="batch: each feature over all real tokens of the batch, at test by running averages"
    )
    place: Literal["pre", "post", "none"] = "pre"
    gain: bool = Field(True, description="learn a factor for each feature")
    bias: bool = Field(True, description="layer and batch: learn an addend for each feature")


class Positions(Section):
    """How a Transformer knows the order of its tokens."""

    kind: Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "none"] = "sinusoidal"
    longest: int = Field(1024, ge=1, description="learned: size of the table; longer input is an error")
    combine: Literal["add", "concatenate"] = Field(
        "add", description="sinusoidal and learned: add to the embedding, or put beside it and project back"
    )
    width: int | None = Field(None, ge=1, description="concatenate: width of a position; by default the model's")
    buckets: int = Field(32, ge=4, description="t5: how many distances are told apart")
    farthest: int | None = Field(
        None, ge=1, description="t5, shaw: distance from which on all are alike; by default 128 and 16"
    )

    @property
    def farthest_distance(self) -> int:
        """`farthest`, or the default of the kind."""
        return self.farthest or (128 if self.kind == "t5" else 16)

    @model_validator(mode="after")
    def _parts_fit_the_kind(self) -> Positions:
        if self.combine == "concatenate" and self.kind not in ("sinusoidal", "learned"):
            raise ValueError(f"positions.combine: concatenate has nothing to put beside the embedding with {self.kind}")
        if self.combine == "add" and self.width is not None:
            raise ValueError(f"positions.width ({self.width}) needs positions.combine: concatenate; what is added fits")
        if self.kind == "t5" and self.buckets % 2:
            raise ValueError(f"positions.buckets ({self.buckets}) must be even: half are for each side of the query")
        if self.kind == "t5" and self.farthest_distance <= self.buckets // 2:
            raise ValueError(
                f"positions.farthest ({self.farthest_distance}) must be more than half of positions.buckets "
                f"({self.buckets}), which hold one distance each"
            )
        return self


class FeedForward(Section):
    """The position-wise network of a Transformer block."""

    kind: Literal["relu", "gelu", "swiglu"] = "relu"
    width: int | None = Field(None, ge=1, description="inner width; by default four times the model's")
    dropout: Probability = Field(0.0, description="on the inner activations; the original has none")


class TransformerBody(Section):
    """A stack of attention and feed-forward blocks (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(6, ge=1)
    heads: int = Field(8, ge=1)
    feedforward: FeedForward = FeedForward()
    norm: Norm = Norm()
    positions: Positions = Positions()
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0


class RecurrentEncoder(Section):
    """A stack of recurrent layers that reads the source."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["elman", "gru", "lstm"] = "lstm"
    layers: int = Field(1, ge=1)
    bidirectional: bool = True
    dropout: Probability = 0.1


class NoAttention(Section):
    """The bottleneck: all the decoder knows of the source is the vector it starts from."""

    kind: Literal["none"] = "none"


class ScoredAttention(Section):
    """Attention with one of the score functions."""

    kind: Literal["dot", "scaled-dot", "bilinear", "additive", "linear"] = "additive"


AnyAttention = Annotated[NoAttention | ScoredAttention, Field(discriminator="kind")]


class RecurrentDecoder(Section):
    """A stack of recurrent layers that writes the target, looking back at the source through its attention."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["elman", "gru", "lstm"] = "lstm"
    layers: int = Field(1, ge=1)
    attention: AnyAttention = ScoredAttention()
    input_feeding: bool = Field(False, description="give the last attentional state back with the next token")
    dropout: Probability = 0.1

    @model_validator(mode="after")
    def _feeding_needs_attention(self) -> RecurrentDecoder:
        if self.input_feeding and self.attention.kind == "none":
            raise ValueError("input_feeding: true needs an attention; set attention.kind or input_feeding: false")
        return self


AnyEncoder = Annotated[TransformerBody | RecurrentEncoder, Field(discriminator="kind")]
AnyDecoder = Annotated[TransformerBody | RecurrentDecoder, Field(discriminator="kind")]


class Model(Section):
    """An encoder, a decoder, and the embeddings around them, all of one width."""

    width: int = Field(512, ge=1)
    encoder: AnyEncoder
    decoder: AnyDecoder
    tie: Literal["none", "output", "all"] = Field(
        "all", description="output: target embedding = output layer; all: the source embedding too"
    )

    @model_validator(mode="after")
    def _widths_fit(self) -> Model:
        for side, body in (("encoder", self.encoder), ("decoder", self.decoder)):
            if isinstance(body, TransformerBody):
                if self.width % body.heads:
                    raise ValueError(f"width ({self.width}) is not divisible by {side}.heads ({body.heads})")
                if body.positions.kind == "rotary" and (self.width // body.heads) % 2:
                    raise ValueError(
                        f"rotary positions need an even head width, and width / {side}.heads is "
                        f"{self.width // body.heads}"
                    )
                position_width = body.positions.width or self.width
                if body.positions.kind == "sinusoidal" and position_width % 2:
                    raise ValueError(f"sinusoidal positions need an even width, not {position_width}")
        if isinstance(self.encoder, RecurrentEncoder) and self.encoder.bidirectional and self.width % 2:
            raise ValueError(f"a bidirectional encoder gives each direction half the width, and {self.width} is odd")
        return self


# --- training ------------------------------------------------------------------------------------------------------


class Schedule(Section):
    """How the learning rate moves; `lr` is its peak."""

    kind: Literal["constant", "inverse-sqrt", "cosine", "warmup-stable-decay"] = "inverse-sqrt"
    warmup: int = Field(4_000, ge=0, description="steps of linear rise")
    decay: float = Field(0.2, gt=0, le=1, description="warmup-stable-decay: share of all steps spent decaying")
    floor: float = Field(0.0, ge=0, le=1, description="cosine and warmup-stable-decay: where to end, as share of lr")


class Batches(Section):
    """How examples are put together."""

    tokens: int = Field(4_096, ge=1, description="most tokens on the longer side of a batch")
    accumulate: int = Field(1, ge=1, description="batches per optimizer step")
    layout: Literal["auto", "packed", "padded"] = Field("auto", description="see layers/layout.py")


class Limits(Section):
    """When training ends: at the first of these."""

    steps: int | None = Field(None, ge=1)
    epochs: int | None = Field(None, ge=1)
    minutes: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _some_limit(self) -> Limits:
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise ValueError("training needs an end: set limits.steps, limits.epochs or limits.minutes")
        return self


class Stopping(Section):
    """Early stopping, and which checkpoint is the best."""

    on: Literal["loss", "metric"] = Field("loss", description="metric: decode the validation set, use the first metric")
    beam: int = Field(1, ge=1, description="beam of that decoding")
    patience: int | None = Field(None, ge=1, description="validations without a new best before stopping")


class Averaging(Section):
    """Averages of weights over time, which are often better than any one of them."""

    kind: Literal["none", "ema", "checkpoints"] = Field(
        "none",
        description="ema: running average, validated and saved; checkpoints: mean of the newest ones, at the end",
    )
    decay: float = Field(0.999, gt=0, lt=1, description="ema: how much of the average is kept each step")
    count: int = Field(5, ge=1, description="checkpoints: how many")


class Training(Section):
    """The loop."""

    lr: float = Field(5e-4, gt=0)
    schedule: Schedule = Schedule()
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(1.0, gt=0, description="largest norm of the gradient")
    label_smoothing: Probability = 0.1
    batches: Batches = Batches()
    limits: Limits = Limits(epochs=10)
    validate_every: int | None = Field(None, ge=1, description="steps between validations; by default once an epoch")
    save_every: int | None = Field(None, ge=1, description="steps between checkpoints; by default at each validation")
    keep: int = Field(3, ge=2, description="newest checkpoints kept, beside the best")
    log_every: int = Field(50, ge=1)
    samples: int = Field(3, ge=0, description="translations shown at each validation")
    stopping: Stopping = Stopping()
    averaging: Averaging = Averaging()
    result: Literal["best", "last"] = Field("best", description="which weights the finished model has")
    precision: Literal["float32", "bf16"] = Field("float32", description="bf16: matrix products in bfloat16")
    compile: bool | None = Field(None, description="torch.compile the step; by default on CUDA where shapes are static")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    threads: int | None = Field(None, ge=1, description="CPU threads; by default what PyTorch chooses")
    tensorboard: bool = False


# --- decoding and evaluation ---------------------------------------------------------------------------------------


class Sampling(Section):
    """Drawing instead of searching."""

    temperature: float = Field(1.0, gt=0)
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int = Field(1, ge=0)


class Decoding(Section):
    """From a distribution to a text."""

    beam: int = Field(5, ge=1, description="1 is greedy")
    nbest: int = Field(1, ge=1)
    length_penalty: float = Field(1.0, ge=0, description="alpha of ((5 + length) / 6)^alpha (Wu et al. 2016)")
    coverage_penalty: float = Field(0.0, ge=0, description="beta of the same; needs attention weights")
    max_length: int = Field(256, ge=1, description="most tokens of output")
    max_ratio: float = Field(3.0, gt=0, description="most output tokens per source token, plus ten")
    sample: Sampling | None = None
    batch_tokens: int = Field(8_192, ge=1, description="source tokens decoded together, times beam")

    @model_validator(mode="after")
    def _nbest_fits(self) -> Decoding:
        if self.sample is None and self.nbest > self.beam:
            raise ValueError(f"nbest ({self.nbest}) is more than beam ({self.beam}); raise beam to at least nbest")
        return self


MetricName = Literal["bleu", "chrf", "ter", "exact", "wer", "cer", "perplexity"]


class Evaluation(Section):
    """How outputs are scored; the first metric is the one that early stopping and tables look at."""

    metrics: tuple[MetricName, ...] = Field(("bleu", "chrf"), min_length=1)
    lowercase: bool = Field(False, description="score in lower case")
    bootstrap: int = Field(1_000, ge=2, description="resamples for the 95% interval")


class Recipe(Section):
    """A whole experiment."""

    task: Literal["seq2seq"] = "seq2seq"
    seed: int = Field(1, ge=0)
    data: Data
    tokenizer: AnyTokenizer = BpeTokenizer()
    model: Model
    training: Training = Training()
    decoding: Decoding = Decoding()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _parts_fit(self) -> Recipe:
        if self.model.tie == "all" and not self.tokenizer.shared:
            raise ValueError("model.tie: all needs one vocabulary; set tokenizer.shared: true or model.tie: output")
        decoder = self.model.decoder
        if self.decoding.coverage_penalty > 0 and isinstance(decoder, RecurrentDecoder):
            if decoder.attention.kind == "none":
                raise ValueError("decoding.coverage_penalty needs a decoder with attention")
        longest = self.data.clean.max_tokens + 1  # a sentence and its end mark
        for side, body in (("encoder", self.model.encoder), ("decoder", decoder)):
            if isinstance(body, TransformerBody) and body.positions.kind == "learned":
                if body.positions.longest < longest:
                    raise ValueError(
                        f"model.{side}.positions.longest ({body.positions.longest}) is less than the longest sentence "
                        f"data.clean.max_tokens lets through ({longest} with its end mark); raise it, or lower that"
                    )
        return self
