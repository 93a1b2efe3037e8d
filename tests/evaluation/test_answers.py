"""Token F1 of answers against SQuAD's definition written out."""

from __future__ import annotations

import pytest

from sightline.evaluation.answers import answer_words, token_f1
from sightline.evaluation.metrics import score


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("the old dog", "old dog", 1.0),  # articles do not count
        ("The Dog!", "dog", 1.0),  # nor do case and punctuation
        ("old dog", "dog", 2 / 3),  # precision 1/2, recall 1
        ("dog dog cat", "dog cat cat", 4 / 6),  # repeated words count as often as both have them
        ("cat", "dog", 0.0),
        ("the", "a", 1.0),  # no words on either side
        ("", "dog", 0.0),
    ],
)
def test_f1_of_an_answer(answer: str, reference: str, expected: float) -> None:
    assert token_f1(answer, reference) == pytest.approx(expected)
    ours, theirs = answer_words(answer), answer_words(reference)
    if ours and theirs:  # by hand: 2 p r / (p + r)
        left, common = list(theirs), 0
        for word in ours:
            if word in left:
                left.remove(word)
                common += 1
        precision, recall = common / len(ours), common / len(theirs)
        by_hand = 2 * precision * recall / (precision + recall) if common else 0.0
        assert token_f1(answer, reference) == pytest.approx(by_hand)


def test_score_is_the_mean_over_answers_of_the_best_reference() -> None:
    measured = score("token-f1", ["old dog", "cat"], [["dog", "the old dog"], ["dog"]], bootstrap=200)
    assert measured.value == pytest.approx(50.0)
    assert measured.low <= measured.value <= measured.high
    assert measured.name == "token F1" and measured.better == "higher"
    assert measured.signature.startswith("nrefs:var|bs:200|seed:12345|case:lc|norm:squad|mean:macro|version:sightline-")
