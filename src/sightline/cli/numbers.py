"""Numbers on the command line: finite, not negative, and not beyond what any command can do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sightline.recipe.schema import ANY_INT, MOST

_POSITIVE: tuple[str, ...] = (
    "beam",
    "nbest",
    "groups",
    "top_k",
    "top",
    "max_length",
    "max_tokens",
    "jobs",
    "threads",
    "count",
)
_POSITIVE += ("dim", "window", "epochs", "min_count", "size", "negatives")  # of vectors
_LARGEST: dict[str, int] = {
    "jobs": 1_024,
    "dim": 65_536,
    "window": 1_000,
    "epochs": 1_000_000,
    "negatives": 10_000,
    "mbr": int(MOST["candidates"]),
    "groups": int(MOST["Decoding.groups"]),
    "top": 1_000_000,
    "most": 100_000,
    "sentences": 1_000_000,
    "count": 100_000,
    "mix": int(MOST["weight"]),
}


def check_numbers(options: Mapping[str, Any]) -> None:
    """Refuse a value that no option of this name can have; what fits the others is checked by whoever uses it."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        option = f"--{name.replace('_', '-')} {value}"
        if not math.isfinite(value):
            raise ValueError(f"{option}: give a finite number")
        least = 1 if name in _POSITIVE else 0
        if value < least:
            raise ValueError(f"{option}: give {least} or more")
        most = _LARGEST.get(name, MOST.get(name, ANY_INT if isinstance(value, int) else 1e12))
        if value > most:
            raise ValueError(f"{option}: give at most {most:,}")
