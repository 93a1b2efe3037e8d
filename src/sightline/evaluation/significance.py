"""Significance tests of the difference between two systems on the same sentences.

`paired_bootstrap` (Koehn 2004) and `approximate_randomization` (Riezler & Maxwell 2005) draw and count exactly as
sacreBLEU does (same generator, seed and p; only its bootstrap adds up in float32), for every metric. Two things differ,
because sacreBLEU counts only differences strictly larger than the observed one and so calls a system different from
itself:

- systems with the same score have p = 1;
- `significant` also counts differences equal to the observed one (`p_with_ties`). Scores of whole items tie often: if
  two systems differ in a single output, every shuffle is as far apart as they are, and sacreBLEU's p is the smallest
  possible, 1 / (trials + 1).

Prefer approximate randomization, or McNemar's test for items that are right or wrong: of equally good pairs of systems
they call at most one in twenty significant. sacreBLEU's bootstrap centres absolute differences, which makes its p
nearly one-sided: in simulations (200 sentences, WER) it called 12% of equally good pairs significant.

McNemar's test assumes independent items. Tokens of one sentence are wrong together more often than by chance, so over
tokens (`token-accuracy`) its p is too small; decide by the tests that draw whole sentences.

Systems trained with several seeds have two sources of chance, and a test for each. The test sentences: approximate
randomization of the difference between the means over the seeds. A coin flip for each sentence swaps it in all runs at
once, because outputs of different seeds for one sentence are similar, and counting them as independent sentences would
make every difference look certain. Each run of one system is mixed with each of the other, so the order of the seeds
does not matter and their numbers may differ. The seeds: Welch's t-test between the scores of the runs; with one run on
one side, its variance is taken to be that of the other side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, variance
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import computed_field
from pydantic.dataclasses import dataclass

from sightline.evaluation.measurement import Better, Measurement, Numbers, Real, align_classes, resampled_sums

LEVEL = 0.05
TRIALS, SAMPLES, SEED = 10_000, 1_000, 12345  # sacreBLEU's defaults
_FLIPS_AT_ONCE = 4_000_000  # coin flips held in memory
_FLIPS_IN_A_WORD = 32  # NumPy draws coin flips from 32-bit words, and drops the rest of a word after a call

Runs = Measurement | Sequence[Measurement]  # of a system: one run, or one for each seed


@dataclass(frozen=True)
class Significance:
    """The result of a test between a system and a baseline; `difference` is system minus baseline."""

    test: Literal["paired bootstrap", "approximate randomization", "McNemar"]
    metric: str
    better: Better
    difference: Real
    p: Real
    p_with_ties: Real
    samples: int | None = None  # resamples or trials; None for an exact test
    seed: int | None = None
    only_baseline_right: int | None = None  # McNemar's discordant counts
    only_system_right: int | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def significant(self) -> bool:
        """True if chance is an unlikely explanation, at the 5% level."""
        return self.p_with_ties < LEVEL

    def __str__(self) -> str:
        """`BLEU +1.20 (better), p = 0.0120: significant (paired bootstrap, 1000 resamples, seed 12345)`."""
        ahead = self.difference if self.better == "higher" else -self.difference
        direction = "equal" if ahead == 0 else "better" if ahead > 0 else "worse"
        p = format_p(self.p)
        ties = "" if p == format_p(self.p_with_ties) else f", counting ties p {format_p(self.p_with_ties)}"
        if self.samples is None:
            how = f"only baseline right {self.only_baseline_right}, only system right {self.only_system_right}"
        else:
            how = f"{self.samples} {'resamples' if self.test == 'paired bootstrap' else 'trials'}, seed {self.seed}"
        verdict = "significant" if self.significant else "not significant"
        return f"{self.metric} {self.difference:+.2f} ({direction}), p {p}{ties}: {verdict} ({self.test}, {how})"


@dataclass(frozen=True)
class WelchTest:
    """Welch's t-test between the scores of two systems' runs."""

    t: Real
    freedom: Real
    p: Real
    baseline_runs: int
    system_runs: int
    test: Literal["Welch's t"] = "Welch's t"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def significant(self) -> bool:
        return self.p < LEVEL


def check_comparable(first: Measurement, second: Measurement) -> None:
    """Refuse two measurements whose difference would say nothing about the systems."""
    if (first.name, first.signature) != (second.name, second.signature):
        raise ValueError(
            f"{first.name} measured as {first.signature} cannot be compared with {second.name} measured as "
            f"{second.signature}; measure both with the same metric, options and version"
        )
    if first.count != second.count:
        raise ValueError(
            f"{first.name} of {first.count} sentences cannot be compared with {second.name} of {second.count} "
            f"(both {first.signature}); measure both on the same test set"
        )
    if first.against != second.against:
        raise ValueError(
            f"{first.name} was measured against different {first.against.split()[0]} ({first.against}; "
            f"{second.against}); measure both on the same test set, and perplexity with the same tokenizer"
        )
    if first.classes != second.classes:
        raise ValueError(
            f"{first.name} was measured over {len(first.classes or ())} labels and over {len(second.classes or ())} "
            "that are not the same, so its columns do not fit together; give both the same with align_classes([...])"
        )


# --- resampling tests --------------------------------------------------------------------------------------------


def paired_bootstrap(baseline: Runs, system: Runs, *, samples: int = SAMPLES, seed: int = SEED) -> Significance:
    """Resample sentences, the same for both systems: how often is their distance this much above its mean?"""
    first, second = _aligned(baseline, system)
    _check_draws("samples", samples)
    runs = (*first, *second)
    sums = resampled_sums(np.hstack([each.statistics for each in runs]), samples, seed)  # (R, runs · K)
    scores = [finite_scores(each, part) for each, part in zip(runs, np.hsplit(sums, len(runs)), strict=True)]
    distances = np.abs(np.mean(scores[len(first) :], axis=0) - np.mean(scores[: len(first)], axis=0))  # (R,)
    return _significance("paired bootstrap", first, second, distances - distances.mean(), seed)


def approximate_randomization(baseline: Runs, system: Runs, *, trials: int = TRIALS, seed: int = SEED) -> Significance:
    """Swap the outputs for a sentence or not, by coin flip: how often are the mixed systems further apart?"""
    first, second = _aligned(baseline, system)
    _check_draws("trials", trials)
    distances: list[Numbers] = []
    for kept in coin_flips(trials, first[0].count, seed):
        # Added up as sacreBLEU does: lengths averaged over references have rounding errors that decide ties.
        keep, swap = kept.astype(np.float64), (~kept).astype(np.float64)  # (r, N)
        sums = [[(keep @ each.statistics, swap @ each.statistics) for each in side] for side in (first, second)]
        apart = np.zeros(len(kept))  # (r,)
        for one, (kept_one, swapped_one) in zip(first, sums[0], strict=True):
            for two, (kept_two, swapped_two) in zip(second, sums[1], strict=True):
                mixed_one, mixed_two = kept_one + swapped_two, swapped_one + kept_two  # (r, K)
                apart += finite_scores(one, mixed_one) - finite_scores(two, mixed_two)
        distances.append(np.abs(apart) / (len(first) * len(second)))
    return _significance("approximate randomization", first, second, np.concatenate(distances), seed)


def _aligned(baseline: Runs, system: Runs) -> tuple[list[Measurement], list[Measurement]]:
    """The runs of both systems, with the same classes, refused if they do not compare."""
    first, second = ([side] if isinstance(side, Measurement) else list(side) for side in (baseline, system))
    runs = align_classes([*first, *second])
    for each in runs[1:]:
        check_comparable(runs[0], each)
    return runs[: len(first)], runs[len(first) :]


def _significance(
    test: Literal["paired bootstrap", "approximate randomization"],
    baseline: Sequence[Measurement],
    system: Sequence[Measurement],
    drawn: Numbers,
    seed: int,
) -> Significance:
    """p = (1 + draws beyond the observed distance) / (1 + draws), and p = 1 where there is no distance.

    The one counts the observation itself, so that p is never 0 (Phipson & Smyth 2010). Equal distances computed from
    different sums differ by up to `rounding`: such draws count in `p_with_ties`. p counts strictly larger draws, as in
    sacreBLEU; means over several runs round more, so there a draw is larger only beyond `rounding`.
    """
    first, second = (
        fmean(float(finite_scores(each, each.statistics.sum(axis=0)[None])[0]) for each in side)
        for side in (baseline, system)
    )
    single = len(baseline) == len(system) == 1
    rounding = (1e-12 if single else 1e-10) * (abs(first) + abs(second))
    above = 0.0 if single else rounding
    distance = abs(second - first)
    counts = np.count_nonzero(drawn > distance + above), np.count_nonzero(drawn >= distance - rounding)
    p, p_with_ties = (float((count + 1) / (len(drawn) + 1)) if distance > above else 1.0 for count in counts)
    return Significance(
        test=test,
        metric=baseline[0].name,
        better=baseline[0].better,
        difference=second - first,
        p=p,
        p_with_ties=p_with_ties,
        samples=len(drawn),
        seed=seed,
    )


def finite_scores(measurement: Measurement, sums: Numbers) -> Numbers:
    """The corpus score of each row of sums (M, K); refuses infinite scores and nan."""
    values = measurement.values(sums)
    if not np.isfinite(values).all():
        raise ValueError(
            f"{measurement.name} is {values[~np.isfinite(values)][0]} for some of the {measurement.count} sentences, "
            "so no difference can be taken; find the sentence that has no finite score, or compare another metric"
        )
    return values


def coin_flips(trials: int, sentences: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    """`trials` rows of `sentences` coin flips in blocks of rows, the same as if drawn at once."""
    generator = np.random.default_rng(seed)
    rows = max(1, _FLIPS_AT_ONCE // sentences // _FLIPS_IN_A_WORD) * _FLIPS_IN_A_WORD
    for start in range(0, trials, rows):
        yield generator.integers(2, size=(min(rows, trials - start), sentences), dtype=np.bool_)


def _check_draws(what: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{what} ({count}) must be at least 1; 1000 or more make a p-value worth reading")


# --- McNemar's test ----------------------------------------------------------------------------------------------


def mcnemar(baseline_right: ArrayLike, system_right: ArrayLike, *, metric: str = "right") -> Significance:
    """McNemar's exact test for items that are right or wrong (a measurement's `outcomes`).

    Only items that one system has right and the other wrong tell the two apart; by chance, each is equally likely to be
    the baseline's or the system's. p is the two-sided binomial probability, 2 · P(X ≤ the smaller count), at most 1.
    The mid-p variant, which is less strict, does not keep its error below the level.
    """
    second, first = _outcomes(system_right, "system_right"), _outcomes(baseline_right, "baseline_right")
    if len(second) != len(first):
        raise ValueError(
            f"baseline_right has {len(first)} items and system_right {len(second)}; judge both on the same test set"
        )
    only_baseline, only_system = int((first & ~second).sum()), int((second & ~first).sum())
    p = sign_test(only_baseline, only_system)
    return Significance(
        test="McNemar",
        metric=metric,
        better="higher",
        difference=100 * (only_system - only_baseline) / len(second),
        p=p,
        p_with_ties=p,
        only_baseline_right=only_baseline,
        only_system_right=only_system,
    )


def sign_test(first: int, second: int) -> float:
    """The two-sided exact p of `first` against `second` successes, both equally likely."""
    return min(1.0, 2 * _binomial_tail(min(first, second), first + second))


def _binomial_tail(heads: int, flips: int) -> float:
    """P(at most `heads` heads in `flips` flips) = Σ C(flips, i) / 2^flips for i up to `heads` ≤ `flips` / 2.

    Starts at the largest term and multiplies by ratios until terms no longer change the sum (some √flips terms), which
    avoids huge binomials and vanishing powers.
    """
    logarithm = math.lgamma(flips + 1) - math.lgamma(heads + 1) - math.lgamma(flips - heads + 1) - flips * math.log(2)
    term, total = 1.0, 1.0
    for below in range(heads, 0, -1):
        term *= below / (flips - below + 1)
        if total + term == total:
            break
        total += term
    return math.exp(logarithm) * total


def _outcomes(values: ArrayLike, argument: str) -> NDArray[np.bool_]:
    outcomes = np.asarray(values)
    if outcomes.ndim != 1 or not outcomes.size:
        raise ValueError(f"{argument} has shape {outcomes.shape}; give one value, right or wrong, for each item")
    wrong = outcomes[(outcomes != 0) & (outcomes != 1)]
    if wrong.size:
        raise ValueError(
            f"{argument} holds {wrong[0]}; an item is right (1) or wrong (0): use a paired test for other scores"
        )
    return outcomes.astype(np.bool_)


# --- Welch's t-test ----------------------------------------------------------------------------------------------


def welch_test(baseline: Sequence[float], system: Sequence[float]) -> WelchTest | None:
    """Welch's two-sided t-test between the scores of runs; None if neither side has several."""
    sides = (baseline, system)
    if all(len(side) < 2 for side in sides):
        return None
    known = [variance(side) for side in sides if len(side) > 1]
    variances = [variance(side) if len(side) > 1 else known[0] for side in sides]
    errors = [each / len(side) for each, side in zip(variances, sides, strict=True)]
    difference = fmean(system) - fmean(baseline)
    if sum(errors) == 0:
        freedom, t = float(len(baseline) + len(system) - 2), math.copysign(math.inf, difference) if difference else 0.0
    else:
        t = difference / math.sqrt(sum(errors))
        if len(known) == 2:  # Welch–Satterthwaite
            freedom = sum(errors) ** 2 / sum(e**2 / (len(s) - 1) for e, s in zip(errors, sides, strict=True))
        else:  # Student's: the variance is known from one side
            freedom = float(max(len(side) for side in sides) - 1)
    return WelchTest(t, freedom, student_tail(t, freedom), len(baseline), len(system))


def student_tail(t: float, freedom: float) -> float:
    """P(|T| ≥ |t|) of Student's distribution: the regularized incomplete beta function I_x(ν/2, 1/2), x = ν / (ν + t²).

    By its continued fraction (Abramowitz & Stegun 26.5.8) with Lentz's method, which converges fast for small x; for
    the rest, I_x(a, b) = 1 - I_1-x(b, a).
    """
    if math.isinf(t):
        return 0.0
    x = freedom / (freedom + t * t)
    if x > (freedom / 2 + 1) / (freedom / 2 + 2.5):
        return 1.0 - _incomplete_beta(1 - x, 0.5, freedom / 2)
    return _incomplete_beta(x, freedom / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    if x <= 0:
        return 0.0

    def nonzero(value: float) -> float:
        return value if abs(value) > 1e-300 else 1e-300

    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    above, below, fraction = 1.0, 0.0, 1.0
    for number in range(400):
        m = number // 2
        if number == 0:
            term = 1.0
        elif number % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / nonzero(1 + term * below)
        above = nonzero(1 + term / above)
        fraction *= above * below
        if abs(1 - above * below) < 1e-15:
            break
    return min(1.0, front / a * (fraction - 1.0))


def format_p(p: float) -> str:
    """`= 0.0123` or `< 0.0001`, to follow a p."""
    return "< 0.0001" if p < 0.0001 else f"= {p:.4f}"
