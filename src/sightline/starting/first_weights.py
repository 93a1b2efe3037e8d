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


def start_from_word_vectors(model: nn.Module, recipe: Recipe, vocabulary: Vocabulary) -> str | None:
    """Put the word vectors a recipe names where the source is read, and say how many words have one."""
    section = recipe.model.word_vectors
    if section is None:
        return None
    embedding = model.embedding if isinstance(model, LanguageModel) else model.source_embedding
    assert isinstance(embedding, Embedding)
    path = (data_folder(recipe) or Path()) / Path(section.file).expanduser()
    table, coverage = initial_embeddings(path, vocabulary.source, recipe.model.width, embedding.weight.detach())
    with torch.no_grad():
        embedding.weight.copy_(table)
    embedding.weight.requires_grad_(not section.frozen)
    return coverage.describe() + (", kept as they are" if section.frozen else "")


def first_weights(
    model: nn.Module, recipe: Recipe, vocabulary: Vocabulary, resumed: Path | None
) -> tuple[list[str], Start | None]:
    """Put in what a recipe wants its model to begin with, and say what; a checkpoint of `resumed` takes its place."""
    if isinstance(model, CountedModel):
        return [], start_from_run(model, recipe, vocabulary)
    vectors = start_from_word_vectors(model, recipe, vocabulary)
    notes = [] if vectors is None else [vectors]
    if recipe.model.start_from is not None and resumed is not None:
        if Checkpoints(resumed, recipe.training.keep).newest() is not None:
            return notes, read_start(resumed)  # the run it came from is not needed any more
    start = start_from_run(model, recipe, vocabulary)
    return notes + (start.notes() + other_bodies(recipe) if start is not None else []), start


def adapt(model: nn.Module, recipe: Recipe, start: Start | None) -> dict[str, float]:
    """Freeze what a recipe does not train; the rates of what it does, where they differ."""
    new = () if start is None else start.new
    if not isinstance(model, CountedModel):
        freeze_for(model, recipe, new)
    return rates_for(model, recipe, new)
