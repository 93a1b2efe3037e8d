"""New runs with derived weights: merged adapters, or the mean of several checkpoints.

Both are complete run folders without checkpoints, so they cannot be resumed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from sightline.data.locate import load_run_recipe
from sightline.files import atomic_folder
from sightline.models.seq2seq import parameter_count
from sightline.models.weights import parameters_of
from sightline.recipe import Recipe
from sightline.recipe.loading import save_recipe
from sightline.run import Run
from sightline.run_folder import RunError, read_config, require_file, seal_run, write_config
from sightline.text.vocabulary import Vocabulary
from sightline.training.averaging import mean_weights
from sightline.training.checkpoints import Checkpoints
from sightline.training.model_card import write_model_card

_COPIED = ("environment.json", "metrics.jsonl", "start.json", "dictionary.tsv")  # if they exist


def merge_run(run: Path, out: Path) -> None:
    """Write a run whose weights W + (α/r) B A replace W, A and B; its outputs are the same within rounding."""
    recipe = _recipe(run, out)
    if recipe.model.adapters is None:
        raise RunError(f"{run} has no adapters (model.adapters) to merge; use it as it is")
    loaded = Run.load(run, device="cpu")
    parameters = parameter_count(loaded.model)
    config = {"parameters": parameters, "merged_from": str(run.resolve())}
    _write(run, out, loaded.recipe, parameters_of(loaded.model), config)
    write_model_card(out, loaded.recipe, parameters)


def average_run(run: Path, out: Path, count: int) -> list[int]:
    """Write a run with the mean of the newest `count` checkpoints as weights; return their steps."""
    recipe = _recipe(run, out)
    if count < 2:
        raise ValueError(f"--count {count}: a mean is of two checkpoints or more")
    if recipe.model.counted:
        raise RunError(
            f"{run} was counted, not trained step by step (n-grams), so it has no checkpoints; use it as it is"
        )
    training = recipe.training
    checkpoints = Checkpoints(run, training.keep)
    newest = max(training.keep, training.averaging.count if training.averaging.kind == "checkpoints" else 0)
    kept = checkpoints.steps()[-newest:]  # without the best one, which may be old
    steps = [step for step in kept if checkpoints.usable(step)][-count:]
    if len(steps) < 2:
        raise RunError(
            f"{run} has {len(steps)} of the checkpoints that a mean is made of; train with training.keep={count} (and "
            f"training.save_every for how far apart they lie)"
        )
    averaging = training.averaging.model_copy(update={"kind": "checkpoints", "count": len(steps)})
    recipe = recipe.model_copy(update={"training": training.model_copy(update={"averaging": averaging})})
    try:
        weights = mean_weights([checkpoints.weights(step) for step in steps])
    except FileNotFoundError as error:
        raise RunError(
            f"a checkpoint of {run} went away meanwhile ({error}): is it still trained? try again"
        ) from error
    _write(run, out, recipe, weights, {"averaged_from": str(run.resolve()), "steps": steps})
    write_model_card(out, recipe, int(read_config(run)["parameters"]))
    return steps


def _recipe(run: Path, out: Path) -> Recipe:
    read_config(run)
    if out.exists():
        raise RunError(f"{out} exists already; give another folder with --out")
    require_file(run, "recipe.yaml", "it is part of every run folder; copy the whole folder")
    return load_run_recipe(run)


def _write(run: Path, out: Path, recipe: Recipe, weights: dict[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write the folder of a run with this recipe and these weights."""
    kept = {key: value for key, value in read_config(run).items() if key not in ("format", "sightline")}
    with atomic_folder(out) as folder:
        save_recipe(recipe, folder / "recipe.yaml")
        Vocabulary.load(run, recipe.task_spec.labels).save(folder)
        for name in _COPIED:
            if (run / name).is_file():
                shutil.copyfile(run / name, folder / name)
        save_file(weights, folder / "model.safetensors")
        write_config(folder, {**kept, **config})
        seal_run(folder, finished=True)
