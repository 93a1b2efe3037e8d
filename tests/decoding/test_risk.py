"""Minimum Bayes risk against a double loop over sacreBLEU's sentence scores."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from sightline.decoding.mbr import UTILITIES, least_risk
from sightline.decoding.request import Hypothesis
from sightline.recipe import Decoding
from sightline.tasks.base import as_predictions

CHRF_UTILITY = partial(UTILITIES["chrf"], section=None)
SCORERS: dict[str, Any] = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}
TEXTS = [
    "The cat sat on the mat.",
    "The cat sat on a mat.",
    "the cat is on the mat , sitting",
    "Dogs, cats and (other) animals: 3.5% of all!",
    "a",
    "",
    "The cat sat on the mat.",
    "the the the the the",
    "die Katze saß auf der Matte",
]
LINES = st.lists(st.text(alphabet="ab c.,é", max_size=12), min_size=1, max_size=7)


def pairwise(texts: list[str], utility: str) -> np.ndarray:
    score = SCORERS[utility].sentence_score
    return np.array([[score(ours, [theirs]).score for theirs in texts] for ours in texts])


@pytest.mark.parametrize("utility", list(UTILITIES))
def test_pairwise_utilities_equal_sacrebleu(utility: str) -> None:
    np.testing.assert_allclose(UTILITIES[utility](TEXTS), pairwise(TEXTS, utility), atol=1e-9)


@pytest.mark.parametrize("utility", list(UTILITIES))
@given(texts=LINES)
def test_so_they_are_for_any_texts(utility: str, texts: list[str]) -> None:
    np.testing.assert_allclose(UTILITIES[utility](texts), pairwise(texts, utility), atol=1e-9)


@pytest.mark.parametrize("utility", list(UTILITIES))
@given(texts=LINES)
def test_the_choice_is_that_of_a_double_loop(utility: str, texts: list[str]) -> None:
    """Over all outputs, repeated ones too, each against all others."""
    pairs = pairwise(texts, utility)
    others = max(1, len(texts) - 1)
    expected = [sum(pairs[i, j] for j in range(len(texts)) if j != i) / others for i in range(len(texts))]
    result = least_risk(texts, partial(UTILITIES[utility], section=None))
    assert {texts[place] for place, _ in result} == set(texts) and len(result) == len(set(texts))
    assert [worth for _, worth in result] == pytest.approx([expected[place] for place, _ in result], abs=1e-8)
    assert [worth for _, worth in result] == sorted((worth for _, worth in result), reverse=True) or result[0][
        1
    ] == pytest.approx(max(expected), abs=1e-8)
    assert expected[result[0][0]] == pytest.approx(max(expected), abs=1e-8)


@pytest.mark.parametrize("utility", list(UTILITIES))
@given(outputs=st.lists(st.tuples(st.text(alphabet="ab c.,é", max_size=12), st.floats(-60, 0)), min_size=1, max_size=7))
def test_weighed_by_probability_it_is_that_of_the_sum_written_out(
    utility: str, outputs: list[tuple[str, float]]
) -> None:
    """Σ_j p(y_j) u(y_i, y_j) over all outputs, with p renormalised over them."""
    texts, logs = [text for text, _ in outputs], [log for _, log in outputs]
    pairs, total = pairwise(texts, utility), sum(math.exp(log) for log in logs)
    expected = [sum(math.exp(logs[j]) / total * pairs[i, j] for j in range(len(texts))) for i in range(len(texts))]
    result = least_risk(texts, partial(UTILITIES[utility], section=None), logs)
    assert sorted(place for place, _ in result) == sorted({texts.index(text) for text in texts})
    assert [worth for _, worth in result] == pytest.approx([expected[place] for place, _ in result], abs=1e-8)
    assert expected[result[0][0]] == pytest.approx(max(expected), abs=1e-8)


def test_equal_probabilities_weigh_as_often_as_an_output_came() -> None:
    texts = ["abc", "abd", "abc", "xyz"]
    ((_, once), *_), pairs = least_risk(texts, CHRF_UTILITY, [-1e4] * 4), pairwise(texts, "chrf")  # far below any float
    assert once == pytest.approx(pairs[0].mean(), abs=1e-9)


def test_a_likely_output_favours_similar_outputs() -> None:
    texts = ["xyz", "xya", "bcd", "bce", "bcf"]
    assert least_risk(texts, CHRF_UTILITY)[0][0] == 2
    assert least_risk(texts, CHRF_UTILITY, [math.log(p) for p in (0.8, 0.05, 0.05, 0.05, 0.05)])[0][0] == 0


def test_of_two_that_differ_by_the_rounding_of_a_sum_the_first_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    nearly = np.array([[100.0, 50.0], [50.0 + 1e-12, 100.0]])
    monkeypatch.setitem(UTILITIES, "chrf", lambda texts, section: nearly)
    assert [place for place, _ in least_risk(["b", "a"], CHRF_UTILITY)] == [0, 1]


def test_only_the_outputs_of_a_beam_are_weighed() -> None:
    result = [Hypothesis([4 + place], -place, math.log(p)) for place, p in enumerate((0.8, 0.05, 0.05, 0.05, 0.05))]
    texts = ["xyz", "xya", "bcd", "bce", "bcf"]
    for weights, first in (("uniform", 2), ("probability", 0)):
        options = Decoding.model_validate({"beam": 5, "mbr": {"candidates": 5, "weights": weights}})
        (best,) = as_predictions(texts, result, options)
        assert (best.text, best.tokens) == (texts[first], result[first].tokens)


def test_an_output_that_came_often_counts_so_often() -> None:
    assert least_risk(["xyz", "abc", "abc", "abd"], CHRF_UTILITY)[0][0] == 1
    assert least_risk(["abc", "xyz", "xyz", "xyz"], CHRF_UTILITY)[0][0] == 1


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"beam": 1, "mbr": {}}, "mbr chooses among several outputs, and beam 1 finds one"),
        ({"beam": 8, "mbr": {"candidates": 9}}, r"mbr.candidates \(9\) is more than beam \(8\)"),
        ({"sample": {}, "nbest": 5, "mbr": {"candidates": 4}}, r"nbest \(5\) is more than mbr.candidates \(4\)"),
        ({"sample": {}, "mbr": {"weights": "probability"}}, "mbr.weights: probability is for a beam; what is drawn"),
        ({"beam": 5, "groups": 2}, r"groups \(2\) do not divide beam \(5\)"),
        ({"beam": 4, "groups": 2, "sample": {}}, r"groups \(2\) are parts of a beam, and sample draws"),
        ({"min_length": 5, "max_length": 5}, r"min_length \(5\) leaves no room"),
        ({"forbid": ["cat", " "]}, "forbid has an empty phrase"),
    ],
)
def test_impossible_settings_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoding.model_validate(section)
