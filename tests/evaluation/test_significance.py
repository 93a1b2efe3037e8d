"""Significance: sacreBLEU's own p-values, exact binomials, Welch's test, and systems that differ by chance or not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import sacrebleu
from pydantic import TypeAdapter
from sacrebleu.significance import PairedTest

from sightline.comparison.scoring import judge
from sightline.evaluation.bleu import bleu, chrf
from sightline.evaluation.error_rates import error_rate
from sightline.evaluation.measurement import Measurement, Numbers
from sightline.evaluation.metrics import measure
from sightline.evaluation.perplexity import measure_perplexity
from sightline.evaluation.significance import (
    Significance,
    approximate_randomization,
    check_comparable,
    mcnemar,
    paired_bootstrap,
    student_tail,
    welch_test,
)

WORDS = ["a", "the", "dog", "Dog", "runs", "over", "hill", "und", ".", ",", "42", "grün"]
PAIRED: list[Callable[[Measurement, Measurement], Significance]] = [paired_bootstrap, approximate_randomization]


def references(size: int) -> list[list[str]]:
    draw = random.Random(size)
    return [[" ".join(draw.choices(WORDS, k=draw.randint(4, 12)))] for _ in range(size)]


def output(expected: list[list[str]], right: float, seed: int) -> list[str]:
    """A system that has this share of the words right."""
    draw = random.Random(seed)
    return [
        " ".join(word if draw.random() < right else draw.choice(WORDS) for word in several[0].split())
        for several in expected
    ]


def sacrebleu_metric(name: str) -> sacrebleu.metrics.base.Metric:
    return {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF(), "ter": sacrebleu.TER(case_sensitive=True)}[name]


def word_errors(errors: Numbers, lengths: Numbers) -> Measurement:
    return Measurement(
        "WER", "lower", np.stack([errors, lengths], axis=1).astype(float), error_rate, {}, "references x"
    )


@pytest.mark.parametrize("right", [0.79, 0.72])  # nearly as good as the baseline, and worse
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_p_values_are_sacrebleus_own(
    name: Literal["bleu", "chrf", "ter"], many: int, right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    streams = [[several[0] for several in references(60)[shift:] + references(60)[:shift]] for shift in range(many)]
    expected = [list(several) for several in zip(*streams, strict=True)]
    baseline, system = output(expected, 0.8, seed=1), output(expected, right, seed=2)
    measured = measure(name, baseline, expected), measure(name, system, expected)
    for kind, ours in (
        ("bs", paired_bootstrap(*measured, samples=200)),
        ("ar", approximate_randomization(*measured, trials=200)),
    ):
        test = PairedTest(
            [("baseline", baseline), ("system", system)],
            {name: sacrebleu_metric(name)},
            streams,
            test_type=kind,
            n_samples=200,
            n_jobs=1,  # in this process: what is drawn does not depend on it
        )
        first, second = test()[1][ours.metric]
        assert not isinstance(first, str) and not isinstance(second, str)
        assert (ours.p, ours.difference) == (second.p_value, second.score - first.score)
        assert 1 / 201 <= ours.p < 1


def test_the_bootstrap_of_word_error_rate_equals_a_plain_loop() -> None:
    expected = references(40)
    baseline, system = (measure("wer", output(expected, 0.8, seed), expected) for seed in (1, 5))
    drawn = np.random.default_rng(7).choice(40, size=(300, 40))
    distances = [
        abs(
            100 * sum(system.statistics[i, 0] for i in row) / sum(system.statistics[i, 1] for i in row)
            - 100 * sum(baseline.statistics[i, 0] for i in row) / sum(baseline.statistics[i, 1] for i in row)
        )
        for row in drawn
    ]
    beyond = sum(distance - sum(distances) / 300 > abs(system.value - baseline.value) for distance in distances)
    result = paired_bootstrap(baseline, system, samples=300, seed=7)
    assert result.p == (beyond + 1) / 301
    assert 10 < beyond < 290


def test_the_randomization_of_word_error_rate_equals_a_plain_loop() -> None:
    expected = references(40)
    baseline, system = (measure("wer", output(expected, 0.8, seed), expected) for seed in (1, 5))
    errors = [measurement.statistics[:, 0].tolist() for measurement in (baseline, system)]
    observed = abs(sum(errors[0]) - sum(errors[1]))
    apart = [
        abs(sum(a - b if keep else b - a for keep, a, b in zip(row, *errors, strict=True)))
        for row in np.random.default_rng(7).integers(2, size=(300, 40), dtype=bool).tolist()
    ]
    result = approximate_randomization(baseline, system, trials=300, seed=7)
    assert result.p_with_ties == (sum(distance >= observed for distance in apart) + 1) / 301
    assert result.p_with_ties > (sum(distance > observed for distance in apart) + 1) / 301  # there are ties


def test_drawing_coin_flips_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = references(37)
    pair = measure("bleu", output(expected, 0.8, 1), expected), measure("bleu", output(expected, 0.77, 2), expected)
    whole = approximate_randomization(*pair, trials=500)
    for few in (37 * 50, 1):
        monkeypatch.setattr("sightline.evaluation.significance._FLIPS_AT_ONCE", few)
        assert approximate_randomization(*pair, trials=500) == whole
    assert 0.01 < whole.p < 0.99


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_scores_of_many_sums_are_sacrebleus_to_the_last_bit(name: Literal["bleu", "chrf", "ter"]) -> None:
    draw = np.random.default_rng(3)
    if name == "bleu":
        totals = -np.sort(-draw.integers(0, 40, (500, 4)))
        matches = draw.integers(0, totals + 1) * draw.integers(0, 2, (500, 4))
        sums = np.hstack([totals[:, :1], draw.integers(0, 50, (500, 1)), matches, totals])
    elif name == "chrf":
        sides = draw.integers(0, 40, (500, 6, 2)) * draw.integers(0, 3, (500, 6, 1)).clip(0, 1)
        matches = draw.integers(0, sides.min(axis=2) + 1)
        sums = np.concatenate([sides, matches[..., None]], axis=2).reshape(500, 18)
    else:
        sums = draw.integers(0, 9, (500, 2)) / 4  # with several references, lengths are averages
    metric = sacrebleu_metric(name)
    theirs = [metric._compute_score_from_stats(row).score for row in sums.tolist()]
    ours = {"bleu": bleu, "chrf": chrf, "ter": error_rate}[name](sums.astype(float))
    assert ours.tolist() == theirs
    assert len(set(theirs)) > 10 and 0 in theirs


@pytest.mark.parametrize(
    ("only_baseline", "only_system", "p"),
    [
        (0, 0, 1.0),
        (0, 1, 1.0),
        (0, 6, 2 * 1 / 64),
        (1, 9, 2 * (1 + 10) / 1024),
        (3, 9, 2 * (1 + 12 + 66 + 220) / 4096),
        (5, 5, 1.0),
    ],
)
def test_mcnemar_is_the_binomial_sum_and_symmetric(only_baseline: int, only_system: int, p: float) -> None:
    both = [True] * 7 + [False] * 3
    baseline = both + [True] * only_baseline + [False] * only_system
    system = both + [False] * only_baseline + [True] * only_system
    there, back = mcnemar(baseline, system), mcnemar(system, baseline)
    assert there.p == pytest.approx(p, rel=1e-12)
    assert (there.only_baseline_right, there.only_system_right) == (only_baseline, only_system)
    assert back.p == there.p and back.difference == -there.difference
    assert there.difference == pytest.approx(100 * (only_system - only_baseline) / len(baseline))


@pytest.mark.parametrize(("fewer", "more"), [(480, 520), (1500, 1650), (100_000, 100_500), (0, 5000)])
def test_mcnemar_holds_for_counts_whose_binomials_no_float_can(fewer: int, more: int) -> None:
    result = mcnemar([True] * fewer + [False] * more, [False] * fewer + [True] * more).p
    if fewer <= 1500:
        exact = 2 * sum(math.comb(fewer + more, i) for i in range(fewer + 1)) / 2 ** (fewer + more) if fewer else 0.0
    else:  # the normal curve, corrected for continuity, is exact to four digits here
        exact = math.erfc((more - fewer - 1) / math.sqrt(2 * (fewer + more)))
    assert result == pytest.approx(exact, rel=1e-9 if fewer <= 1500 else 1e-4)


@pytest.mark.parametrize("test", PAIRED)
def test_a_system_never_differs_from_itself(test: Callable[[Measurement, Measurement], Significance]) -> None:
    expected = references(20)
    outputs = output(expected, 0.8, seed=1)
    for name in ("bleu", "chrf", "ter", "exact", "wer", "cer"):
        result = test(measure(name, outputs, expected), measure(name, outputs, expected))
        assert (result.difference, result.p, result.significant) == (0, 1, False)
    nothing = measure("bleu", ["zzz"] * 20, expected), measure("bleu", ["zzz zzz"] * 20, expected)
    assert test(*nothing).p == 1  # other statistics, the same score: 0
    assert test(measure_perplexity([1.0, 2.0], [1, 2]), measure_perplexity([1.0, 2.0], [1, 2])).p == 1


@pytest.mark.parametrize("test", PAIRED)
def test_systems_that_are_right_equally_often_do_not_differ(
    test: Callable[[Measurement, Measurement], Significance],
) -> None:
    expected = [[str(number)] for number in range(20)]
    odd, even = ([str(number) if number % 2 == rest else "" for number in range(20)] for rest in (1, 0))
    result = test(measure("exact", odd, expected), measure("exact", even, expected))
    assert (result.p, result.p_with_ties, result.significant) == (1, 1, False)


@pytest.mark.parametrize("test", PAIRED)
def test_one_sentence_more_is_not_significant(test: Callable[[Measurement, Measurement], Significance]) -> None:
    expected = [[str(number)] for number in range(200)]
    system = [several[0] for several in expected]
    result = test(measure("exact", ["wrong", *system[1:]], expected), measure("exact", system, expected))
    assert result.difference == pytest.approx(0.5)
    assert not result.significant


def test_ties_are_seen_through_rounding_errors() -> None:
    nats = np.random.default_rng(0).random(50)
    lower = np.where(np.arange(50) == 7, nats / 2, nats)
    result = approximate_randomization(measure_perplexity(nats, [1] * 50), measure_perplexity(lower, [1] * 50))
    assert result.difference < 0
    assert result.p_with_ties == 1  # only one sentence differs, so swapping never brings the two closer


@pytest.mark.parametrize("test", PAIRED)
@pytest.mark.parametrize("name", ["bleu", "ter", "wer", "exact", "perplexity"])
def test_a_clearly_better_system_is_significant_whichever_way_is_up(
    name: Literal["bleu", "ter", "wer", "exact", "perplexity"],
    test: Callable[[Measurement, Measurement], Significance],
) -> None:
    expected = references(100)
    worse, better = (
        measure_perplexity([nats + 0.1 * (i % 7) for i in range(100)], [2] * 100)
        if name == "perplexity"
        else measure(name, output(expected, right, seed), expected)
        for right, seed, nats in ((0.7, 1, 3.0), (0.95, 2, 2.0))
    )
    gain, loss = test(worse, better), test(better, worse)
    assert gain.significant and loss.significant
    assert gain.p == loss.p < 0.05
    assert "(better)" in str(gain) and "(worse)" in str(loss)
    assert (gain.difference > 0) == (better.better == "higher") == (loss.difference < 0)


def test_equally_good_systems_are_rarely_called_different() -> None:
    draw = np.random.default_rng(11)
    lengths = draw.integers(4, 20, 50)
    actual, strict = [], []
    for seed in range(200):
        pair = [word_errors(draw.binomial(lengths, 0.2), lengths) for _ in range(2)]
        result = approximate_randomization(*pair, trials=199, seed=seed)
        actual.append(result.p_with_ties)
        strict.append(result.p)
    assert 0.01 <= np.mean(np.array(actual) < 0.05) <= 0.10  # 5% expected, standard error 1.5%
    assert 0.4 <= np.mean(np.array(actual) < 0.5) <= 0.6
    assert np.mean(strict) < np.mean(actual)  # sacreBLEU leaves ties out


def test_measurements_that_do_not_compare_are_refused_with_the_reason() -> None:
    expected = references(12)
    outputs = output(expected, 0.8, seed=1)
    plain = measure("bleu", outputs, expected)
    lowered = measure("bleu", outputs, expected, lowercase=True)
    with pytest.raises(ValueError, match="same metric, options and version") as refused:
        paired_bootstrap(plain, lowered)
    assert plain.signature in str(refused.value) and lowered.signature in str(refused.value)
    with pytest.raises(ValueError, match=r"WER measured as .* cannot be compared with CER"):
        approximate_randomization(measure("wer", outputs, expected), measure("cer", outputs, expected))
    with pytest.raises(ValueError, match=r"nrefs:1.*nrefs:2"):
        check_comparable(plain, measure("bleu", outputs, [several * 2 for several in expected]))
    with pytest.raises(ValueError, match="BLEU of 12 sentences cannot be compared with BLEU of 11"):
        check_comparable(plain, measure("bleu", outputs[1:], expected[1:]))
    with pytest.raises(ValueError, match="measured against different references"):
        check_comparable(plain, measure("bleu", outputs, expected[::-1]))
    two, other = ([(*several, second) for several, second in zip(expected, "ab" * 6, strict=True)] for _ in range(2))
    other[-1] = (*expected[-1], "c")  # a second reference of one sentence
    with pytest.raises(ValueError, match="measured against different references"):
        check_comparable(measure("bleu", outputs, two), measure("bleu", outputs, other))
    with pytest.raises(ValueError, match=r"different tokens.* perplexity with the same tokenizer"):
        check_comparable(measure_perplexity([1.0, 2.0], [1, 2]), measure_perplexity([1.0, 2.0], [2, 1]))
    check_comparable(plain, replace(plain, statistics=plain.statistics * 0))


def test_undefined_tests_are_refused_with_the_reason() -> None:
    expected = references(5)
    plain = measure("bleu", output(expected, 0.8, seed=1), expected)
    with pytest.raises(ValueError, match=r"samples \(0\) must be at least 1"):
        paired_bootstrap(plain, plain, samples=0)
    with pytest.raises(ValueError, match=r"trials \(0\) must be at least 1"):
        approximate_randomization(plain, plain, trials=0)
    for test in PAIRED:
        with pytest.raises(ValueError, match="perplexity is inf for some of the 2 sentences"):
            test(measure_perplexity([1e6, 1], [1, 1]), measure_perplexity([1, 1], [1, 1]))
    with pytest.raises(ValueError, match=r"baseline_right holds 0\.5"):
        mcnemar([0.5, 1], [1, 0])
    with pytest.raises(ValueError, match="baseline_right has 1 items and system_right 2"):
        mcnemar([1], [1, 0])
    with pytest.raises(ValueError, match=r"system_right has shape \(0,\)"):
        mcnemar([1], [])
    with pytest.raises(ValueError, match=r"system_right has shape \(1, 2\)"):
        mcnemar([[1, 0]], [[1, 0]])


def test_a_result_is_one_line_and_can_be_dumped() -> None:
    expected = [["a b"], ["c d"], ["e f"]]
    pair = measure("wer", ["a b", "c x", "e f"], expected), measure("wer", ["a b", "c d", "e f"], expected)
    result = approximate_randomization(*pair, trials=100, seed=3)
    assert str(result) == (
        "WER -16.67 (better), p = 0.0099, counting ties p = 1.0000: not significant "
        "(approximate randomization, 100 trials, seed 3)"
    )
    saved = TypeAdapter(Significance).dump_python(result)
    assert (saved["samples"], saved["significant"], saved["only_system_right"]) == (100, False, None)
    sure = mcnemar([False] * 30, [True] * 30, metric="exact")
    assert str(sure) == (
        "exact +100.00 (better), p < 0.0001: significant (McNemar, only baseline right 0, only system right 30)"
    )
    assert TypeAdapter(Significance).dump_python(sure)["significant"] is True


def system(quality: float, seed: int, sentences: int = 80, difficulty: int = 0) -> Measurement:
    """Word errors in sentences of ten words, which are hard or easy for every system alike."""
    hard = np.random.default_rng(difficulty).uniform(-0.2, 0.2, sentences)
    errors = np.random.default_rng(seed).binomial(10, np.clip(1 - quality + hard, 0, 1))
    statistics = np.stack([errors, np.full(sentences, 10)], axis=1).astype(float)
    return Measurement("WER", "lower", statistics, error_rate, {}, "references x")


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
    result = approximate_randomization(theirs, ours, trials=300)
    assert abs(result.difference) == pytest.approx(observed)
    assert result.p == (further + 1) / 301
    assert 0.005 < result.p < 0.9  # else it could hardly be wrong


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
    result = paired_bootstrap(theirs, ours, samples=300)
    assert result.p == (np.count_nonzero(distances - distances.mean() > observed + 1e-9) + 1) / 301
    assert 0.01 < result.p < 0.99


def test_runs_that_differ_in_one_sentence_are_as_far_apart_however_they_are_mixed() -> None:
    """Up to rounding: no draw counts as further, and all count as ties."""
    nats = np.random.default_rng(0).random(50)
    one, two = (measure_perplexity(each, [1] * 50) for each in (nats, np.where(np.arange(50) == 7, nats / 2, nats)))
    result = approximate_randomization([one] * 3, [two] * 3, trials=199)
    assert (result.p, result.p_with_ties) == (1 / 200, 1.0)


def test_systems_with_equal_means_have_p_one() -> None:
    one, two = system(0.7, 1), system(0.75, 2)
    result = judge([one, two], [two, one])
    assert (
        result.approximate_randomization.p,
        result.approximate_randomization.p_with_ties,
        result.paired_bootstrap.p,
    ) == (
        1.0,
        1.0,
        1.0,
    )
    assert result.seeds is not None and result.seeds.p == 1.0 and not result.significant


def test_runs_on_other_sentences_are_refused() -> None:
    with pytest.raises(ValueError, match="sentences cannot be compared"):
        approximate_randomization([system(0.7, 1), system(0.7, 2)], [system(0.7, 3, sentences=70)])
    for test in (approximate_randomization, paired_bootstrap):
        with pytest.raises(ValueError, match="measured against different references"):
            test([system(0.7, 1), replace(system(0.7, 2), against="references y")], [system(0.7, 3)])
        with pytest.raises(ValueError, match="measured against different references"):
            test([system(0.7, 1)], [system(0.7, 2), replace(system(0.7, 3), against="references y")])


def test_equally_good_recipes_are_seldom_called_different() -> None:
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
    result = judge([system(0.70, n) for n in (1, 2, 3)], [system(0.80, n) for n in (4, 5, 6)])
    assert result.significant and result.better and result.difference < 0


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
    result = welch_test([1.0, 2.0, 3.0], [4.0, 6.0, 8.0])
    assert result is not None
    assert result.t == pytest.approx(4 / math.sqrt(5 / 3))
    assert result.freedom == pytest.approx(50 / 17)
    assert result.p == pytest.approx(student_tail(result.t, result.freedom))
    assert 0.05 < result.p < 0.06


def test_a_single_run_takes_the_variance_of_the_other_side() -> None:
    result = welch_test([5.0], [1.0, 2.0, 3.0])
    assert result is not None
    assert (result.t, result.freedom) == (pytest.approx(-3 / math.sqrt(4 / 3)), 2.0)
    assert welch_test([5.0], [1.0]) is None


def test_runs_that_do_not_vary_at_all() -> None:
    same, apart = welch_test([1.0, 1.0], [1.0, 1.0]), welch_test([1.0, 1.0], [2.0, 2.0])
    assert same is not None and apart is not None
    assert (same.p, apart.p) == (1.0, 0.0)
    assert (same.t, apart.t, apart.freedom) == (0.0, math.inf, 2.0)
    worse = welch_test([2.0, 2.0], [1.0, 1.0])
    assert worse is not None and worse.t == -math.inf


def test_a_verdict_holds_the_system_against_the_baseline_and_not_the_reverse() -> None:
    baseline, better = [system(0.5, seed) for seed in (1, 2, 3)], [system(0.8, seed) for seed in (4, 5)]
    result = judge(baseline, better)
    assert result.seeds is not None and result.difference < 0 and result.better
    assert result.seeds == welch_test([each.value for each in baseline], [each.value for each in better])
    assert result.seeds.t < 0 and (result.seeds.baseline_runs, result.seeds.system_runs) == (3, 2)
