"""What a run's metrics.jsonl says: how it learned, and what that took."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sightline.run_folder import journal

Validation = dict[str, float]  # step, tokens, seconds, loss, and, where they were written down, flops and metrics


@dataclass(frozen=True)
class Cost:
    """What a training took in all; None where the journal does not say (older runs count no FLOPs and no memory)."""

    steps: float | None = None
    tokens: float | None = None  # of the target side
    flops: float | None = None
    seconds: float | None = None
    peak_memory: float | None = None  # bytes

    @staticmethod
    def mean(costs: list[Cost]) -> Cost:
        """The mean of each, where all have it, and the largest memory."""

        def known(name: str) -> list[float] | None:
            values = [getattr(cost, name) for cost in costs]
            return None if None in values else values

        averages = {name: known(name) for name in ("steps", "tokens", "flops", "seconds")}
        memory = known("peak_memory")
        return Cost(
            **{name: None if values is None else fmean(values) for name, values in averages.items()},
            peak_memory=None if memory is None else max(memory),
        )


def read_journal(run: Path) -> tuple[Cost, list[Validation]]:
    """The cost of a training and its validations in order. A run without a journal has neither."""
    records = journal(run)
    validations = [
        {key: float(value) for key, value in record.items() if _is_number(value)}
        for record in records
        if record.get("kind") == "validation"
    ]
    cost = Cost(
        steps=_largest(records, "step"),
        tokens=_largest(records, "tokens"),
        flops=_largest(records, "flops"),
        seconds=_largest(records, "seconds"),
        peak_memory=_largest(records, "peak_memory"),
    )
    return cost, validations


def _largest(records: list[dict[str, Any]], key: str) -> float | None:
    """All that is counted only grows, so the largest is the last."""
    values = [float(record[key]) for record in records if _is_number(record.get(key))]
    return max(values, default=None) or None  # nothing counted is nothing known


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
