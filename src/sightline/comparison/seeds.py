"""Significance between systems that were trained several times, each time with another seed.

There are two kinds of luck, and two tests. Whether another choice of test sentences could turn the difference round is
judged by approximate randomization, as for single runs, of the difference between the means over the seeds. A coin is
flipped for each sentence and swaps it in all runs at once: outputs of different seeds for one sentence are alike, and
counting them as so many independent sentences would make every difference look certain. Each run of one system is mixed
with each of the other, so nothing depends on which seeds stand side by side, and their numbers may differ.

Whether other seeds could turn it round is judged by Welch's t-test between the scores of the runs. With one run on one
side, its spread is taken to be that of the other side. Three seeds a side are few, and the test knows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, variance
from typing import Any, Literal

import numpy as np

from sightline.evaluation.intervals import Numbers, resampled_sums
from sightline.evaluation.measurement import Measurement
from sightline.evaluation.significance import (
    LEVEL,
    Significance,
    approximate_randomization,
    check_comparable,
    coin_flips,
    finite_scores,
    judge_draws,
    paired_bootstrap,
)

TRIALS, SAMPLES, SEED = 10_000, 1_000, 12345  # sacreBLEU's


@dataclass(frozen=True)
class SeedTest:
    """Welch's t-test between the scores of two systems' runs."""

    t: float
    freedom: float
    p: float
    baseline_runs: int
    system_runs: int

    @property
    def significant(self) -> bool:
        return self.p < LEVEL

    def to_dict(self) -> dict[str, Any]:
        return {"test": "Welch's t", **asdict(self), "significant": self.significant}


def randomization(
    baseline: Sequence[Measurement], system: Sequence[Measurement], *, trials: int = TRIALS
) -> Significance:
    """Approximate randomization between the means of two systems' runs (see above); of one run each, sacreBLEU's."""
    if len(baseline) == len(system) == 1:
        return approximate_randomization(baseline[0], system[0], trials=trials, seed=SEED)
    _check(baseline, system)
    sums = [each.statistics.sum(axis=0) for each in (*baseline, *system)]  # (K,) each
    distances: list[Numbers] = []
    for kept in coin_flips(trials, baseline[0].count, SEED):
        parts = [kept @ each.statistics for each in (*baseline, *system)]  # (r, K) each
        rest = [total - part for total, part in zip(sums, parts, strict=True)]
        apart = np.zeros(len(kept))
        for i in range(len(baseline)):
            for j in range(len(baseline), len(sums)):
                first, second = parts[i] + rest[j], rest[i] + parts[j]
                apart += finite_scores(baseline[i], first) - finite_scores(baseline[i], second)
        distances.append(np.abs(apart) / (len(baseline) * len(system)))
    return _judged("approximate randomization", baseline, system, np.concatenate(distances))


def bootstrap(
    baseline: Sequence[Measurement], system: Sequence[Measurement], *, samples: int = SAMPLES
) -> Significance:
    """Paired bootstrap between the means of two systems' runs; of one run each, sacreBLEU's."""
    if len(baseline) == len(system) == 1:
        return paired_bootstrap(baseline[0], system[0], samples=samples, seed=SEED)
    _check(baseline, system)
    together = (*baseline, *system)
    drawn = np.hsplit(resampled_sums(np.hstack([each.statistics for each in together]), samples, SEED), len(together))
    scores = [finite_scores(each, sums) for each, sums in zip(together, drawn, strict=True)]  # (R,) each
    theirs, ours = np.mean(scores[: len(baseline)], axis=0), np.mean(scores[len(baseline) :], axis=0)
    distances = np.abs(ours - theirs)
    return _judged("paired bootstrap", baseline, system, distances - distances.mean())


def seed_test(baseline: Sequence[float], system: Sequence[float]) -> SeedTest | None:
    """Welch's t-test, two-sided, between the scores of runs; None where no side has several."""
    sides = (baseline, system)
    if all(len(side) < 2 for side in sides):
        return None
    known = [variance(side) for side in sides if len(side) > 1]
    spreads = [variance(side) if len(side) > 1 else known[0] for side in sides]
    errors = [spread / len(side) for spread, side in zip(spreads, sides, strict=True)]
    difference = fmean(system) - fmean(baseline)
    if sum(errors) == 0:
        freedom, t = float(len(baseline) + len(system) - 2), math.copysign(math.inf, difference) if difference else 0.0
    else:
        t = difference / math.sqrt(sum(errors))
        if len(known) == 2:  # Welch–Satterthwaite
            freedom = sum(errors) ** 2 / sum(e**2 / (len(s) - 1) for e, s in zip(errors, sides, strict=True))
        else:  # Student's, all of the spread known from one side
            freedom = float(max(len(side) for side in sides) - 1)
    return SeedTest(t, freedom, student_tail(t, freedom), len(baseline), len(system))


def student_tail(t: float, freedom: float) -> float:
    """P(|T| ≥ |t|) of Student's distribution: the regularized incomplete beta function I_x(ν/2, 1/2), x = ν / (ν + t²).

    By its continued fraction (Abramowitz & Stegun 26.5.8), evaluated with Lentz's method.
    """
    if math.isinf(t):
        return 0.0
    x = freedom / (freedom + t * t)
    if x > (freedom / 2 + 1) / (
        freedom / 2 + 2.5
    ):  # the fraction converges fast only below; I_x(a, b) = 1 - I_1-x(b, a)
        return 1.0 - _incomplete_beta(1 - x, 0.5, freedom / 2)
    return _incomplete_beta(x, freedom / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    if x <= 0:
        return 0.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    above, below, fraction = 1.0, 0.0, 1.0
    for number in range(400):
        m = number // 2
        if number == 0:
            term = 1.0
        elif number % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / _away_from_zero(1 + term * below, tiny)
        above = _away_from_zero(1 + term / above, tiny)
        fraction *= above * below
        if abs(1 - above * below) < 1e-15:
            break
    return min(1.0, front / a * (fraction - 1.0))


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


def _check(baseline: Sequence[Measurement], system: Sequence[Measurement]) -> None:
    for each in (*baseline[1:], *system):
        check_comparable(baseline[0], each)


def _judged(
    test: Literal["paired bootstrap", "approximate randomization"],
    baseline: Sequence[Measurement],
    system: Sequence[Measurement],
    drawn: Numbers,
) -> Significance:
    theirs, ours = (fmean(each.value for each in side) for side in (baseline, system))
    rounding = 1e-10 * (abs(ours) + abs(theirs))  # means of means round more than a single score
    return judge_draws(test, baseline[0], theirs, ours, drawn, SEED, above=rounding, rounding=rounding)
