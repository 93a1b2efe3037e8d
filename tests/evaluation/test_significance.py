"""Significance: sacreBLEU's own p-values, the exact binomial, and systems that differ by luck or not at all."""

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
)

WORDS = ["a", "the", "dog", "Dog", "runs", "over", "hill", "und", ".", ",", "42", "grün"]
PAIRED: list[Callable[[Measurement, Measurement], Significance]] = [paired_bootstrap, approximate_randomization]


def references(size: int) -> list[list[str]]:
    draw = random.Random(size)
    return [[" ".join(draw.choices(WORDS, k=draw.randint(4, 12)))] for _ in range(size)]


def output(wanted: list[list[str]], right: float, seed: int) -> list[str]:
    """A system that has this share of the words right."""
    draw = random.Random(seed)
    return [
        " ".join(word if draw.random() < right else draw.choice(WORDS) for word in several[0].split())
        for several in wanted
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
    wanted = [list(several) for several in zip(*streams, strict=True)]
    baseline, system = output(wanted, 0.8, seed=1), output(wanted, right, seed=2)
    measured = measure(name, baseline, wanted), measure(name, system, wanted)
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


def test_the_bootstrap_of_word_error_rate_is_what_a_plain_loop_finds() -> None:
    wanted = references(40)
    baseline, system = (measure("wer", output(wanted, 0.8, seed), wanted) for seed in (1, 5))
    drawn = np.random.default_rng(7).choice(40, size=(300, 40))
    distances = [
        abs(
            100 * sum(system.statistics[i, 0] for i in row) / sum(system.statistics[i, 1] for i in row)
            - 100 * sum(baseline.statistics[i, 0] for i in row) / sum(baseline.statistics[i, 1] for i in row)
        )
        for row in drawn
    ]
    beyond = sum(distance - sum(distances) / 300 > abs(system.value - baseline.value) for distance in distances)
    found = paired_bootstrap(baseline, system, samples=300, seed=7)
    assert found.p == (beyond + 1) / 301
    assert 10 < beyond < 290


def test_the_randomization_of_word_error_rate_is_what_a_plain_loop_finds() -> None:
    wanted = references(40)
    baseline, system = (measure("wer", output(wanted, 0.8, seed), wanted) for seed in (1, 5))
    errors = [measurement.statistics[:, 0].tolist() for measurement in (baseline, system)]
    observed = abs(sum(errors[0]) - sum(errors[1]))
    apart = [
        abs(sum(a - b if keep else b - a for keep, a, b in zip(row, *errors, strict=True)))
        for row in np.random.default_rng(7).integers(2, size=(300, 40), dtype=bool).tolist()
    ]
    found = approximate_randomization(baseline, system, trials=300, seed=7)
    assert found.p_with_ties == (sum(distance >= observed for distance in apart) + 1) / 301
    assert found.p_with_ties > (sum(distance > observed for distance in apart) + 1) / 301  # there are ties


def test_drawing_coin_flips_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = references(37)
    pair = measure("bleu", output(wanted, 0.8, 1), wanted), measure("bleu", output(wanted, 0.77, 2), wanted)
    whole = approximate_randomization(*pair, trials=500)
    for few in (37 * 50, 1):
        monkeypatch.setattr("sightline.evaluation.significance._FLIPS_AT_ONCE", few)
        assert approximate_randomization(*pair, trials=500) == whole
    assert 0.01 < whole.p < 0.99


def test_as_many_are_drawn_as_sacrebleu_draws_and_with_its_seed() -> None:
    pair = word_errors(np.array([1, 0]), np.array([3, 3])), word_errors(np.array([0, 0]), np.array([3, 3]))
    assert [(found.samples, found.seed) for found in (test(*pair) for test in PAIRED)] == [
        (1000, 12345),
        (10000, 12345),
    ]


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


def test_a_measurement_has_the_value_and_signature_of_its_score() -> None:
    wanted = references(10)
    measurement = measure("ter", output(wanted, 0.7, 1), wanted, lowercase=True)
    score = measurement.score(bootstrap=0)
    assert (measurement.value, measurement.signature, measurement.count) == (score.value, score.signature, 10)
    assert "bs:" not in measurement.signature and "bs:50|seed:3" in measurement.score(bootstrap=50, seed=3).signature


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
    found = mcnemar([True] * fewer + [False] * more, [False] * fewer + [True] * more).p
    if fewer <= 1500:
        exact = 2 * sum(math.comb(fewer + more, i) for i in range(fewer + 1)) / 2 ** (fewer + more) if fewer else 0.0
    else:  # the normal curve, corrected for continuity, is exact to four digits here
        exact = math.erfc((more - fewer - 1) / math.sqrt(2 * (fewer + more)))
    assert found == pytest.approx(exact, rel=1e-9 if fewer <= 1500 else 1e-4)


@pytest.mark.parametrize("test", PAIRED)
def test_a_system_never_differs_from_itself(test: Callable[[Measurement, Measurement], Significance]) -> None:
    wanted = references(20)
    outputs = output(wanted, 0.8, seed=1)
    for name in ("bleu", "chrf", "ter", "exact", "wer", "cer"):
        result = test(measure(name, outputs, wanted), measure(name, outputs, wanted))
        assert (result.difference, result.p, result.significant) == (0, 1, False)
    nothing = measure("bleu", ["zzz"] * 20, wanted), measure("bleu", ["zzz zzz"] * 20, wanted)
    assert test(*nothing).p == 1  # other statistics, the same score: 0
    assert test(measure_perplexity([1.0, 2.0], [1, 2]), measure_perplexity([1.0, 2.0], [1, 2])).p == 1


@pytest.mark.parametrize("test", PAIRED)
def test_systems_that_are_right_equally_often_do_not_differ(
    test: Callable[[Measurement, Measurement], Significance],
) -> None:
    wanted = [[str(number)] for number in range(20)]
    odd, even = ([str(number) if number % 2 == rest else "" for number in range(20)] for rest in (1, 0))
    result = test(measure("exact", odd, wanted), measure("exact", even, wanted))
    assert (result.p, result.p_with_ties, result.significant) == (1, 1, False)


@pytest.mark.parametrize("test", PAIRED)
def test_one_sentence_more_is_not_significant(test: Callable[[Measurement, Measurement], Significance]) -> None:
    wanted = [[str(number)] for number in range(200)]
    system = [several[0] for several in wanted]
    result = test(measure("exact", ["wrong", *system[1:]], wanted), measure("exact", system, wanted))
    assert result.difference == pytest.approx(0.5)
    assert not result.significant


def test_ties_are_seen_through_rounding_errors() -> None:
    nats = np.random.default_rng(0).random(50)
    lower = np.where(np.arange(50) == 7, nats / 2, nats)
    result = approximate_randomization(measure_perplexity(nats, [1] * 50), measure_perplexity(lower, [1] * 50))
    assert result.difference < 0
    assert result.p_with_ties == 1  # only one sentence differs, so swapping never brings the two closer


def test_where_nothing_ties_ties_change_nothing() -> None:
    draw = np.random.default_rng(0)
    one, two = (measure_perplexity(draw.random(40), [1] * 40) for _ in range(2))
    result = approximate_randomization(one, two, trials=2000)
    assert 0.05 < result.p == result.p_with_ties < 0.95


@pytest.mark.parametrize("test", PAIRED)
@pytest.mark.parametrize("name", ["bleu", "ter", "wer", "exact", "perplexity"])
def test_a_clearly_better_system_is_significant_whichever_way_is_up(
    name: Literal["bleu", "ter", "wer", "exact", "perplexity"],
    test: Callable[[Measurement, Measurement], Significance],
) -> None:
    wanted = references(100)
    worse, better = (
        measure_perplexity([nats + 0.1 * (i % 7) for i in range(100)], [2] * 100)
        if name == "perplexity"
        else measure(name, output(wanted, right, seed), wanted)
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
    found, strict = [], []
    for seed in range(200):
        pair = [word_errors(draw.binomial(lengths, 0.2), lengths) for _ in range(2)]
        result = approximate_randomization(*pair, trials=199, seed=seed)
        found.append(result.p_with_ties)
        strict.append(result.p)
    assert 0.01 <= np.mean(np.array(found) < 0.05) <= 0.10  # 5% expected, standard error 1.5%
    assert 0.4 <= np.mean(np.array(found) < 0.5) <= 0.6
    assert np.mean(strict) < np.mean(found)  # sacreBLEU leaves ties out


def test_measurements_that_do_not_compare_are_refused_with_the_reason() -> None:
    wanted = references(12)
    outputs = output(wanted, 0.8, seed=1)
    plain = measure("bleu", outputs, wanted)
    lowered = measure("bleu", outputs, wanted, lowercase=True)
    with pytest.raises(ValueError, match="same metric, options and version") as refused:
        paired_bootstrap(plain, lowered)
    assert plain.signature in str(refused.value) and lowered.signature in str(refused.value)
    with pytest.raises(ValueError, match=r"WER measured as .* cannot be compared with CER"):
        approximate_randomization(measure("wer", outputs, wanted), measure("cer", outputs, wanted))
    with pytest.raises(ValueError, match=r"nrefs:1.*nrefs:2"):
        check_comparable(plain, measure("bleu", outputs, [several * 2 for several in wanted]))
    with pytest.raises(ValueError, match="BLEU of 12 sentences cannot be compared with BLEU of 11"):
        check_comparable(plain, measure("bleu", outputs[1:], wanted[1:]))
    with pytest.raises(ValueError, match="measured against different references"):
        check_comparable(plain, measure("bleu", outputs, wanted[::-1]))
    two, other = ([(*several, second) for several, second in zip(wanted, "ab" * 6, strict=True)] for _ in range(2))
    other[-1] = (*wanted[-1], "c")  # a second reference of one sentence
    with pytest.raises(ValueError, match="measured against different references"):
        check_comparable(measure("bleu", outputs, two), measure("bleu", outputs, other))
    with pytest.raises(ValueError, match=r"different tokens.* perplexity with the same tokenizer"):
        check_comparable(measure_perplexity([1.0, 2.0], [1, 2]), measure_perplexity([1.0, 2.0], [2, 1]))
    check_comparable(plain, replace(plain, statistics=plain.statistics * 0))


def test_what_has_no_p_value_is_refused_with_the_reason() -> None:
    wanted = references(5)
    plain = measure("bleu", output(wanted, 0.8, seed=1), wanted)
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


def test_five_percent_is_not_below_the_level_and_a_little_less_is() -> None:
    drawn = Significance("paired bootstrap", "BLEU", "higher", 1.0, p=0.0, p_with_ties=0.05, samples=19, seed=1)
    assert not drawn.significant
    assert replace(drawn, p_with_ties=np.nextafter(0.05, 0.0)).significant


def test_a_difference_too_small_for_two_digits_has_its_direction_still() -> None:
    small = Significance("paired bootstrap", "BLEU", "higher", 0.001, p=0.0001, p_with_ties=0.0001, samples=9, seed=1)
    assert str(small).startswith("BLEU +0.00 (better), p = 0.0001: significant")
    assert "(worse)" in str(replace(small, better="lower"))
    assert "(equal)" in str(replace(small, difference=0.0))
    assert "counting ties" not in str(replace(small, p=0.01, p_with_ties=0.01001))  # the same to four digits


def test_a_result_is_one_line_and_can_be_dumped() -> None:
    wanted = [["a b"], ["c d"], ["e f"]]
    pair = measure("wer", ["a b", "c x", "e f"], wanted), measure("wer", ["a b", "c d", "e f"], wanted)
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
