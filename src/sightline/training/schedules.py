"""How the learning rate moves: pure functions of the step, from 1."""

from __future__ import annotations

import math

from sightline.recipe import Schedule


def factor(schedule: Schedule, step: int, done: float, warmed: float = 0.0) -> float:
    """The share of the peak rate at this step.

    `done` is how much of the whole training lies behind it (0 to 1), `warmed` how much of it the warmup takes.
    """
    if schedule.warmup and step < schedule.warmup:
        return step / schedule.warmup
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind == "inverse-sqrt":  # Vaswani et al. 2017, §5.3, with its peak at 1
        return math.sqrt(max(schedule.warmup, 1) / step)
    if schedule.kind == "cosine":
        annealed = max(0.0, done - warmed) / max(1e-9, 1 - warmed)
        return schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, annealed)))
    left = (1 - done) / schedule.decay  # warmup-stable-decay (Hu et al. 2024)
    return schedule.floor + (1 - schedule.floor) * min(1.0, left)
