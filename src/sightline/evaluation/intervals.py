"""A score, and how far it can be trusted.

Intervals are 95% bootstrap percentile intervals (Koehn 2004): sentences are drawn again with replacement, and their
statistics added up and scored. Draws and bounds are exactly sacreBLEU's (same generator, same seed, 1/40 cut off at
either end), so half the width of our interval is the `±` that `sacrebleu --confidence` prints. Of labels that are all
right or all wrong resampling shows nothing else, a point; there the interval is Wilson's, and the signature says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
_INDICES_AT_ONCE = 4_000_000  # indices held in memory


@dataclass(frozen=True)
class Score:
    """One number about a set of outputs, with all that is needed to make it again."""

    name: str
    value: float
    low: float
    high: float
    signature: str
    count: int
    better: Literal["higher", "lower"]
    detail: str = ""
    digits: int = 2  # behind the point, where a person reads it

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" [{self.low:.{self.digits}f}, {self.high:.{self.digits}f}]"
        return f"{self.name} {self.value:.{self.digits}f}{interval}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where an interval that was not asked for is null."""
        return {key: None if value != value else value for key, value in asdict(self).items() if key != "digits"}


def interval(
    statistics: Sequence[Sequence[float]] | Numbers,
    value: Callable[[Numbers], Numbers],
    *,
    bootstrap: int,
    seed: int,
) -> tuple[float, float]:
    """Low and high of `value` over resampled sums of `statistics` (N, K); `value` maps (R, K) sums to R numbers."""
    if bootstrap == 0:
        return math.nan, math.nan
    if bootstrap < 2:
        raise ValueError(f"bootstrap ({bootstrap}) must be at least 2 resamples, or 0 for no interval")
    values = np.sort(value(resampled_sums(np.asarray(statistics, dtype=np.float64), bootstrap, seed)))
    cut = bootstrap // 40
    return float(values[cut]), float(values[bootstrap - cut - 1])


def resampled_sums(statistics: Numbers, bootstrap: int, seed: int) -> Numbers:
    """`bootstrap` times the sum over as many rows as there are, drawn with replacement: (R, K)."""
    rows, width = statistics.shape
    generator = np.random.default_rng(seed)
    sums = np.empty((bootstrap, width))
    step = max(1, _INDICES_AT_ONCE // rows)
    for start in range(0, bootstrap, step):
        size = min(step, bootstrap - start)
        drawn = generator.choice(rows, size=(size, rows), replace=True)  # (r, N)
        drawn += np.arange(size)[:, None] * rows
        times = np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows)
        sums[start : start + size] = times @ statistics
    return sums


def wilson(successes: int, count: int) -> tuple[float, float]:
    """95% score interval of a share (Wilson 1927). Unlike the bootstrap it does not shrink to a point at 0 or 100%."""
    z = 1.959963984540054
    share, shrink = successes / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low, high = middle - half, middle + half
    return low if successes else 0.0, high if successes < count else 1.0  # rounding would miss what is exact there
