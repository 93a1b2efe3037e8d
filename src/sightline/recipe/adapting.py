"""What a recipe may say about weights that another run has learned: which to take, and how to adapt them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from sightline.recipe.sections import Probability, Section

Part = Literal["encoder", "decoder", "embeddings", "head"]


class InitFrom(Section):
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


class Adapters(Section):
    """Low-rank adapters (LoRA; Hu et al. 2021): W + (alpha / rank) B A beside frozen weights W.

    Only A, B and what is new to the model are trained. `sightline merge RUN --out DIR` makes a plain run of the result.
    """

    rank: int = Field(8, ge=1, description="rows of A, columns of B")
    alpha: float = Field(16.0, gt=0, description="how much they count: their product is multiplied by alpha / rank")
    on: tuple[Literal["query", "key", "value", "output", "feedforward"], ...] = Field(
        ("query", "value"), min_length=1, description="the maps of a Transformer layer that get one"
    )
    dropout: Probability = Field(0.0, description="of what A reads")
    also: tuple[str, ...] = Field((), description="what else is trained, named as in training.freeze")
