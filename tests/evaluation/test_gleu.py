"""GLEU against a naive version, and against values worked out by hand."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.evaluation.bleu import sentence_gleu

TOKENS = st.lists(st.integers(0, 3), max_size=12)


def gleu(output: Sequence[Hashable], reference: Sequence[Hashable]) -> float:
    return sentence_gleu([output], reference)[0]


def naive(output: list[int], reference: list[int]) -> float:
    """Precision and recall, each n-gram of the output crossed out in the reference."""
    grams = [[s[at : at + n] for n in (1, 2, 3, 4) for at in range(len(s) - n + 1)] for s in (output, reference)]
    rest, matches = list(grams[1]), 0
    for gram in grams[0]:
        if gram in rest:
            rest.remove(gram)
            matches += 1
    if not grams[0] or not grams[1]:
        return 0.0
    return min(matches / len(grams[0]), matches / len(grams[1]))


@given(TOKENS, TOKENS)
def test_it_is_the_smaller_of_precision_and_recall(output: list[int], reference: list[int]) -> None:
    assert gleu(output, reference) == pytest.approx(naive(output, reference), abs=1e-12)


@given(st.lists(TOKENS, min_size=1, max_size=4), TOKENS)
def test_several_outputs_are_scored_as_each_alone(outputs: list[list[int]], reference: list[int]) -> None:
    assert sentence_gleu(outputs, reference) == [gleu(output, reference) for output in outputs]


@pytest.mark.parametrize(
    ("output", "reference", "matches", "most"),
    [
        ("the cat", "the cat", 3, 3),
        ("the the the", "the cat", 1, 6),  # 3 + 2 + 1 n-grams; only one "the" is in the reference
        ("the cat sat", "the cat sat on the mat", 6, 18),  # 6 + 5 + 4 + 3 wanted: recall
        ("on the mat", "mat the on", 3, 6),  # words alone
        ("a b c d e", "a b c d f", 4 + 3 + 2 + 1, 14),
        ("x", "y", 0, 1),
    ],
)
def test_values_by_hand(output: str, reference: str, matches: int, most: int) -> None:
    """As nltk.translate.gleu_score.sentence_gleu has them: matches / max(n-grams of either side)."""
    assert gleu(output.split(), reference.split()) == pytest.approx(matches / most)


def test_nothing_is_worth_nothing() -> None:
    assert gleu([], []) == gleu([], [1]) == gleu([1], []) == 0.0
