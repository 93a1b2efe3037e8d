"""Confusions: counts whose scores agree with the metrics."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sightline.evaluation.labels import Confusion
from sightline.evaluation.metrics import score

OUTPUTS, WANTED = ["a", "a", "b", "x", "a", "c"], [["a"], ["a"], ["b"], ["b"], ["c"], ["c"]]


def test_rows_are_right_labels_and_columns_predicted_ones() -> None:
    found = Confusion.of(OUTPUTS, WANTED)
    assert found.labels == ("a", "b", "c", "x")
    assert found.counts.tolist() == [[2, 0, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0]]


def test_precision_recall_f1_and_support_of_each_label() -> None:
    found = Confusion.of(OUTPUTS, WANTED)
    np.testing.assert_allclose(found.precision, [200 / 3, 100, 100, 0])
    np.testing.assert_allclose(found.recall, [100, 50, 50, 0])
    np.testing.assert_allclose(found.f1, [80, 200 / 3, 200 / 3, 0])
    assert found.support.tolist() == [2, 2, 2, 0]


def test_the_mean_f1_is_macro_f1_and_the_diagonal_is_accuracy() -> None:
    found = Confusion.of(OUTPUTS, WANTED)
    assert found.f1.mean() == pytest.approx(score("macro-f1", OUTPUTS, WANTED, bootstrap=0).value)
    share = 100 * found.counts.trace() / found.counts.sum()
    assert share == pytest.approx(score("accuracy", OUTPUTS, WANTED, bootstrap=0).value)


def test_labels_stand_in_the_order_given_and_unexpected_ones_behind() -> None:
    found = Confusion.of(OUTPUTS, WANTED, labels=["c", "b", "a", "never"])
    assert found.labels == ("c", "b", "a", "never", "x")
    assert found.counts.sum() == 6


def test_tokens_are_counted_one_by_one() -> None:
    found = Confusion.of_tokens(["N V", "N"], [["N N"], ["N"]])
    assert (found.labels, found.counts.tolist()) == (("N", "V"), [[2, 1], [0, 0]])


def test_a_label_may_have_spaces_and_case_is_folded_where_asked() -> None:
    assert Confusion.of(["New York"], [["new york"]]).labels == ("New York", "new york")
    assert Confusion.of(["New York "], [["new york"]], lowercase=True).counts.tolist() == [[1]]
    assert Confusion.of_tokens(["N v"], [["n V"]], lowercase=True).counts.tolist() == [[1, 0], [0, 1]]


def test_mistakes_are_the_most_frequent_confusions_and_nothing_that_is_right() -> None:
    found = Confusion(("a", "b", "c"), np.array([[9, 1, 0], [3, 9, 2], [0, 0, 9]]))
    assert found.mistakes(9) == [("b", "a", 3), ("b", "c", 2), ("a", "b", 1)]
    assert found.mistakes(2) == [("b", "a", 3), ("b", "c", 2)]


def test_a_confusion_can_be_written_as_json() -> None:
    found = json.loads(json.dumps(Confusion.of(OUTPUTS, WANTED).to_dict(), allow_nan=False))
    assert found["counts"][1] == [0, 1, 0, 1]
    assert found["scores"][1] == {
        "label": "b",
        "precision": 100,
        "recall": 50,
        "f1": pytest.approx(200 / 3),
        "support": 2,
    }


def test_what_cannot_be_counted_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="output 1 has 2 references; a confusion needs exactly one"):
        Confusion.of(["a"], [["a", "b"]])
    with pytest.raises(TypeError, match=r"references of output 1 are a text; write a list of texts: \['a'\]"):
        Confusion.of(["a"], ["a"])
    with pytest.raises(ValueError, match="2 outputs and references for 1"):
        Confusion.of(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match=r"counts \(1, 2\) must be \(labels, labels\), here \(2, 2\)"):
        Confusion(("a", "b"), np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match="label 'a' stands in labels twice"):
        Confusion.of(["a"], [["a"]], labels=["b", "a", "a"])
