"""Build the model of a recipe, with initial weights or without.

Under `torch.device("meta")` (layers/initialization.py) `build_model` allocates no memory and draws no random numbers:
enough to count parameters, to shard a model, and to load weights.
"""

from __future__ import annotations

import torch
from torch import nn

from sightline.layers.adapters import add_adapters
from sightline.layers.initialization import initialize, materialize, reset_buffers
from sightline.models.gradient_checkpointing import enable_gradient_checkpointing
from sightline.models.heads import Classifier, MaskedLM, Tagger
from sightline.models.language_model import DecoderOnly, LanguageModel
from sightline.models.ngram import CountedModel
from sightline.models.seq2seq import CopyingSeq2Seq, Seq2Seq
from sightline.recipe import Recipe
from sightline.recipe.training import step_seed
from sightline.text.copying import CopyForms
from sightline.text.vocabulary import Vocabulary


def build_model(recipe: Recipe, vocabulary: Vocabulary) -> nn.Module:
    """Build the model of a recipe on the default device, with weights drawn from the recipe's seed (not on `meta`)."""
    if torch.get_default_device().type != "meta":
        torch.manual_seed(step_seed(recipe.seed, 0))
    model = _model_of_task(recipe, vocabulary)
    if recipe.model.adapters is not None:
        add_adapters(model, recipe.model.adapters)
    if recipe.training.gradient_checkpointing:
        enable_gradient_checkpointing(model)
    return model


def initialize_model(model: nn.Module, recipe: Recipe) -> None:
    """Draw the weights of a model that was built on `meta`: the same as those of `build_model` on the CPU."""
    torch.manual_seed(step_seed(recipe.seed, 0))
    initialize(model)


def build_for_loading(recipe: Recipe, vocabulary: Vocabulary) -> nn.Module:
    """Build the model of a recipe on the CPU with uninitialized weights, for `load_parameters`."""
    with torch.device("meta"):
        model = build_model(recipe, vocabulary)
    materialize(model)
    reset_buffers(model)
    return model


def _model_of_task(recipe: Recipe, vocabulary: Vocabulary) -> nn.Module:
    model, source, target = recipe.model, vocabulary.source.size, vocabulary.target.size
    spec = recipe.task_spec
    if spec.labels != "none":
        kind = Tagger if spec.labels == "words" else Classifier
        return kind(model, vocabulary.source.pieces(range(source)), target)
    if spec.continues_text:
        return CountedModel() if model.counted else LanguageModel(model, target)
    if spec.fills_gaps:
        return MaskedLM(model, source)
    if model.copying:
        return CopyingSeq2Seq(
            model, target, CopyForms.of(vocabulary.target.all_pieces) if recipe.copies_forms else None
        )
    return DecoderOnly(model, target) if model.encoder is None else Seq2Seq(model, source, target)
