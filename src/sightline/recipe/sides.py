"""The sides of a recipe's sources: whether they are those that its task reads and writes, and which is which."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sightline.recipe.bodies import Ngram

if TYPE_CHECKING:
    from sightline.recipe import Recipe
    from sightline.recipe.data import Data


class Direction(NamedTuple):
    """Which texts are read and which are written, by their names (`Source.sides`)."""

    reads: frozenset[str]
    writes: frozenset[str]

    def is_turned(self, other: Direction) -> bool:
        """Whether each writes what the other reads, and they have nothing else in common."""
        crossed = self.reads & other.writes and self.writes & other.reads
        return bool(crossed) and not (self.reads & other.reads or self.writes & other.writes)


def direction(data: Data) -> Direction:
    """That of the texts a recipe learns from and is validated by."""
    pairs = [source.sides[::-1] if data.swap else source.sides for source in (*data.train, data.validation)]
    read, written = zip(*pairs, strict=True)
    return Direction(frozenset(read), frozenset(written))


def check_sides(recipe: Recipe) -> None:
    """Refuse text without pairs where pairs are learned from, and what is said of two sides where there is one."""
    data = recipe.data
    named = {f"data.train.{number}": source for number, source in enumerate(data.train)}
    named |= {"data.validation": data.validation, **{f"data.tests.{name}": each for name, each in data.tests.items()}}
    for key, source in named.items():
        if not source.one_sided:
            continue
        if not recipe.of_text:
            raise ValueError(
                f"{key}.kind: {source.kind} is text without a source side, and {recipe.task_spec} learns from pairs; "
                f"use text, tsv or jsonl, or task: language-model"
            )
        if data.swap:
            raise ValueError(f"data.swap: true has no sides to exchange in {key}, of kind: {source.kind}; leave it out")
        if source.share is not None:
            raise ValueError(
                f"{key}.share goes by a hash of the source side, and kind: {source.kind} has none, so all or nothing "
                f"would be kept; take a part of the text by {key}.part"
            )
    if recipe.task_spec.continues_text and not recipe.tokenizer.shared:
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
