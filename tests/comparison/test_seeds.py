"""Significance with several seeds: that of single runs where there is one, and honest about both kinds of luck."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import TypeAdapter

from sightline.comparison.scoring import judge
from sightline.evaluation.error_rates import error_rate
from sightline.evaluation.measurement import Measurement
from sightline.evaluation.perplexity import measure_perplexity
from sightline.evaluation.significance import (
    WelchTest,
    approximate_randomization,
    paired_bootstrap,
    student_tail,
    welch_test,
)


def system(quality: float, seed: int, sentences: int = 80, difficulty: int = 0) -> Measurement:
    """Word errors in sentences of ten words, which are hard or easy for every system alike."""
    hard = np.random.default_rng(difficulty).uniform(-0.2, 0.2, sentences)
    errors = np.random.default_rng(seed).binomial(10, np.clip(1 - quality + hard, 0, 1))
    statistics = np.stack([errors, np.full(sentences, 10)], axis=1).astype(float)
    return Measurement("WER", "lower", statistics, error_rate, {}, "references x")


def test_one_run_each_is_the_test_of_single_runs() -> None:
    one, two = system(0.7, 1), system(0.74, 2)
    assert approximate_randomization([one], [two]) == approximate_randomization(one, two)
    assert paired_bootstrap([one], [two]) == paired_bootstrap(one, two)


def test_the_same_run_twice_proves_no_more_than_once() -> None:
    """Sentences are swapped in all runs at once, so repeating a run adds nothing."""
    one, two = system(0.7, 1), system(0.73, 2)
    single, double = (
        approximate_randomization(one, two, trials=999),
        approximate_randomization([one] * 2, [two] * 3, trials=999),
    )
    assert 0.01 < single.p < 0.9  # else it could not differ
    assert (double.p, double.p_with_ties) == (single.p, single.p_with_ties)
    assert double.difference == pytest.approx(single.difference)
    assert paired_bootstrap([one] * 2, [two] * 2, samples=500).p == paired_bootstrap(one, two, samples=500).p


@pytest.mark.parametrize(("first", "second"), [((1, 2), (3, 4, 5)), ((1,), (3, 4, 5)), ((1, 2), (3,))])
def test_it_is_the_distance_between_means_of_runs_mixed_sentence_by_sentence(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """The same by hand: swap the rows of every pair of runs by the same coins, score, average, compare."""
    ours, theirs = [system(0.7, n) for n in first], [system(0.73, n) for n in second]
    flips = np.random.default_rng(12345).integers(2, size=(300, 80), dtype=np.bool_)

    def distance(swapped: np.ndarray) -> float:
        apart = []
        for one in theirs:
            for two in ours:
                first = np.where(swapped[:, None], one.statistics, two.statistics).sum(axis=0)
                second = np.where(swapped[:, None], two.statistics, one.statistics).sum(axis=0)
                apart.append(float(error_rate(first[None])[0] - error_rate(second[None])[0]))
        return abs(float(np.mean(apart)))

    observed = distance(np.ones(80, dtype=np.bool_))
    further = sum(distance(row) > observed + 1e-9 for row in flips)
    found = approximate_randomization(theirs, ours, trials=300)
    assert abs(found.difference) == pytest.approx(observed)
    assert found.p == (further + 1) / 301
    assert 0.005 < found.p < 0.9  # else it could hardly be wrong


@pytest.mark.parametrize(("first", "second"), [((1, 2), (3, 4, 5)), ((1,), (3, 4)), ((1, 2), (3,))])
def test_the_bootstrap_is_of_means_over_runs_on_the_same_sentences(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """The same by hand: draw sentences, score every run on them, average, compare."""
    theirs, ours = [system(0.72, n) for n in first], [system(0.73, n) for n in second]
    drawn = np.random.default_rng(12345).choice(80, size=(300, 80))

    def distance(rows: np.ndarray) -> float:
        scores = [[error_rate(each.statistics[rows].sum(axis=0)[None])[0] for each in side] for side in (theirs, ours)]
        return abs(float(np.mean(scores[1]) - np.mean(scores[0])))

    observed, distances = distance(np.arange(80)), np.array([distance(rows) for rows in drawn])
    found = paired_bootstrap(theirs, ours, samples=300)
    assert found.p == (np.count_nonzero(distances - distances.mean() > observed + 1e-9) + 1) / 301
    assert 0.01 < found.p < 0.99


def test_the_order_of_runs_and_of_systems_does_not_matter() -> None:
    ours, theirs = [system(0.7, n) for n in (1, 2, 3)], [system(0.73, n) for n in (4, 5)]
    there, back = (
        approximate_randomization(theirs, ours, trials=500),
        approximate_randomization(ours, theirs[::-1], trials=500),
    )
    assert there.p == back.p and there.difference == pytest.approx(-back.difference)


def test_runs_that_differ_in_one_sentence_are_as_far_apart_however_they_are_mixed() -> None:
    """Up to rounding: no draw counts as further, and all count as ties."""
    nats = np.random.default_rng(0).random(50)
    one, two = (measure_perplexity(each, [1] * 50) for each in (nats, np.where(np.arange(50) == 7, nats / 2, nats)))
    found = approximate_randomization([one] * 3, [two] * 3, trials=199)
    assert (found.p, found.p_with_ties) == (1 / 200, 1.0)


def test_systems_with_equal_means_have_p_one() -> None:
    one, two = system(0.7, 1), system(0.75, 2)
    found = judge([one, two], [two, one])
    assert (
        found.approximate_randomization.p,
        found.approximate_randomization.p_with_ties,
        found.paired_bootstrap.p,
    ) == (
        1.0,
        1.0,
        1.0,
    )
    assert found.seeds is not None and found.seeds.p == 1.0 and not found.significant


def test_runs_on_other_sentences_are_refused() -> None:
    with pytest.raises(ValueError, match="sentences cannot be compared"):
        approximate_randomization([system(0.7, 1), system(0.7, 2)], [system(0.7, 3, sentences=70)])
    for test in (approximate_randomization, paired_bootstrap):
        with pytest.raises(ValueError, match="measured against different references"):
            test([system(0.7, 1), replace(system(0.7, 2), against="references y")], [system(0.7, 3)])
        with pytest.raises(ValueError, match="measured against different references"):
            test([system(0.7, 1)], [system(0.7, 2), replace(system(0.7, 3), against="references y")])


def test_equally_good_recipes_with_lucky_seeds_are_seldom_called_different() -> None:
    """Seeds that move quality by two points: the sentences alone call such recipes different far too often."""
    draw = np.random.default_rng(0)
    by_sentences = by_both = 0
    repeats = 60
    for repeat in range(repeats):
        qualities = 0.7 + 0.02 * draw.standard_normal((2, 3))
        sides = [
            [system(quality, 100 * repeat + 10 * side + n, 400, repeat) for n, quality in enumerate(qualities[side])]
            for side in range(2)
        ]
        first = approximate_randomization(sides[0], sides[1], trials=200)
        second = welch_test([each.value for each in sides[0]], [each.value for each in sides[1]])
        assert second is not None
        by_sentences += first.significant
        by_both += first.significant and second.significant
    assert by_sentences > 0.25 * repeats
    assert by_both <= 0.1 * repeats  # 5%, and room for chance


def test_a_real_difference_is_found_with_three_seeds() -> None:
    found = judge([system(0.70, n) for n in (1, 2, 3)], [system(0.80, n) for n in (4, 5, 6)])
    assert found.significant and found.better and found.difference < 0


# --- Welch's t-test ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [
        (12.706205, 1, 0.05),
        (4.302653, 2, 0.05),
        (2.776445, 4, 0.05),
        (2.570582, 5, 0.05),
        (4.604095, 4, 0.01),
        (1.959964, 1e7, 0.05),
        (0.0, 3, 1.0),
        (math.inf, 3, 0.0),
    ],
)
def test_students_distribution_has_its_tabulated_quantiles(t: float, freedom: float, p: float) -> None:
    assert student_tail(t, freedom) == pytest.approx(p, abs=2e-7)
    assert student_tail(-t, freedom) == student_tail(t, freedom)


@pytest.mark.parametrize("t", [1e-6, 0.1, 0.7, 1.0, 3.0, 50.0, 1e4])
def test_students_distribution_has_its_closed_forms(t: float) -> None:
    assert student_tail(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-9)  # Cauchy's
    assert student_tail(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6)


def test_welchs_test_of_a_worked_example() -> None:
    """Variances 1 and 4, three runs each: t = 4 / sqrt(5/3), ν = (5/3)² / ((1/9 + 16/9) / 2) = 50/17."""
    found = welch_test([1.0, 2.0, 3.0], [4.0, 6.0, 8.0])
    assert found is not None
    assert found.t == pytest.approx(4 / math.sqrt(5 / 3))
    assert found.freedom == pytest.approx(50 / 17)
    assert found.p == pytest.approx(student_tail(found.t, found.freedom))
    assert 0.05 < found.p < 0.06


def test_a_single_run_is_taken_to_vary_as_the_others_do() -> None:
    found = welch_test([5.0], [1.0, 2.0, 3.0])
    assert found is not None
    assert (found.t, found.freedom) == (pytest.approx(-3 / math.sqrt(4 / 3)), 2.0)
    assert welch_test([5.0], [1.0]) is None


def test_runs_that_do_not_vary_at_all() -> None:
    same, apart = welch_test([1.0, 1.0], [1.0, 1.0]), welch_test([1.0, 1.0], [2.0, 2.0])
    assert same is not None and apart is not None
    assert (same.p, apart.p) == (1.0, 0.0)
    assert (same.t, apart.t, apart.freedom) == (0.0, math.inf, 2.0)
    worse = welch_test([2.0, 2.0], [1.0, 1.0])
    assert worse is not None and worse.t == -math.inf


def test_five_percent_by_the_seeds_is_not_below_the_level() -> None:
    assert not WelchTest(2.0, 4.0, 0.05, 3, 3).significant
    found = WelchTest(3.0, 4.0, np.nextafter(0.05, 0.0), 3, 2)
    assert found.significant
    assert TypeAdapter(WelchTest).dump_python(found) == {
        "test": "Welch's t",
        "t": 3.0,
        "freedom": 4.0,
        "p": found.p,
        "baseline_runs": 3,
        "system_runs": 2,
        "significant": True,
    }


def test_a_verdict_holds_the_system_against_the_baseline_and_not_the_reverse() -> None:
    baseline, better = [system(0.5, seed) for seed in (1, 2, 3)], [system(0.8, seed) for seed in (4, 5)]
    found = judge(baseline, better)
    assert found.seeds is not None and found.difference < 0 and found.better
    assert found.seeds == welch_test([each.value for each in baseline], [each.value for each in better])
    assert found.seeds.t < 0 and (found.seeds.baseline_runs, found.seeds.system_runs) == (3, 2)
