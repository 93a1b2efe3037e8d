"""A run with low-rank adapters becomes a plain one: W + (α/r) B A in the place of W, A and B."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import save_file

from sightline.files import atomic_folder
from sightline.model_card import write_model_card
from sightline.models.seq2seq import parameter_count
from sightline.recipe.files import load_recipe, save_recipe
from sightline.run import Run
from sightline.run_folder import RunError, need, read_config, write_config
from sightline.training.checkpoints import parameters_of

_COPIED = ("environment.json", "metrics.jsonl", "start.json", "dictionary.tsv")  # where they are there


def merge_run(run: Path, out: Path) -> None:
    """Write `out`: the run with its adapters merged into its weights, as a folder that every command takes.

    What it answers is the same, within rounding. It has no checkpoints, for there is nothing to go on with.
    """
    config = read_config(run)
    recipe = load_recipe(need(run, "recipe.yaml", "it is part of every run folder; copy the whole folder"))
    if recipe.model.adapters is None:
        raise RunError(f"{run} has no adapters (model.adapters) to merge; use it as it is")
    if out.exists():
        raise RunError(f"{out} exists already; give another folder with --out")
    loaded = Run.load(run, device="cpu")
    parameters = parameter_count(loaded.model)
    kept = {key: value for key, value in config.items() if key not in ("format", "sightline")}
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        save_recipe(loaded.recipe, folder / "recipe.yaml")
        loaded.vocabulary.save(folder)
        for name in _COPIED:
            if (run / name).is_file():
                shutil.copyfile(run / name, folder / name)
        save_file(parameters_of(loaded.model), folder / "model.safetensors")
        write_config(folder, {**kept, "parameters": parameters, "merged_from": str(run.resolve())})
    write_model_card(out, loaded.recipe, parameters)
