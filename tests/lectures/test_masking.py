"""Masks before and after the softmax, and growing keys, against loops over single numbers."""

from __future__ import annotations

import math

import pytest
import torch

from sightline.inspection.claims.masking import WORDS, compare_masks, example, growing_keys, mask_claim

QUERY, KEY, VALUE = example(4, 3)


def score(i: int, j: int) -> float:
    return sum(float(QUERY[i, k]) * float(KEY[j, k]) for k in range(3)) / math.sqrt(3)


def test_before_the_softmax_the_normalizer_sees_the_past_alone() -> None:
    found = compare_masks(QUERY, KEY, VALUE)
    for i in range(4):
        total = sum(math.exp(score(i, k)) for k in range(i + 1))
        for j in range(4):
            assert float(found.before[i, j]) == pytest.approx(math.exp(score(i, j)) / total if j <= i else 0.0)
            assert (float(found.masked_scores[i, j]) == -math.inf) == (j > i)
    assert found.before.sum(-1).tolist() == pytest.approx([1.0] * 4)


def test_after_the_softmax_the_normalizer_sees_the_future() -> None:
    found = compare_masks(QUERY, KEY, VALUE)
    for i in range(4):
        total = sum(math.exp(score(i, k)) for k in range(4))
        for j in range(4):
            assert float(found.after[i, j]) == pytest.approx(math.exp(score(i, j)) / total if j <= i else 0.0)
    assert (found.after.sum(-1)[:3] < 0.99).all() and float(found.after[3].sum()) == pytest.approx(1)
    torch.testing.assert_close(found.before, found.after / found.after.sum(-1, keepdim=True))


def test_only_the_mask_before_the_softmax_keeps_the_past_from_the_future() -> None:
    key = KEY.clone()
    key[3] = -KEY[3]
    one, other = compare_masks(QUERY, KEY, VALUE), compare_masks(QUERY, key, VALUE)
    torch.testing.assert_close(one.outputs[0][:3], other.outputs[0][:3])
    assert ((one.outputs[1] - other.outputs[1])[:3].abs().amax(1) > 1e-3).all()


def test_growing_keys_give_the_numbers_of_the_mask_at_another_cost() -> None:
    found = growing_keys(QUERY, KEY, VALUE)
    torch.testing.assert_close(found.loop, found.masked)
    torch.testing.assert_close(found.masked, compare_masks(QUERY, KEY, VALUE).outputs[0])
    counted = dict.fromkeys(found.multiplications, 0)
    again, new, masked = counted
    for t in range(1, 5):
        counted[again] += 2 * t * t * 3  # t queries · t keys · 3 features, then the same for the values
        counted[new] += 2 * t * 3
        counted[masked] += 2 * 4 * 3
    assert found.multiplications == counted == {again: 180, new: 60, masked: 96}
    assert list(found.calls.values()) == [4, 4, 1]


def test_the_example_of_the_lecture_has_four_words() -> None:
    claim = mask_claim()
    rows = claim.tables[0].rows
    assert [row[0] for row in rows] == list(WORDS) == ["[START]", "The", "chef", "who"]
    assert [[cell == -math.inf for cell in row[1:]] for row in rows] == [[j > i for j in range(4)] for i in range(4)]
    assert claim.numbers["moved"][0] == 0 and claim.numbers["moved"][1] > 0.01
    with pytest.raises(ValueError, match="one word has no future to mask"):
        mask_claim(["The"])
