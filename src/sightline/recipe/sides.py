"""Whether the sources of a recipe have the sides that its task reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sightline.recipe.bodies import Ngram

if TYPE_CHECKING:
    from sightline.recipe import Recipe

ONE_SIDED = ("plain", "chorales")  # kinds of source: a text to write, and nothing to read


def check_sides(recipe: Recipe) -> None:
    """Refuse text without pairs where pairs are learned from, and what is said of two sides where there is one."""
    data = recipe.data
    named = {f"data.train.{number}": source for number, source in enumerate(data.train)}
    named |= {"data.validation": data.validation, **{f"data.tests.{name}": each for name, each in data.tests.items()}}
    for key, source in named.items():
        if source.kind not in ONE_SIDED:
            continue
        if not recipe.of_text:
            raise ValueError(
                f"{key}.kind: {source.kind} is text without a source side, and task: {recipe.task} learns from pairs; "
                f"use text, tsv or jsonl, or task: language-model"
            )
        if data.swap:
            raise ValueError(f"data.swap: true has no sides to exchange in {key}, of kind: {source.kind}; leave it out")
    if recipe.task == "language-model" and not recipe.tokenizer.shared:
        raise ValueError(
            "tokenizer.shared: false is of two vocabularies, and task: language-model has one text; leave it out"
        )
    if isinstance(recipe.model.decoder, Ngram):
        _check_counting(recipe)


def _check_counting(recipe: Recipe) -> None:
    """An n-gram model has no embeddings, and sees every text once."""
    if recipe.model.word_vectors is not None:
        raise ValueError("model.word_vectors: model.decoder.kind: ngram has no embeddings to begin with; leave it out")
    weights = [source.weight for source in recipe.data.train]
    if any(weight != 1.0 for weight in weights):
        raise ValueError(
            f"weights ({', '.join(map(str, weights))}) of data.train: model.decoder.kind: ngram counts every text "
            f"once; leave the weights out"
        )
