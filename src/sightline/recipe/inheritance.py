"""The model section of a recipe that starts from another run: what it leaves out is taken from that run."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from sightline.files import read_bounded
from sightline.recipe.aliases import rename_keys
from sightline.recipe.model import Model
from sightline.recipe.tasks import task_spec
from sightline.recipe.yaml import MAX_BYTES, KeyPath, Located, read_yaml

# what says how a model was made, not what it is
_NOT_INHERITED = {"init_from", "adapters", "word_vectors"}
_OF_EVERY_TASK = ("width", "encoder", "decoder")


def inherit_model(document: Located, *, only_bodiless: bool = False) -> None:
    """Complete `model` of a recipe with `model.init_from`, key by key, from the recipe of that run.

    A section with another `kind` than in the run is not completed. A run of another task gives its width, and the
    encoder or decoder that this task has. With `only_bodiless`, a model section with an encoder or a decoder stays as
    it is. Keys that are taken over keep the place where they stand in the recipe of the run.
    """
    model = document.value.get("model") if isinstance(document.value, dict) else None
    run = _run_of(model)
    if not isinstance(model, dict) or run is None or set(Model.model_fields) <= set(model):
        return
    bodies = {"encoder", "decoder"} & set(model)
    if only_bodiless and bodies:
        return
    path = Path(run).expanduser() / "recipe.yaml"
    if not path.is_file():
        if not bodies:  # else the recipe is whole, and only a training needs the run
            at = document.place(("model", "init_from"))
            document.problems.append(
                f"{at}: model.init_from: {run} has no recipe.yaml to take the model section from; name a run folder, "
                f"or write the model section out"
            )
        return
    try:
        theirs = read_yaml(read_bounded(path, MAX_BYTES).decode("utf-8-sig"), str(path))
    except (OSError, ValueError) as error:
        theirs = Located(problems=[f"{path}: cannot be read: {error}"])
    if theirs.problems or not isinstance(theirs.value, dict):
        document.problems.extend(theirs.problems or [f"{path}: this is not a recipe"])
        return
    rename_keys(theirs)
    held = theirs.value.get("model")
    if isinstance(held, dict):
        wanted = _inherited(held, theirs.value.get("task", "seq2seq"), document.value.get("task", "seq2seq"))
        _complete(document, model, wanted, theirs, ("model",))


def _run_of(model: Any) -> str | None:
    """The folder that `model.init_from` names."""
    start = model.get("init_from") if isinstance(model, dict) else None
    run = start.get("run") if isinstance(start, dict) else start
    return run if isinstance(run, str) else None


def _inherited(model: dict[str, Any], their_task: str, task: str) -> dict[str, Any]:
    """The keys of the model section of a run that a recipe for a task takes over."""
    if task == their_task:
        return {key: value for key, value in model.items() if key not in _NOT_INHERITED}
    spec = task_spec(task)
    allowed = {"width", *(() if spec is None else spec.allows)}
    return {key: model[key] for key in _OF_EVERY_TASK if key in allowed and key in model}


def _complete(document: Located, own: dict[str, Any], theirs: dict[str, Any], origin: Located, path: KeyPath) -> None:
    """Put keys that are missing in a section into it, with their places."""
    for key, value in theirs.items():
        below = (*path, key)
        if key not in own:
            own[key] = copy.deepcopy(value)
            document.places.update({place: at for place, at in origin.places.items() if place[: len(below)] == below})
        elif isinstance(own[key], dict) and isinstance(value, dict):
            if own[key].get("kind", value.get("kind")) == value.get("kind"):
                _complete(document, own[key], value, origin, below)
