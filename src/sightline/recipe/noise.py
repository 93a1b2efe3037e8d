"""The section of a recipe that says how plain text is spoilt, for a model to learn to mend it: `data.noise`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sightline.recipe.schema import Probability, Section

MASK = "<mask>"

Rate = Annotated[float, Field(gt=0.0, lt=1.0)]


def sentinel(number: int) -> str:
    """The name of a gap's mark: <gap-0> is the first gap of a text."""
    return f"<gap-{number}>"


class Noise(Section):
    """What every noise has."""

    short: Probability = Field(
        0.1, description="share of the windows that are cut to a random length, for not all texts are long"
    )


class MaskNoise(Noise):
    """Masked words (Devlin et al. 2019): most chosen tokens become <mask>, some another token, some stay."""

    kind: Literal["mask"] = "mask"
    rate: Rate = Field(0.15, description="share of the tokens that are chosen, to be guessed")
    masked: float = Field(0.8, ge=0, le=1, description="share of the chosen ones that become <mask>")
    random: float = Field(0.1, ge=0, le=1, description="share of them that become any token; the rest stay")
    whole_words: bool = Field(True, description="choose all pieces of a word, or none of them")

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
        """What the vocabulary must have for it, beside its specials."""
        return (MASK,)

    def window(self, context: int) -> int:
        """Tokens of text in a sequence of `context` tokens: between a start mark and an end mark."""
        return context - 2

    def most(self, length: int) -> int:
        """The most tokens chosen among so many."""
        return min(length, math.ceil(self.rate * length) + 4)  # the last word may reach over the share


class DenoiseNoise(Noise):
    """Denoising (Lewis et al. 2020): sentences change places, spans become one <mask> each, tokens go missing."""

    kind: Literal["denoise"] = "denoise"
    rate: Rate = Field(0.3, description="share of the words that spans cover")
    mean: float = Field(3.0, gt=0, description="mean length of a span, of a Poisson distribution; 0 is a length too")
    whole_words: bool = Field(True, description="spans are of whole words, not of tokens")
    permute: bool = Field(True, description="put the sentences into random order")
    delete: Probability = Field(0.0, description="share of the tokens outside the spans that go missing")

    @property
    def marks(self) -> tuple[str, ...]:
        """What the vocabulary must have for it, beside its specials."""
        return (MASK,)

    def window(self, context: int) -> int:
        """Tokens of text in a sequence of `context` tokens: before an end mark."""
        return context - 1

    def sides(self, length: int) -> tuple[int, int]:
        """The most tokens of source and target, without marks, that a text of `length` tokens becomes."""
        return length, length


class SpanNoise(Noise):
    """Span corruption (Raffel et al. 2020): a mark of its own in place of each span; wanted are marks and spans."""

    kind: Literal["span-corruption"] = "span-corruption"
    rate: Rate = Field(0.15, description="share of the tokens that spans cover")
    mean: float = Field(3.0, ge=1, description="mean length of a span")
    sentinels: int = Field(100, ge=1, description="marks in the vocabulary: most spans of a text")

    @property
    def marks(self) -> tuple[str, ...]:
        """What the vocabulary must have for it, beside its specials."""
        return tuple(sentinel(number) for number in range(self.sentinels))

    def counts(self, length: int) -> tuple[int, int]:
        """How many of `length` tokens are covered, and by how many spans."""
        covered = min(max(1, round(self.rate * length)), max(1, length - 1))
        spans = min(max(1, round(covered / self.mean)), covered, max(1, length - covered), self.sentinels)
        return covered, spans

    def window(self, context: int) -> int:
        """Tokens of text that become a source of `context` tokens with its end mark: more than that."""
        length = context - 1
        while max(self.sides(length + 1)) < context:
            length += 1
        return length

    def sides(self, length: int) -> tuple[int, int]:
        """The most tokens of source and target, without marks, that up to `length` tokens become (neither falls)."""
        covered, spans = self.counts(length)
        return length - covered + spans, covered + spans


AnyNoise = Annotated[MaskNoise | DenoiseNoise | SpanNoise, Field(discriminator="kind")]
