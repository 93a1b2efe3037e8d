"""Whether the difference between two systems on the same sentences is more than luck.

`paired_bootstrap` (Koehn 2004) and `approximate_randomization` (Riezler & Maxwell 2005) draw and count exactly as
sacreBLEU does (same generator, same seed, same p; only its bootstrap adds up in float32), for every metric. Two things
are done otherwise, because sacreBLEU counts only differences strictly larger than the one observed and so calls a
system different from itself:

- systems with the same score have p = 1;
- `significant` also counts differences equal to the one observed (`p_with_ties`). Scores of whole items tie often:
  if two systems differ in a single answer, every shuffle is as far apart as they are, and sacreBLEU's p is the
  smallest there is, 1 / (trials + 1).

Prefer approximate randomization, or McNemar's test where an item is right or wrong: of two systems equally good, they
call one significantly better at most one time in twenty. sacreBLEU's bootstrap centres absolute differences, which
makes its p nearly one-sided: in simulations (200 sentences, WER) it called 12% of equally good pairs significant.

McNemar's test takes its items to be independent. Outputs are; the tokens of one sentence are wrong together more often
than luck would have it, so over tokens (`token-accuracy`) its p is too small, and the tests that draw whole sentences
are the ones to decide by.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline.evaluation.intervals import Numbers, resampled_sums
from sightline.evaluation.measurement import Measurement, aligned

LEVEL = 0.05
_FLIPS_AT_ONCE = 4_000_000  # coin flips held in memory
_FLIPS_IN_A_WORD = 32  # NumPy cuts coin flips from words of 32 bits; what is left of one is lost after a call


@dataclass(frozen=True)
class Significance:
    """What a test says of a system beside a baseline; `difference` is the system's value minus the baseline's."""

    test: Literal["paired bootstrap", "approximate randomization", "McNemar"]
    metric: str
    better: Literal["higher", "lower"]
    difference: float
    p: float
    p_with_ties: float
    samples: int | None = None  # resamples or trials; None for an exact test
    seed: int | None = None
    only_baseline_right: int | None = None  # McNemar's discordant counts
    only_system_right: int | None = None

    @property
    def significant(self) -> bool:
        """Whether luck is an unlikely explanation, at the 5% level."""
        return self.p_with_ties < LEVEL

    def __str__(self) -> str:
        """`BLEU +1.20 (better), p = 0.0120: significant (paired bootstrap, 1000 resamples, seed 12345)`."""
        ahead = self.difference if self.better == "higher" else -self.difference
        direction = "equal" if ahead == 0 else "better" if ahead > 0 else "worse"
        p = written_p(self.p)
        ties = "" if p == written_p(self.p_with_ties) else f", counting ties p {written_p(self.p_with_ties)}"
        if self.samples is None:
            how = f"only baseline right {self.only_baseline_right}, only system right {self.only_system_right}"
        else:
            how = f"{self.samples} {'resamples' if self.test == 'paired bootstrap' else 'trials'}, seed {self.seed}"
        verdict = "significant" if self.significant else "not significant"
        return f"{self.metric} {self.difference:+.2f} ({direction}), p {p}{ties}: {verdict} ({self.test}, {how})"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "significant": self.significant}


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
            "that are not the same, so its columns do not fit together; give both the same with aligned([...])"
        )


def paired_bootstrap(
    baseline: Measurement, system: Measurement, *, samples: int = 1000, seed: int = 12345
) -> Significance:
    """Draw sentences again, the same for both systems: how often is their distance this much above its mean?"""
    baseline, system = aligned([baseline, system])
    check_comparable(baseline, system)
    _check_draws("samples", samples)
    sums = resampled_sums(np.hstack([baseline.statistics, system.statistics]), samples, seed)  # (R, 2K)
    first, second = np.hsplit(sums, 2)
    distances = np.abs(finite_scores(system, second) - finite_scores(baseline, first))
    return _judged("paired bootstrap", baseline, system, distances - distances.mean(), seed)


def approximate_randomization(
    baseline: Measurement, system: Measurement, *, trials: int = 10000, seed: int = 12345
) -> Significance:
    """Swap the outputs of a sentence or not, by coin flip: how often are the mixed systems further apart?"""
    baseline, system = aligned([baseline, system])
    check_comparable(baseline, system)
    _check_draws("trials", trials)
    ours, theirs = system.statistics, baseline.statistics  # (N, K)
    distances = np.empty(trials)
    done = 0
    for kept in coin_flips(trials, baseline.count, seed):
        # Added up as sacreBLEU does: lengths averaged over references have rounding errors that decide ties.
        first, second = kept @ theirs + ~kept @ ours, ~kept @ theirs + kept @ ours  # (r, K) each
        distances[done : done + len(kept)] = np.abs(finite_scores(baseline, first) - finite_scores(system, second))
        done += len(kept)
    return _judged("approximate randomization", baseline, system, distances, seed)


def mcnemar(baseline_right: ArrayLike, system_right: ArrayLike, *, metric: str = "right") -> Significance:
    """McNemar's test for items that are right or wrong (a measurement's `outcomes`), in its exact form.

    Only items that one system has right and the other wrong tell the two apart; by luck, each is the baseline's or the
    system's with equal chance. p is the two-sided binomial probability, 2 · P(X ≤ the smaller count), at most 1. It is
    not the mid-p variant, which is less strict but does not keep its error below the level.
    """
    ours, theirs = _rights(system_right, "system_right"), _rights(baseline_right, "baseline_right")
    if len(ours) != len(theirs):
        raise ValueError(
            f"baseline_right has {len(theirs)} items and system_right {len(ours)}; judge both on the same test set"
        )
    only_baseline, only_system = int((theirs & ~ours).sum()), int((ours & ~theirs).sum())
    p = sign_test(only_baseline, only_system)
    return Significance(
        test="McNemar",
        metric=metric,
        better="higher",
        difference=100 * (only_system - only_baseline) / len(ours),
        p=p,
        p_with_ties=p,
        only_baseline_right=only_baseline,
        only_system_right=only_system,
    )


def _judged(
    test: Literal["paired bootstrap", "approximate randomization"],
    baseline: Measurement,
    system: Measurement,
    drawn: Numbers,
    seed: int,
) -> Significance:
    """Strict beyond the observed distance, as sacreBLEU counts; what rounding makes of ties goes into p_with_ties."""
    first, second = (float(finite_scores(each, each.statistics.sum(axis=0)[None])[0]) for each in (baseline, system))
    rounding = 1e-12 * (abs(first) + abs(second))
    return judge_draws(test, baseline, first, second, drawn, seed, above=0.0, rounding=rounding)


def judge_draws(
    test: Literal["paired bootstrap", "approximate randomization"],
    measurement: Measurement,
    baseline: float,
    system: float,
    drawn: Numbers,
    seed: int,
    *,
    above: float,
    rounding: float,
) -> Significance:
    """p = (1 + draws beyond the observed distance) / (1 + draws); a distance of nothing needs no other cause than luck.

    The one counts the observation itself, so that p is never 0 (Phipson & Smyth 2010). Equal distances, computed from
    different sums, differ by up to `rounding`; a draw or a distance counts for p from more than `above` on.
    """
    distance = abs(system - baseline)
    counts = np.count_nonzero(drawn > distance + above), np.count_nonzero(drawn >= distance - rounding)
    p, p_with_ties = (float((count + 1) / (len(drawn) + 1)) if distance > above else 1.0 for count in counts)
    return Significance(
        test=test,
        metric=measurement.name,
        better=measurement.better,
        difference=system - baseline,
        p=p,
        p_with_ties=p_with_ties,
        samples=len(drawn),
        seed=seed,
    )


def finite_scores(measurement: Measurement, sums: Numbers) -> Numbers:
    """The corpus score of each row of sums (M, K); a score that is not a number is refused."""
    values = measurement.values(sums)
    if not np.isfinite(values).all():
        raise ValueError(
            f"{measurement.name} is {values[~np.isfinite(values)][0]} for some of the {measurement.count} sentences, "
            "so no difference can be taken; find the sentence that has no finite score, or compare another metric"
        )
    return values


def coin_flips(trials: int, sentences: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    """`trials` rows of `sentences` coin flips, a few rows at a time, the same as if drawn at once."""
    generator = np.random.default_rng(seed)
    rows = max(1, _FLIPS_AT_ONCE // sentences // _FLIPS_IN_A_WORD) * _FLIPS_IN_A_WORD
    for start in range(0, trials, rows):
        yield generator.integers(2, size=(min(rows, trials - start), sentences), dtype=np.bool_)


def sign_test(first: int, second: int) -> float:
    """The two-sided exact p of `first` against `second` successes where either was as likely."""
    return min(1.0, 2 * _coin_tail(min(first, second), first + second))


def _coin_tail(heads: int, flips: int) -> float:
    """P(at most `heads` heads in `flips` flips) = Σ C(flips, i) / 2^flips for i up to `heads` ≤ `flips` / 2.

    Starts at the largest term and goes down by ratios until nothing is added any more (some √flips terms), so that
    neither huge binomials nor vanishing powers appear.
    """
    logarithm = math.lgamma(flips + 1) - math.lgamma(heads + 1) - math.lgamma(flips - heads + 1) - flips * math.log(2)
    term, total = 1.0, 1.0
    for below in range(heads, 0, -1):
        term *= below / (flips - below + 1)
        if total + term == total:
            break
        total += term
    return math.exp(logarithm) * total


def _rights(given: ArrayLike, place: str) -> NDArray[np.bool_]:
    values = np.asarray(given)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"{place} has shape {values.shape}; give one value, right or wrong, for each item")
    wrong = values[(values != 0) & (values != 1)]
    if wrong.size:
        raise ValueError(
            f"{place} holds {wrong[0]}; an item is right (1) or wrong (0): use a paired test for other scores"
        )
    return values.astype(np.bool_)


def _check_draws(what: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{what} ({count}) must be at least 1; 1000 or more make a p-value worth reading")


def written_p(p: float) -> str:
    """`= 0.0123`, or `< 0.0001`: to stand after a p."""
    return "< 0.0001" if p < 0.0001 else f"= {p:.4f}"
