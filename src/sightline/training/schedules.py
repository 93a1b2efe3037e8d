"""How the learning rate moves: pure functions of the step, from 1."""

from __future__ import annotations

import math

from sightline.recipe import Schedule


def factor(schedule: Schedule, step: int, done: float) -> float:
    """The share of the peak rate at this step, with so much of the whole training done (0 to 1)."""
    if schedule.warmup and step < schedule.warmup:
        return step / schedule.warmup
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind == "inverse-sqrt":  # Vaswani et al. 2017, §5.3, with its peak at 1
        return math.sqrt(max(schedule.warmup, 1) / step)
    if schedule.kind == "cosine":
        return schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * done))
    left = (1 - done) / schedule.decay  # warmup-stable-decay (Hu et al. 2024)
    return schedule.floor + (1 - schedule.floor) * min(1.0, left)
