"""The model: an encoder, a decoder, or both, and the embeddings around them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from sightline.recipe.bodies import (
    BodyConfig,
    ByteNetConfig,
    ConvolutionalConfig,
    DecoderConfig,
    EncoderConfig,
    RecurrentEncoderConfig,
    TransformerConfig,
)
from sightline.recipe.schema import Probability, Section

Part = Literal["encoder", "decoder", "embeddings", "head"]


class InitFromConfig(Section):
    """A finished run whose tokenizer and weights a training begins with; `init_from: RUN` is short for `{run: RUN}`.

    The run may be of another task. Keys that the recipe's model section leaves out are those of the run. Without
    `parts` all that fits is taken; parts that are named are taken whole, or the training is refused. What was taken,
    what is new and what was left is printed, and kept in start.json.
    """

    short_for: ClassVar[str | None] = "run"

    run: str = Field(description="its folder")
    parts: tuple[Part, ...] | None = Field(
        None, min_length=1, description="what to take; head: the output layer, and what a classifier has before it"
    )
    extend_vocabulary: bool = Field(
        False,
        description="add the tokens that a tokenizer learned from this recipe's text would have and that of the run "
        "has not; the old ones keep their numbers",
    )


def or_a_folder(schema: dict[str, Any]) -> None:
    """The JSON schema of a key that holds a InitFrom or the folder alone."""
    schema["anyOf"].append({"type": "string"})


class AdaptersConfig(Section):
    """Low-rank adapters (LoRA; Hu et al. 2021): W + (alpha / rank) B A beside frozen weights W.

    Only A, B and what is new to the model are trained. `sightline merge RUN --out DIR` makes a plain run of the result.
    """

    rank: int = Field(8, ge=1, description="rows of A, columns of B")
    alpha: float = Field(16.0, gt=0, description="how much they count: their product is multiplied by alpha / rank")
    target_modules: tuple[Literal["query", "key", "value", "output", "feedforward"], ...] = Field(
        ("query", "value"), min_length=1, description="the maps of a Transformer layer that get one"
    )
    dropout: Probability = Field(0.0, description="of what A reads")
    modules_to_save: tuple[str, ...] = Field((), description="what else is trained, named as in training.freeze")


class PoolingConfig(Section):
    """From the states of a sequence to one vector, and on through a small network."""

    kind: Literal["last", "mean", "max", "class"] = Field(
        "mean", description="last: the state after the last token; class: that of a token of its own, set before all"
    )
    hidden: int | None = Field(None, ge=1, description="width of the hidden layer; by default the model's")
    dropout: Probability = Field(0.1, description="share of features dropped, in training")


class CharacterCNNConfig(Section):
    """Beside its own vector a token has one made of its characters, by a convolution and the maximum over it."""

    width: int = Field(64, ge=1, description="of a character")
    channels: int = Field(256, ge=1, description="filters of the convolution")
    window: int = Field(3, ge=1, description="characters seen at once; odd")

    @model_validator(mode="after")
    def _window_is_odd(self) -> CharacterCNNConfig:
        if self.window % 2 == 0:
            raise ValueError(
                f"model.character_cnn.window ({self.window}) must be odd: as many characters on either side; set "
                f"it to {self.window + 1}"
            )
        return self


class WordVectorsConfig(Section):
    """Embeddings to start from: a word2vec or GloVe file, text or binary."""

    file: str = Field(description="its path, from data.folder on")
    frozen: bool = Field(False, description="keep them as they are")


class ModelConfig(Section):
    """An encoder, a decoder, or both, and the embeddings around them, all of one width.

    Which of them a model has is the task's to say: a tagger and a classifier read (encoder), a language model writes
    (decoder), a translator does both; a translator with a decoder alone reads and writes one sequence.
    """

    width: int = Field(512, ge=1, description="size of embeddings and of the states between layers")
    encoder: EncoderConfig | None = Field(None, description="what reads the source")
    decoder: DecoderConfig | None = Field(None, description="what writes the output")
    pooling: PoolingConfig | None = Field(None, description="of a classifier")
    word_vectors: WordVectorsConfig | None = Field(None, description="embeddings to start from")
    init_from: InitFromConfig | None = Field(
        None,
        description="a run whose tokenizer and weights to begin with: its folder, or a section; keys that this model "
        "section leaves out are those of the run",
        json_schema_extra=or_a_folder,
    )
    adapters: AdaptersConfig | None = Field(None, description="train low-rank adapters beside the weights of init_from")
    character_cnn: CharacterCNNConfig | None = Field(
        None, description="of a classifier or tagger: look at the characters of tokens"
    )
    copying: bool | Literal["exact"] = Field(
        False,
        description="of seq2seq: mix what the decoder writes with what is copied from the source (See et al. 2017), "
        "words that are in no vocabulary too; exact: only behind a space where the source has one, as older runs do",
    )
    tie: Literal["none", "output", "all"] = Field(
        "all", description="output: target embedding = output layer; all: the source embedding too"
    )

    @field_validator("init_from", mode="before")
    @classmethod
    def _a_run_alone(cls, value: Any) -> Any:
        return {"run": value} if isinstance(value, str) else value

    @property
    def bodies(self) -> dict[str, BodyConfig]:
        """The bodies there are, by their keys."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {side: body for side, body in both.items() if body is not None}

    @model_validator(mode="after")
    def _adapters_fit(self) -> ModelConfig:
        if self.adapters is None:
            return self
        if self.init_from is None:
            raise ValueError("adapters stand beside weights that are learned already; set init_from, or leave them out")
        if not any(isinstance(body, TransformerConfig) for body in self.bodies.values()):
            raise ValueError("adapters are for Transformer layers, and this model has none; leave them out")
        return self

    @model_validator(mode="after")
    def _widths_fit(self) -> ModelConfig:
        for side, body in self.bodies.items():
            if isinstance(body, TransformerConfig):
                if self.width % body.heads:
                    near = self.width - self.width % body.heads + body.heads
                    raise ValueError(
                        f"width ({self.width}) is not divisible by {side}.heads ({body.heads}); set width to {near}, "
                        f"or change heads"
                    )
                if body.positions.kind == "rotary" and (self.width // body.heads) % 2:
                    raise ValueError(
                        f"rotary positions need an even head width, and width / {side}.heads is "
                        f"{self.width // body.heads}; change one of them, or set positions.kind: sinusoidal"
                    )
                position_width = body.positions.width or self.width
                if body.positions.kind == "sinusoidal" and position_width % 2:
                    raise ValueError(
                        f"sinusoidal positions need an even width, not {position_width}; set it to {position_width + 1}"
                    )
        if isinstance(self.encoder, RecurrentEncoderConfig) and self.encoder.splits_width and self.width % 2:
            raise ValueError(
                f"a bidirectional encoder gives each direction half the width, and {self.width} is odd; set width to "
                f"{self.width + 1}, or encoder.bidirectional: false"
            )
        if isinstance(self.encoder, ConvolutionalConfig | ByteNetConfig) and self.encoder.kernel % 2 == 0:
            raise ValueError(
                f"encoder.kernel ({self.encoder.kernel}) must be odd: as many tokens on either side; set it to "
                f"{self.encoder.kernel + 1}"
            )
        if self.width % 2 and any(isinstance(body, ByteNetConfig) for body in self.bodies.values()):
            raise ValueError(
                f"a bytenet body convolves over half the width, and {self.width} is odd; set width to {self.width + 1}"
            )
        return self
