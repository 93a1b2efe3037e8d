"""Compare runs on one test set: quality, significance, cost, and where they differ."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.comparison.compare_runs import compare
    from sightline.comparison.export import write_comparison
    from sightline.comparison.results import ComparisonResult, read_comparison
    from sightline.comparison.terminal import print_comparison

__all__ = ["ComparisonResult", "compare", "print_comparison", "read_comparison", "write_comparison"]

_MODULES = {
    "ComparisonResult": "results",
    "compare": "compare_runs",
    "print_comparison": "terminal",
    "read_comparison": "results",
    "write_comparison": "export",
}


def __getattr__(name: str) -> Any:
    """Import on first use: a saved comparison is shown without PyTorch, which takes seconds to import."""
    if name in _MODULES:
        return getattr(import_module(f"sightline.comparison.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'sightline.comparison' has no attribute {name!r}")
