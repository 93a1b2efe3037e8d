"""Runs beside one another: quality, luck, cost, and where they differ."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.comparison.comparing import compare
    from sightline.comparison.exports import write_comparison
    from sightline.comparison.results import Comparison
    from sightline.comparison.saved import read_comparison
    from sightline.comparison.terminal import print_comparison

__all__ = ["Comparison", "compare", "print_comparison", "read_comparison", "write_comparison"]

_ROOMS = {
    "Comparison": "results",
    "compare": "comparing",
    "print_comparison": "terminal",
    "read_comparison": "saved",
    "write_comparison": "exports",
}


def __getattr__(name: str) -> Any:
    """What was compared before is shown without PyTorch, which takes seconds to import."""
    if name in _ROOMS:
        return getattr(import_module(f"sightline.comparison.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'sightline.comparison' has no attribute {name!r}")
