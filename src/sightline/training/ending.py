"""Whether a training has come to its end: by where it stands, or as its newest checkpoint tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sightline.recipe import Recipe
from sightline.run_folder import saved_progress


def limit_reached(progress: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether a limit of the recipe (as it is now: a raised one makes a training go on) is reached."""
    limits, patience = recipe.training.limits, recipe.training.stopping.patience
    reached = [
        (progress["step"], limits.steps),
        (progress["epoch"], limits.epochs),
        (progress["seconds"], None if limits.minutes is None else 60 * limits.minutes),
        (progress["waited"], patience),
    ]
    return any(limit is not None and value >= limit for value, limit in reached)


def broken_off_at(run: Path, recipe: Recipe) -> int | None:
    """The step of the newest checkpoint, if no limit is reached there; None where the folder does not say so."""
    progress = saved_progress(run)
    try:
        return None if progress is None or limit_reached(progress, recipe) else int(progress["step"])
    except (ValueError, KeyError, TypeError):
        return None
