"""Minimum Bayes risk against a double loop over sacreBLEU's sentence scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from sightline.decoding.risk import UTILITIES, Utility, least_risk
from sightline.recipe import Decoding

SCORERS: dict[Utility, Any] = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}
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


def pairwise(texts: list[str], utility: Utility) -> np.ndarray:
    score = SCORERS[utility].sentence_score
    return np.array([[score(ours, [theirs]).score for theirs in texts] for ours in texts])


@pytest.mark.parametrize("utility", list(UTILITIES))
def test_all_pairs_at_once_are_what_sacrebleu_says_of_each(utility: Utility) -> None:
    np.testing.assert_allclose(UTILITIES[utility](TEXTS), pairwise(TEXTS, utility), atol=1e-9)


@pytest.mark.parametrize("utility", list(UTILITIES))
@given(texts=LINES)
def test_so_they_are_for_any_texts(utility: Utility, texts: list[str]) -> None:
    np.testing.assert_allclose(UTILITIES[utility](texts), pairwise(texts, utility), atol=1e-9)


@pytest.mark.parametrize("utility", list(UTILITIES))
@given(texts=LINES)
def test_the_choice_is_that_of_a_double_loop(utility: Utility, texts: list[str]) -> None:
    """Over all outputs, repeated ones too, each against all others."""
    pairs = pairwise(texts, utility)
    others = max(1, len(texts) - 1)
    expected = [sum(pairs[i, j] for j in range(len(texts)) if j != i) / others for i in range(len(texts))]
    found = least_risk(texts, utility)
    assert {texts[place] for place, _ in found} == set(texts) and len(found) == len(set(texts))
    assert [worth for _, worth in found] == pytest.approx([expected[place] for place, _ in found], abs=1e-8)
    assert [worth for _, worth in found] == sorted((worth for _, worth in found), reverse=True) or found[0][
        1
    ] == pytest.approx(max(expected), abs=1e-8)
    assert expected[found[0][0]] == pytest.approx(max(expected), abs=1e-8)


def test_an_output_that_came_often_counts_so_often() -> None:
    assert least_risk(["xyz", "abc", "abc", "abd"], "chrf")[0][0] == 1
    assert least_risk(["abc", "xyz", "xyz", "xyz"], "chrf")[0][0] == 1


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"beam": 1, "mbr": {}}, "mbr chooses among several outputs, and beam 1 finds one"),
        ({"beam": 8, "mbr": {"candidates": 9}}, r"mbr.candidates \(9\) is more than beam \(8\)"),
        ({"sample": {}, "nbest": 5, "mbr": {"candidates": 4}}, r"nbest \(5\) is more than mbr.candidates \(4\)"),
        ({"beam": 5, "groups": 2}, r"groups \(2\) do not divide beam \(5\)"),
        ({"beam": 4, "groups": 2, "sample": {}}, r"groups \(2\) are parts of a beam, and sample draws"),
        ({"min_length": 5, "max_length": 5}, r"min_length \(5\) leaves no room"),
        ({"forbid": ["cat", " "]}, "forbid has an empty phrase"),
    ],
)
def test_what_cannot_be_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoding.model_validate(section)
