"""Runs beside one another: quality, luck, cost, and where they differ."""

from __future__ import annotations

from sightline.comparison.comparing import compare
from sightline.comparison.exports import write_comparison
from sightline.comparison.results import Comparison
from sightline.comparison.saved import read_comparison
from sightline.comparison.terminal import print_comparison

__all__ = ["Comparison", "compare", "print_comparison", "read_comparison", "write_comparison"]
