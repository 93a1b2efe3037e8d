"""How far a training is, when it ends, and how its learning rate changes. Imports no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sightline.recipe import Recipe, Schedule
from sightline.registry import Implementations
from sightline.run_folder import saved_progress
from sightline.terminal import plural

_LONG = 0.3  # share of a training that a warm-up may take without a warning
_LEAST = 10  # steps of a warm-up given as a share: the first steps may take much of a short time limit


# --- the end -------------------------------------------------------------------------------------------------------


def limit_reached(progress: Mapping[str, Any], recipe: Recipe) -> bool:
    """True if a limit of the recipe is reached; with a higher limit the training can be resumed."""
    limits, patience = recipe.training.limits, recipe.training.stopping.patience
    reached = [
        (progress["step"], limits.steps),
        (progress["epoch"], limits.epochs),
        (progress["seconds"], None if limits.minutes is None else 60 * limits.minutes),
        (progress["waited"], patience),
    ]
    return any(limit is not None and value >= limit for value, limit in reached)


def interrupted_at(run: Path, recipe: Recipe) -> int | None:
    """The step of the newest checkpoint if no limit is reached there; None if it is, or if there is no checkpoint."""
    progress = saved_progress(run)
    try:
        return None if progress is None or limit_reached(progress, recipe) else int(progress["step"])
    except (ValueError, KeyError, TypeError):
        return None


# --- the learning rate ---------------------------------------------------------------------------------------------


def constant(schedule: Schedule, step: int, done: float, warmed: float) -> float:
    return 1.0


def inverse_sqrt(schedule: Schedule, step: int, done: float, warmed: float) -> float:
    """Vaswani et al. 2017, §5.3, with its peak at 1."""
    warmup = schedule.warmup
    return math.sqrt(warmup / done if 0 < warmup < 1 else max(warmup, 1) / step)


def cosine(schedule: Schedule, step: int, done: float, warmed: float) -> float:
    annealed = max(0.0, done - warmed) / max(1e-9, 1 - warmed)
    return schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, annealed)))


def warmup_stable_decay(schedule: Schedule, step: int, done: float, warmed: float) -> float:
    """Hu et al. 2024."""
    left = (1 - done) / schedule.decay
    return schedule.floor + (1 - schedule.floor) * min(1.0, left)


SCHEDULES = Implementations(
    "schedule"
)  # functions of (schedule, step, done, warmed): the factor of lr after the warm-up


def learning_rate_factor(schedule: Schedule, step: int, done: float, warmed: float = 0.0) -> float:
    """The factor of the peak learning rate at a step, from 1.

    `done` is the share of the training that is over (0 to 1), `warmed` that at the end of a warm-up given in steps. A
    warm-up below 1 is a share of the training.
    """
    warmup = schedule.warmup
    if 0 < warmup < 1:
        rise, warmed = min(done / warmup, step / _LEAST), warmup
    else:
        rise = step / warmup if warmup else 1.0
    return rise if rise < 1 else SCHEDULES[schedule.kind](schedule, step, done, warmed)


def warmup_note(schedule: Schedule, planned: float) -> str | None:
    """A warning if the warm-up takes more than `_LONG` of the `planned` steps, with the remedy."""
    warmup = schedule.warmup
    if warmup < 1 or warmup <= _LONG * planned:
        return None
    much = "more than the whole training" if warmup > planned else f"{warmup / planned:.0%} of the training"
    effect = "so lr never reaches its peak" if warmup > planned else "so lr reaches its peak late"
    return (
        f"warning: training.schedule.warmup ({warmup:,} steps) is {much} (about {plural(round(planned), 'step')} by "
        f"training.limits), {effect}; lower it, or set training.schedule.warmup=0.1 for a tenth of the training"
    )
