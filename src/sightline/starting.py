"""A training that begins with the weights of another run: `training.start_from`."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sightline.models.counted import CountedModel
from sightline.preparation import LABELS
from sightline.recipe import Recipe
from sightline.recipe_changes import section_differences
from sightline.recipe_files import load_recipe
from sightline.run_folder import RunError, need, read_config
from sightline.text.tokenizer import Vocabulary
from sightline.training.averages import weights_of
from sightline.training.checkpoints import load_parameters

_SHOWN = 8  # differences told, at most
_FREE = frozenset({"dropout", "attention_dropout", "variants"})  # these may change from one training to the next


def with_absolute_start(recipe: Recipe) -> Recipe:
    """The recipe with training.start_from made absolute, so that it can be resumed from anywhere."""
    if recipe.training.start_from is None:
        return recipe
    start = str(Path(recipe.training.start_from).expanduser().resolve())
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"start_from": start})})


def vocabulary_of_start(recipe: Recipe) -> Vocabulary | None:
    """The tokenizer of the run a recipe starts from, which must be what its own tokenizer section says."""
    start = recipe.training.start_from
    if start is None:
        return None
    theirs = _recipe_of(Path(start))
    if theirs.task != recipe.task:
        raise RunError(f"training.start_from: {start} is task: {theirs.task}, and this recipe is task: {recipe.task}")
    different = section_differences(theirs.tokenizer, recipe.tokenizer, "tokenizer", _FREE)
    if different:
        raise RunError(
            f"training.start_from: {start} has another tokenizer, and its own is the one its weights know: "
            f"{_listed(different)}; give this recipe the same tokenizer section"
        )
    return Vocabulary.load(Path(start), LABELS[theirs.task])


def start_from_run(model: nn.Module, recipe: Recipe) -> list[str]:
    """Put the weights a recipe starts from into its model, and say so; nothing where it starts from none.

    Names and shapes must be the same. What may differ all the same (heads, norms) is told, for shapes do not show it.
    """
    start = recipe.training.start_from
    if start is None:
        return []
    if isinstance(model, CountedModel):
        raise RunError("training.start_from: an n-gram model is counted anew each time; leave it out")
    weights = need(Path(start), "model.safetensors", f"finish its training with: sightline train {start} --resume")
    try:
        tensors = load_file(weights)
    except SafetensorError as error:
        raise RunError(f"{weights} is damaged ({error}); copy it again, or resume that training") from error
    if different := weight_differences(tensors, weights_of(model)):
        raise RunError(
            f"training.start_from: the weights of {start} do not fit this recipe's model: {_listed(different)}; "
            f"use the model section of {start}/recipe.yaml"
        )
    load_parameters(model, tensors)
    notes = [f"starting from the weights and the tokenizer of {start}"]
    if other := section_differences(_recipe_of(Path(start)).model, recipe.model, "model", _FREE):
        notes.append(f"the same weights, but not the same model: {_listed(other)}")
    return notes


def weight_differences(theirs: dict[str, Tensor], own: dict[str, Tensor]) -> list[str]:
    """What of a model's weights is missing in others, is not expected, or has another shape."""
    missing = [f"{name} is not there" for name in own if name not in theirs]
    extra = [f"{name} is there and not in this model" for name in theirs if name not in own]
    shapes = [
        f"{name} is {tuple(theirs[name].shape)} there and {tuple(own[name].shape)} here"
        for name in own
        if name in theirs and theirs[name].shape != own[name].shape
    ]
    return shapes + missing + extra


def _recipe_of(run: Path) -> Recipe:
    read_config(run)
    return load_recipe(need(run, "recipe.yaml", "it is part of every run folder; copy the whole folder"))


def _listed(different: list[str]) -> str:
    more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return "; ".join(different[:_SHOWN]) + more
