"""What a run's metrics.jsonl says: how it learned, and what that took.

A journal may be cut off (a copy that was broken off, a full disk). What the training took in all is then told by its
newest checkpoint; where there is none, what the journal says is the least that it took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sightline.recipe import Recipe
from sightline.recipe.bodies import NgramConfig
from sightline.run_folder import journal, saved_progress
from sightline.training.schedules import limit_reached

Validation = dict[str, float]  # step, tokens, seconds, loss, and, where they were written down, flops and metrics


@dataclass(frozen=True)
class Cost:
    """What a training took in all; None where the journal does not say (older runs count no FLOPs and no memory)."""

    steps: float | None = None
    tokens: float | None = None  # of the target side
    flops: float | None = None
    seconds: float | None = None
    peak_memory: float | None = None  # bytes
    least: bool = False  # whether it may have been more, for the journal ends too soon

    @staticmethod
    def mean(costs: Sequence[Cost]) -> Cost:
        """The mean of each, where all have it, and the largest memory."""
        return _together(costs, fmean)

    @staticmethod
    def total(costs: Sequence[Cost]) -> Cost:
        """Of several trainings that were all needed: the sum of each, where all have it, and the largest memory."""
        return _together(costs, sum)


def _together(costs: Sequence[Cost], amount: Callable[[list[float]], float]) -> Cost:
    def known(name: str, amount: Callable[[list[float]], float]) -> float | None:
        values = [getattr(cost, name) for cost in costs]
        return None if None in values else amount(values)

    amounts = {name: known(name, amount) for name in ("steps", "tokens", "flops", "seconds")}
    least = any(cost.least for cost in costs)
    return Cost(**amounts, peak_memory=known("peak_memory", max), least=least)


@dataclass(frozen=True)
class CutOff:
    """A journal that ends before its training did, or should have."""

    step: int  # of its last record
    steps: int | None  # of the training: as its newest checkpoint says, else by the limit of its recipe
    saved: bool  # whether a checkpoint tells what the training took


def read_journal(run: Path, recipe: Recipe) -> tuple[Cost, list[Validation]]:
    """The cost of a training and its validations in order. A run without a journal and checkpoints has neither."""
    records = journal(run)
    counted = [*records, saved_progress(run) or {}]
    cut = cut_off(run, recipe)
    validations = [
        {key: float(value) for key, value in record.items() if _is_number(value)}
        for record in records
        if record.get("kind") == "validation"
    ]
    cost = Cost(
        steps=_largest(counted, "step"),
        tokens=_largest(counted, "tokens"),
        flops=_largest(counted, "flops"),
        seconds=_largest(counted, "seconds"),
        peak_memory=_largest(records, "peak_memory"),
        least=cut is not None and not cut.saved,
    )
    return cost, validations


def cut_off(run: Path, recipe: Recipe) -> CutOff | None:
    """Where a journal ends that does not go on to the end of its training; None for one that is whole, or not there.

    A checkpoint knows how long the journal was. Without one it should end as a training does: with a whole line, at a
    limit of the recipe.
    """
    records, path = journal(run), run / "metrics.jsonl"
    content = path.read_bytes() if path.is_file() else b""
    step, progress = int(_largest(records, "step") or 0), saved_progress(run)
    if progress is not None:
        cut = len(content) < progress.get("journal", 0)
        return CutOff(step, progress.get("step"), saved=True) if cut else None
    if not records or isinstance(recipe.model.decoder, NgramConfig):  # what is counted has one record
        return None
    lines = sum(bool(line.strip()) for line in content.split(b"\n"))
    if lines == len(records) and limit_reached(_reached(records), recipe):
        return None
    return CutOff(step, recipe.training.limits.steps, saved=False)


def _reached(records: list[dict[str, Any]]) -> dict[str, float]:
    """How far a training was by its journal, as `limit_reached` asks."""
    better = [bool(record.get("best")) for record in records if record.get("kind") == "validation"]
    waited = [*reversed(better), True].index(True)
    return {"waited": waited, **{key: _largest(records, key) or 0 for key in ("step", "epoch", "seconds")}}


def _largest(records: list[dict[str, Any]], key: str) -> float | None:
    """All that is counted only grows, so the largest is the last."""
    values = [float(record[key]) for record in records if _is_number(record.get(key))]
    return max(values, default=None) or None  # nothing counted is nothing known


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
