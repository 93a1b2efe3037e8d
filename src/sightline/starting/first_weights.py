"""What a model begins with, before its first step: word vectors, the weights of another run; and what of it learns."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from sightline.data.preparation import data_folder
from sightline.layers.embedding import Embedding
from sightline.models.counted import CountedModel
from sightline.models.language_model import LanguageModel
from sightline.recipe import Recipe
from sightline.starting.other_run import Start, other_bodies, read_start, start_from_run
from sightline.text.tokenizer import Vocabulary
from sightline.text.word_vectors import initial_embeddings
from sightline.training.adapting import freeze_for, rates_for
from sightline.training.checkpoints import Checkpoints


def start_from_word_vectors(
    model: nn.Module, recipe: Recipe, vocabulary: Vocabulary, start: Start | None
) -> str | None:
    """Put the word vectors a recipe names where the source is read, and say how many words have one.

    Where another run has given these embeddings already, they stay, and that is said.
    """
    section = recipe.model.word_vectors
    if section is None:
        return None
    embedding = model.embedding if isinstance(model, LanguageModel) else model.source_embedding
    assert isinstance(embedding, Embedding)
    embedding.weight.requires_grad_(not section.frozen)
    kept = ", kept as they are" if section.frozen else ""
    own = dict(model.named_parameters(remove_duplicate=False))
    if start is not None and any(own.get(name) is embedding.weight for name in start.taken):
        return (
            f"word vectors: none taken from {section.file}, for the embeddings are those of {start.run}{kept}; for the "
            f"vectors, name model.init_from.parts without embeddings"
        )
    path = (data_folder(recipe) or Path()) / Path(section.file).expanduser()
    table, coverage = initial_embeddings(path, vocabulary.source, recipe.model.width, embedding.weight.detach())
    with torch.no_grad():
        embedding.weight.copy_(table)
    return coverage.describe() + kept


def first_weights(
    model: nn.Module, recipe: Recipe, vocabulary: Vocabulary, resumed: Path | None
) -> tuple[list[str], Start | None]:
    """Put in what a recipe wants its model to begin with, and say what; a checkpoint of `resumed` takes its place."""
    if isinstance(model, CountedModel):
        return [], start_from_run(model, recipe, vocabulary)
    begun = None if recipe.model.init_from is None else resumed
    if begun is not None and Checkpoints(begun, recipe.training.keep).newest() is not None:
        start, told = read_start(begun), []  # the run it came from is not needed any more
    else:
        start = start_from_run(model, recipe, vocabulary)
        told = [] if start is None else start.notes() + other_bodies(recipe)
    vectors = start_from_word_vectors(model, recipe, vocabulary, start)
    return [*([] if vectors is None else [vectors]), *told], start


def adapt(model: nn.Module, recipe: Recipe, start: Start | None) -> dict[str, float]:
    """Freeze what a recipe does not train; the rates of what it does, where they differ."""
    new = () if start is None else start.new
    if not isinstance(model, CountedModel):
        freeze_for(model, recipe, new)
    return rates_for(model, recipe, new)
