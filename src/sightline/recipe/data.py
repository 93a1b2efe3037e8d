"""The data section of a recipe: sources of examples, cleaning and noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from sightline.recipe.schema import Probability, Section, open_union
from sightline.recipe.sources import AnySource, PatternSource


def longest_input(trained: int) -> int:
    """The longest input, in tokens, for a model trained on inputs of some length."""
    return max(4_096, 8 * trained)


def longest_line(tokens: int) -> int:
    """A bound on the bytes of a line of some tokens; pieces are shorter than 64 bytes in any language."""
    return 64 * tokens


# --- noise ------------------------------------------------------------------------------------------------------------

MASK = "<mask>"

Rate = Annotated[float, Field(gt=0.0, lt=1.0)]


def sentinel(number: int) -> str:
    """The sentinel of a gap: <gap-0> is the first gap of a text."""
    return f"<gap-{number}>"


class Noise(Section):
    """Base of noise on windows of plain text."""

    short_ratio: Probability = Field(
        0.1, description="share of windows that are cut to a random length, since not all texts are long"
    )


class MaskNoise(Noise):
    """Masked language modelling (Devlin et al. 2019): most chosen tokens become <mask>, some another token."""

    kind: Literal["mask"] = "mask"
    rate: Rate = Field(0.15, description="share of tokens that are chosen and predicted")
    masked: float = Field(0.8, ge=0, le=1, description="share of chosen tokens that become <mask>")
    random: float = Field(
        0.1, ge=0, le=1, description="share of chosen tokens that become a random token; the rest stay"
    )
    whole_words: bool = Field(True, description="choose all pieces of a word, or none")

    @model_validator(mode="after")
    def _shares_fit(self) -> MaskNoise:
        if self.masked + self.random > 1 + 1e-9:
            raise ValueError(
                f"noise.masked ({self.masked:g}) and noise.random ({self.random:g}) are shares of the same tokens, and "
                f"more than 1 together; lower one of them"
            )
        return self

    @property
    def marks(self) -> tuple[str, ...]:
        """Tokens that it adds to the vocabulary."""
        return (MASK,)

    def window(self, context: int) -> int:
        """Tokens of text in a sequence of `context` tokens, which also has a start and an end token."""
        return context - 2

    def most(self, length: int) -> int:
        """The most tokens chosen among `length`."""
        return min(length, math.ceil(self.rate * length) + 4)  # the last word may reach over the share


class InfillingNoise(Noise):
    """Denoising as in BART (Lewis et al. 2020): permuted sentences, one <mask> for each span, deleted tokens."""

    kind: Literal["text-infilling"] = "text-infilling"
    rate: Rate = Field(0.3, description="share of words that spans cover")
    mean_span_length: float = Field(
        3.0, gt=0, description="mean of the Poisson distribution of span lengths, 0 included"
    )
    whole_words: bool = Field(True, description="spans consist of whole words")
    permute_sentences: bool = Field(True, description="shuffle the sentences")
    deletion_ratio: Probability = Field(0.0, description="share of tokens outside the spans that are deleted")

    @property
    def marks(self) -> tuple[str, ...]:
        """Tokens that it adds to the vocabulary."""
        return (MASK,)

    def window(self, context: int) -> int:
        """Tokens of text in a sequence of `context` tokens, which also has an end token."""
        return context - 1

    def sides(self, length: int) -> tuple[int, int]:
        """The most tokens of source and target, without end tokens, for a text of `length` tokens."""
        return length, length


class SpanNoise(Noise):
    """Span corruption as in T5 (Raffel et al. 2020): spans become sentinels; targets are sentinels and spans."""

    kind: Literal["span-corruption"] = "span-corruption"
    rate: Rate = Field(0.15, description="share of tokens that spans cover")
    mean_span_length: float = Field(3.0, ge=1, description="mean length of a span")
    sentinels: int = Field(100, ge=1, description="sentinels in the vocabulary: most spans of a text")

    @property
    def marks(self) -> tuple[str, ...]:
        """Tokens that it adds to the vocabulary."""
        return tuple(sentinel(number) for number in range(self.sentinels))

    def counts(self, length: int) -> tuple[int, int]:
        """How many of `length` tokens spans cover, and the number of spans."""
        covered = min(max(1, round(self.rate * length)), max(1, length - 1))
        spans = min(max(1, round(covered / self.mean_span_length)), covered, max(1, length - covered), self.sentinels)
        return covered, spans

    def window(self, context: int) -> int:
        """Tokens of text for a source of `context` tokens with its end token; spans make it shorter than the text."""
        length = context - 1
        while max(self.sides(length + 1)) < context:
            length += 1
        return length

    def sides(self, length: int) -> tuple[int, int]:
        """The most tokens of source and target, without end tokens, for a text of up to `length` tokens."""
        covered, spans = self.counts(length)
        return length - covered + spans, covered + spans


if TYPE_CHECKING:
    AnyNoise = MaskNoise | InfillingNoise | SpanNoise
else:
    AnyNoise = open_union("noise", base=Noise)


class Clean(Section):
    """What is dropped from the training text. Dropped examples are counted by reason."""

    truncate_source: int | None = Field(
        None,
        ge=1,
        description="cut longer sources to this many tokens, before the other checks: in training, validation, tests "
        "and prediction alike",
    )
    max_tokens: int = Field(256, ge=2, description="drop pairs with a longer side, in tokens")
    max_ratio: float | None = Field(
        None, gt=1, description="drop pairs with a side this many times longer than the other, in tokens"
    )
    deduplicate: Literal["none", "pairs", "sources", "targets"] = Field(
        "none", description="keep only the first example of each of these"
    )
    drop_copies: bool = Field(False, description="drop pairs with equal sides")

    @property
    def longest_line(self) -> int:
        """The most bytes of a line of pairs that is read; longer lines have far more than max_tokens."""
        return longest_line(longest_input(max(self.max_tokens, self.truncate_source or 0)))


class Data(Section):
    """Sources of examples, and what is done to them."""

    folder: str | None = Field(
        None,
        description="folder of relative file names, beside the recipe or in $SIGHTLINE_CORPORA. Runs store an absolute "
        "path; where it does not exist, the folder of that name in $SIGHTLINE_CORPORA is used",
    )
    train: tuple[AnySource, ...] = Field(min_length=1, description="sources of training examples, used together")
    validation: AnySource = Field(description="evaluated during training, to choose the best weights")
    tests: dict[str, AnySource] = Field(default_factory=dict, description="test sets of `sightline evaluate`, by name")
    swap: bool = Field(False, description="exchange source and target")
    context: Literal["running", "sentence"] = Field(
        "running",
        description="language models. running: windows cut anywhere from lines that follow one another; sentence: each "
        "line on its own, from <s> to </s>",
    )
    limit: int | None = Field(None, ge=1, description="use only this many training examples")
    validation_limit: int | None = Field(None, ge=1, description="use only this many validation examples")
    clean: Clean = Field(Clean(), description="what is dropped from the training text")
    noise: AnyNoise | None = Field(None, description="corrupt plain text, for the model to restore")

    @model_validator(mode="after")
    def _only_training_is_weighted(self) -> Data:
        held = {"validation": self.validation, **{f"tests.{name}": source for name, source in self.tests.items()}}
        for name, source in held.items():
            if source.weight != 1.0:
                raise ValueError(
                    f"{name}.weight ({source.weight:g}) says how often an example is trained on, and these are not; "
                    f"leave it out"
                )
        return self

    @property
    def spelled_side(self) -> Literal["source", "target"] | None:
        """The side whose characters are separated by spaces in all training sources, and so in prediction."""
        if not all(isinstance(source, PatternSource) and source.spell for source in self.train):
            return None
        return "target" if self.swap else "source"

    def uneven_spelling(self) -> str | None:
        """A warning if only some training sources separate characters."""
        spelled = [isinstance(source, PatternSource) and source.spell for source in self.train]
        if len(set(spelled)) == 1:
            return None
        yes, no = spelled.index(True), spelled.index(False)
        return (
            f"data.train[{yes}] has spell: true and data.train[{no}] has not, so texts are read as they are given: put "
            f"spaces between the letters of those that need it, or set spell for all"
        )

    def held_out(self, name: str) -> AnySource:
        """A test set, or `validation`."""
        return self.validation if name == "validation" else self.tests[name]


class Direction(NamedTuple):
    """Which texts are read and which are written, by name (`SourceConfig.sides`)."""

    reads: frozenset[str]
    writes: frozenset[str]

    def is_turned(self, other: Direction) -> bool:
        """True if each writes what the other reads, and they share nothing else."""
        crossed = self.reads & other.writes and self.writes & other.reads
        return bool(crossed) and not (self.reads & other.reads or self.writes & other.writes)


def direction(data: Data) -> Direction:
    """The direction of the training and validation text."""
    pairs = [source.sides[::-1] if data.swap else source.sides for source in (*data.train, data.validation)]
    read, written = zip(*pairs, strict=True)
    return Direction(frozenset(read), frozenset(written))
