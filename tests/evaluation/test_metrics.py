"""Metrics: sacreBLEU's and jiwer's numbers, intervals that can be trusted, refusals that explain themselves."""

from __future__ import annotations

import json
import math
import random
from typing import Literal

import jiwer
import numpy as np
import pytest
import sacrebleu

from sightline.evaluation.masked_lm import DenoisingScores, measure_denoising
from sightline.evaluation.measurement import MetricScore, resampled_sums, wilson
from sightline.evaluation.metrics import METRICS, check_output_options, needs_outputs, score
from sightline.evaluation.perplexity import measure_bits_per_character, measure_perplexity
from sightline.recipe.loading import load_recipe

WORDS = ["a", "the", "dog", "Dog", "runs", "over", "hill", "und", ".", ",", "42", "grün"]


def corpus(size: int, seed: int = 0) -> tuple[list[str], list[list[str]]]:
    draw = random.Random(seed)
    references = [[" ".join(draw.choices(WORDS, k=draw.randint(4, 12)))] for _ in range(size)]
    hypotheses = [
        " ".join(word if draw.random() < 0.8 else draw.choice(WORDS) for word in several[0].split())
        for several in references
    ]
    return hypotheses, references


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_value_interval_and_signature_are_sacrebleus_own(name: Literal["bleu", "chrf", "ter"], lowercase: bool) -> None:
    hypotheses, references = corpus(60)
    ours = score(name, hypotheses, references, lowercase=lowercase, bootstrap=200)
    metric = {
        "bleu": sacrebleu.BLEU(lowercase=lowercase),
        "chrf": sacrebleu.CHRF(lowercase=lowercase),
        "ter": sacrebleu.TER(case_sensitive=not lowercase),
    }[name]
    theirs = metric.corpus_score(hypotheses, [[several[0] for several in references]], n_bootstrap=200)
    assert ours.value == theirs.score
    assert (ours.high - ours.low) / 2 == pytest.approx(theirs._ci, abs=1e-4)  # sacreBLEU adds up in float32
    assert (ours.signature, ours.detail) == (metric.get_signature().format(), theirs._verbose)
    assert ours.low <= ours.value <= ours.high


def test_a_variable_number_of_references_is_scored_as_sacrebleu_does() -> None:
    hypotheses = ["the dog runs", "over the hill"]
    ours = score("bleu", hypotheses, [["a dog runs", "the dog runs"], ["over a hill"]], bootstrap=0)
    metric = sacrebleu.BLEU()
    theirs = metric.corpus_score(hypotheses, [["a dog runs", "over a hill"], ["the dog runs", None]])  # type: ignore[list-item]
    assert (ours.value, ours.signature) == (theirs.score, metric.get_signature().format())
    assert "nrefs:var" in ours.signature


def test_outputs_that_end_in_a_lone_stop_are_scored_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert score("bleu", ["a dog runs ."] * 101, [["a dog runs ."]] * 101, bootstrap=0).value == pytest.approx(100)
    assert not caplog.records


def test_an_empty_output_has_a_chrf_of_zero_without_a_warning() -> None:
    with np.errstate(all="raise"):
        assert score("chrf", [""], [["a dog"]], bootstrap=0).value == 0


def test_error_rates_are_jiwers() -> None:
    hypotheses, references = corpus(50, seed=1)
    flat = [several[0] for several in references]
    assert score("wer", hypotheses, references, bootstrap=0).value == pytest.approx(100 * jiwer.wer(flat, hypotheses))
    assert score("cer", hypotheses, references, bootstrap=0).value == pytest.approx(100 * jiwer.cer(flat, hypotheses))


@pytest.mark.parametrize(
    ("hypothesis", "references", "detail"),
    [
        ("a b c d", ["a", "a b c d v w x y"], "4 errors in 8 words"),  # the lower rate, though more errors than 3
        ("a b", ["a b x y", "a x"], "1 error in 2 words"),  # of equal rates the one with fewer errors
        ("a", ["x y", ""], "1 error in 0 words"),  # an empty one counts as one word
    ],
)
def test_nearest_is_the_lowest_rate(hypothesis: str, references: list[str], detail: str) -> None:
    assert score("wer", [hypothesis], [references], bootstrap=0).detail == detail


@pytest.mark.parametrize(("hypothesis", "reference", "rate"), [("", "a b", 100), ("a b", "", 100), ("", "", 0)])
def test_empty_texts_have_an_error_rate(hypothesis: str, reference: str, rate: float) -> None:
    for name in ("wer", "cer"):
        assert score(name, [hypothesis], [[reference]], bootstrap=10).value == rate


def test_any_reference_counts_for_exact_match() -> None:
    result = score("exact", ["a ", "B", "c"], [["x", "a"], ["b"], ["d"]])
    assert result.value == pytest.approx(100 / 3)
    assert result.signature.startswith("nrefs:var|case:mixed|spaces:strip|ci:wilson|version:sightline-")
    folded = score("exact", ["B", "c "], [["b"], ["C"]], lowercase=True)
    assert folded.value == 100 and "|case:lc|" in folded.signature


def test_the_interval_of_a_perfect_exact_match_still_has_a_width() -> None:
    result = score("exact", ["a"] * 1000, [["a"]] * 1000)
    assert str(result) == "exact 100.00 [99.62, 100.00]"


@pytest.mark.parametrize("count", [1, 7, 60, 1000])
def test_wilson_holds_none_and_all_exactly(count: int) -> None:
    assert wilson(0, count)[0] == 0.0
    assert wilson(count, count)[1] == 1.0


def test_wilson_agrees_with_a_textbook() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I


def test_perplexity_is_the_exponential_of_the_mean_over_tokens() -> None:
    result = measure_perplexity([2.0, 6.0], [1, 3]).score()
    assert result.value == pytest.approx(math.exp(2))
    assert [result.low, result.high] == pytest.approx([math.exp(2)] * 2)
    with np.errstate(over="raise"):
        assert measure_perplexity([1e6], [1]).value == math.inf


def test_bits_per_character_are_of_one_text_and_have_four_digits() -> None:
    first, other = (measure_bits_per_character([3 * math.log(2)], [2], text=text) for text in ("ab", "cd"))
    assert first.against != other.against
    assert first.against == measure_bits_per_character([1.0], [2], text="ab").against
    assert str(first.score(bootstrap=0)) == "bits/char 1.5000"


def test_drawing_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = np.random.default_rng(0).random((7, 3))
    whole = resampled_sums(statistics, 50, seed=3)
    monkeypatch.setattr("sightline.evaluation.measurement._INDICES_AT_ONCE", 21)
    np.testing.assert_array_equal(resampled_sums(statistics, 50, seed=3), whole)
    drawn = np.random.default_rng(3).choice(7, size=(50, 7))
    np.testing.assert_allclose(whole, statistics[drawn].sum(axis=1))


def test_no_bootstrap_means_no_interval_and_valid_json() -> None:
    for name in ("bleu", "exact", "wer"):
        result = score(name, ["a b"], [["a b"]], bootstrap=0)
        assert math.isnan(result.low)
        assert "[" not in str(result)
        assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["low"] is None
        assert "bs:" not in result.signature


def test_every_metric_has_the_right_direction() -> None:
    masked = load_recipe("pretraining/bert")
    of_losses = {
        "perplexity": measure_perplexity([1.0], [1]),
        "bits-per-character": measure_bits_per_character([1.0], [1]),
        "masked-accuracy": measure_denoising("masked-accuracy", DenoisingScores(*np.ones((3, 1))), masked),
    }
    for name, metric in METRICS.items():
        result = score(name, ["a b"], [["a b"]]) if "outputs" in metric.needs else of_losses[name].score()
        assert (result.better == "higher", result.name) == (metric.higher_is_better, metric.name)


def test_invalid_inputs_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="2 outputs and references for 1"):
        score("bleu", ["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="1 output and references for 2"):
        score("bleu", ["a"], [["a"], ["b"]])
    with pytest.raises(ValueError, match="there are no outputs, so there is no BLEU"):
        score("bleu", [], [])
    with pytest.raises(ValueError, match="output 2 has no reference"):
        score("bleu", ["a", "b"], [["a"], []])
    with pytest.raises(TypeError, match="references of output 1 are a text"):
        score("bleu", ["a"], ["a"])
    for name, call in (("perplexity", "measure_perplexity"), ("masked-accuracy", "measure_denoising")):
        with pytest.raises(ValueError, match=f"computed from log-probabilities, not texts; call {call} with them"):
            score(name, ["a"], [["a"]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no metric 'blue'; choose from bleu, chrf"):
        score("blue", ["a"], [["a"]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one token in each"):
        measure_perplexity([1.0], [0])
    with pytest.raises(ValueError, match="needs at least one sentence"):
        measure_perplexity([], [])
    for nll, tokens in (([1.0, 2.0], [1]), ([[1.0]], [[1]])):
        with pytest.raises(ValueError, match="must be one number per sentence each"):
            measure_perplexity(nll, tokens)
    with pytest.raises(ValueError, match=r"bootstrap \(1\) must be at least 2"):
        score("bleu", ["a"], [["a"]], bootstrap=1)


def test_options_about_outputs_are_refused_if_no_metric_needs_outputs() -> None:
    assert needs_outputs(["perplexity", "bleu"]) and not needs_outputs(["perplexity", "bits-per-character"])
    check_output_options(["perplexity", "bleu"], {"--beam": 4})
    check_output_options(["perplexity"], {"--beam": None})
    with pytest.raises(ValueError, match="--lowercase is about outputs, and perplexity uses none"):
        check_output_options(["perplexity"], {"--beam": None, "--lowercase": False})


def test_a_resample_with_an_infinite_row_has_an_infinite_sum() -> None:
    rows = np.array([[1.0, 2.0], [math.inf, 1.0], [3.0, 1.0]])
    sums = resampled_sums(rows, 200, 1)
    finite = resampled_sums(np.where(np.isinf(rows), 1e9, rows), 200, 1)
    drawn = finite[:, 0] >= 1e9
    assert 0 < drawn.sum() < 200
    np.testing.assert_array_equal(np.isinf(sums), np.stack([drawn, np.zeros(200, bool)], axis=1))
    np.testing.assert_allclose(sums[~drawn], finite[~drawn])


def test_an_infinite_score_is_written_as_a_word_and_read_back() -> None:
    score = measure_perplexity([math.inf, 2.0], [2, 1]).score(bootstrap=20)
    assert score.value == math.inf and str(score).startswith("perplexity inf")
    plain = json.loads(json.dumps(score.to_dict(), allow_nan=False))
    assert MetricScore(**plain, digits=2).value == math.inf
