"""Loading a run folder as a task, and ensembles of tasks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError

from sightline.data.locate import load_run_recipe
from sightline.data.target_lengths import TargetLengths
from sightline.decoding.ensemble import Ensemble, Mean
from sightline.decoding.unknown_words import read_dictionary
from sightline.layers.adapters import merge_adapters
from sightline.layers.devices import choose_device, keep_freed_memory
from sightline.layers.kernels import product_type
from sightline.layers.linear import pack
from sightline.models.build import build_for_loading
from sightline.models.ngram import CountedModel, NgramError, NgramModel
from sightline.models.weights import load_parameters, load_weights
from sightline.recipe.recipe import without_adapters
from sightline.run_folder import (
    RunError,
    read_config,
    require_file,
    saved_progress,
    stopped_before_validation,
    verified_later,
)
from sightline.tasks.base import Task, build_task
from sightline.text.vocabulary import Vocabulary, with_preprocessing


class UnevenSources(UserWarning):
    """The training sources of a run are preprocessed differently, so it is unclear how to treat new text."""


class NeverValidated(UserWarning):
    """A run was interrupted before its first validation, so the quality of its weights is unknown."""

    def __init__(self, run: Path) -> None:
        saved = saved_progress(run)
        step = "" if saved is None else f" at step {saved.get('step', 0):,}"
        super().__init__(
            f"the training of {run} was interrupted{step}, before its first validation, so its outputs may be useless; "
            f"continue it with: sightline train {run} --resume"
        )


def load_task(run: Path, device: str, precision: str) -> Task:
    """Load a run folder; missing files are named in errors."""
    config = read_config(run)
    if (baseline := config.get("baseline")) is not None:
        raise RunError(f"{run} holds outputs ({baseline}) and no model; use it in sightline compare only")
    require_file(run, "recipe.yaml", "it is part of every run folder; copy the whole folder")
    recipe = load_run_recipe(run)
    vocabulary = with_preprocessing(recipe, Vocabulary.load(run, recipe.task_spec.labels))
    weights = require_file(run, "model.safetensors", f"finish its training with: sightline train {run} --resume")
    chosen = choose_device(device)
    rounding = product_type(precision, chosen)
    verified = verified_later(run)  # while the model is built
    model = build_for_loading(recipe, vocabulary)
    try:
        if isinstance(model, CountedModel):
            model.counts = NgramModel.load(weights)
        else:
            load_parameters(model, load_weights(weights))
            merge_adapters(model)
    except (SafetensorError, NgramError) as error:
        verified.result()  # more specific, where there is a manifest
        raise RunError(f"{weights} is damaged ({error}); copy it again, or resume the training") from error
    finally:
        verified.result()
    model = model.to(chosen).eval()
    if chosen.type == "cpu":
        keep_freed_memory()
    pack(model, rounding)
    if (uneven := recipe.data.uneven_spelling()) is not None:
        warnings.warn(UnevenSources(f"{run}: {uneven}"), stacklevel=3)
    if stopped_before_validation(run):
        warnings.warn(NeverValidated(run), stacklevel=3)
    lengths = TargetLengths.load(config)
    return build_task(without_adapters(recipe), vocabulary, model, chosen, read_dictionary(run), lengths)


def ensemble_task(tasks: Sequence[Task], weights: Sequence[float] | None, mean: Mean) -> Task:
    """An ensemble of tasks that averages their models.

    The recipe is that of the first, and the dictionary for unknown words that of the first that has one.
    """
    model = Ensemble([each.search_model for each in tasks], weights=weights, mean=mean).eval()
    dictionary = next((each.dictionary for each in tasks if each.dictionary is not None), None)
    lengths = TargetLengths.union(each.lengths for each in tasks)
    first = tasks[0]
    task = build_task(first.recipe, first.vocabulary, model, first.device, dictionary, lengths)
    return replace(task, members=tuple(tasks))
