"""How far a training is, when it ends, and how its learning rate changes. Free of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sightline.recipe import Recipe, Schedule
from sightline.run_folder import saved_progress
from sightline.terminal import plural


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


_MUCH = 0.3  # of a training that a warm-up may take without a warning
_LEAST = 10  # steps of a warm-up that is a share of the training: the first steps may take much of a short time limit


def factor(schedule: Schedule, step: int, done: float, warmed: float = 0.0) -> float:
    """The share of the peak rate at this step.

    `done` is the progress towards the end of the training (0 to 1), `warmed` that at the end of a warm-up counted in
    steps. A warm-up below 1 is a share of the training.
    """
    warmup = schedule.warmup
    if 0 < warmup < 1:
        rise, warmed = min(done / warmup, step / _LEAST), warmup
    else:
        rise = step / warmup if warmup else 1.0
    if rise < 1:
        return rise
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind == "inverse-sqrt":  # Vaswani et al. 2017, §5.3, with its peak at 1
        return math.sqrt(warmup / done if 0 < warmup < 1 else max(warmup, 1) / step)
    if schedule.kind == "cosine":
        annealed = max(0.0, done - warmed) / max(1e-9, 1 - warmed)
        return schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, annealed)))
    left = (1 - done) / schedule.decay  # warmup-stable-decay (Hu et al. 2024)
    return schedule.floor + (1 - schedule.floor) * min(1.0, left)


def warmup_note(schedule: Schedule, planned: float) -> str | None:
    """A warning if the warm-up takes more than `_MUCH` of the `planned` steps, with what to write instead."""
    warmup = schedule.warmup
    if warmup < 1 or warmup <= _MUCH * planned:
        return None
    much = "more than the whole training" if warmup > planned else f"{warmup / planned:.0%} of the training"
    effect = "so lr never reaches its peak" if warmup > planned else "so lr reaches its peak late"
    return (
        f"warning: training.schedule.warmup ({warmup:,} steps) is {much} (about {plural(round(planned), 'step')} by "
        f"training.limits), {effect}; lower it, or set training.schedule.warmup=0.1 for a tenth of the training"
    )
