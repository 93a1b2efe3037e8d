"""Cost and learning curve of a training, read from its log (metrics.jsonl).

A log may be cut off (an interrupted copy, a full disk). Then the newest checkpoint has the cost; without one, the log
gives a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.comparison.results import Cost, Validation
from sightline.recipe import Recipe
from sightline.run_folder import read_metrics, saved_progress
from sightline.training.schedules import limit_reached


@dataclass(frozen=True)
class CutOff:
    """A log that ends before its training did."""

    step: int  # of its last record
    steps: int | None  # of the newest checkpoint, else the limit of the recipe
    saved: bool  # True if a checkpoint has the cost


def read_log(run: Path, recipe: Recipe) -> tuple[Cost, list[Validation]]:
    """The cost of a training, and its validations in order."""
    records = read_metrics(run)
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
    """Where a log was cut off; None if it is complete or missing.

    A checkpoint has the length of the log. Without one, a complete log ends with a whole line at a limit of the recipe.
    """
    records, path = read_metrics(run), run / "metrics.jsonl"
    content = path.read_bytes() if path.is_file() else b""
    step, progress = int(_largest(records, "step") or 0), saved_progress(run)
    if progress is not None:
        cut = len(content) < progress.get("journal", 0)
        return CutOff(step, progress.get("step"), saved=True) if cut else None
    if not records or recipe.model.counted:  # counting n-grams logs one record
        return None
    lines = sum(bool(line.strip()) for line in content.split(b"\n"))
    if lines == len(records) and limit_reached(_progress(records), recipe):
        return None
    return CutOff(step, recipe.training.limits.steps, saved=False)


def _progress(records: list[dict[str, Any]]) -> dict[str, float]:
    """The progress of a log, for `limit_reached`."""
    better = [bool(record.get("best")) for record in records if record.get("kind") == "validation"]
    waited = [*reversed(better), True].index(True)
    return {"waited": waited, **{key: _largest(records, key) or 0 for key in ("step", "epoch", "seconds")}}


def _largest(records: list[dict[str, Any]], key: str) -> float | None:
    """The last value of a counter; None if it was not counted."""
    values = [float(record[key]) for record in records if _is_number(record.get(key))]
    return max(values, default=None) or None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
