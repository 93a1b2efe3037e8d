"""Target lengths of the training data by source length, and the length limit of outputs that follows from them.

The longest target for a source length is read from the upper concave hull of the points (source tokens, target
tokens) of all training pairs. So no pair is above it, missing lengths are interpolated, and one short source with a
long target raises all limits by a constant, not by a factor. The few corners of the hull are saved in config.json.
All lengths include the end token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.integer[Any]]

FACTOR, SLACK = 1.5, 10  # limit: FACTOR times the longest training target for the source length, plus SLACK
UNKNOWN_RATIO, UNKNOWN_SLACK, UNKNOWN_MOST = 10, 50, 1_024  # without statistics of the training data


@dataclass(frozen=True)
class TargetLengths:
    """The longest training targets by source length."""

    corners: tuple[tuple[int, int], ...]  # (source, target) tokens, both increasing

    @staticmethod
    def of(sources: Lengths, targets: Lengths) -> TargetLengths | None:
        """From the lengths of pairs without end tokens; None if there are no pairs."""
        if not len(sources):
            return None
        longest = np.zeros(int(sources.max()) + 1, np.int64)
        np.maximum.at(longest, sources, targets + 1)
        seen = np.flatnonzero(longest)
        return TargetLengths(_hull(zip((seen + 1).tolist(), longest[seen].tolist(), strict=True)))

    @staticmethod
    def union(several: Iterable[TargetLengths | None]) -> TargetLengths | None:
        """The longest of several, for ensembles; None if none is known."""
        corners = [corner for each in several if each is not None for corner in each.corners]
        return TargetLengths(_hull(sorted(corners))) if corners else None

    @staticmethod
    def load(config: dict[str, Any]) -> TargetLengths | None:
        """Read what `save` added to config.json; None for runs of older versions."""
        saved = config.get("target_lengths")
        return None if saved is None else TargetLengths(tuple((int(s), int(t)) for s, t in saved["by_source"]))

    def save(self) -> dict[str, Any]:
        """The entry of config.json: the corners, and for readers the longest target and the largest ratio."""
        return {
            "target_lengths": {
                "longest_target": self.corners[-1][1],
                "largest_ratio": round(self.ratio, 3),
                "by_source": [list(corner) for corner in self.corners],
            }
        }

    @property
    def ratio(self) -> float:
        """The most target tokens for each source token."""
        return max(target / source for source, target in self.corners)

    @property
    def ratio_limit(self) -> float:
        """A `decoding.max_ratio` that is at least `limits` up to the longest source."""
        return FACTOR * self.ratio

    def limits(self, sources: Sequence[int] | Lengths) -> Lengths:
        """The most output tokens for sources of these lengths.

        Beyond the longest training source, the limit grows in proportion to the source.
        """
        lengths = np.asarray(sources, np.float64)
        (known, longest) = np.array(self.corners, np.float64).T
        expected = np.interp(lengths, known, longest) * np.maximum(1.0, lengths / known[-1])
        limits: Lengths = np.ceil(FACTOR * expected).astype(np.int64) + SLACK
        return limits


def fixed_limits(sources: Sequence[int] | Lengths) -> Lengths:
    """Limits without statistics of the training data: generous, so that hardly any output is cut."""
    lengths = np.asarray(sources, np.int64)
    return np.maximum(lengths, np.minimum(UNKNOWN_RATIO * lengths + UNKNOWN_SLACK, UNKNOWN_MOST))


def _hull(points: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The upper concave, non-decreasing hull of points sorted by their first number."""

    def below(x: int, y: int) -> bool:
        """Return True if the last corner is on or below the line from the corner before it to (x, y)."""
        if len(corners) < 2:
            return False
        (x0, y0), (x1, y1) = corners[-2:]
        return (y1 - y0) * (x - x0) <= (y - y0) * (x1 - x0)

    corners = list[tuple[int, int]]()
    for source, target in points:
        target = max(target, corners[-1][1]) if corners else target
        while corners and (corners[-1][0] == source or below(source, target)):
            corners.pop()
        corners.append((source, target))
    return tuple(corners)
