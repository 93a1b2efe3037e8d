"""Batch order and batch composition."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.data.batch_order import Indices, order, packed_batches, packing_waste, padded_batches, padding_waste

LENGTHS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=200)


def sides(lengths: list[tuple[int, int]]) -> tuple[Indices, Indices]:
    array = np.array(lengths, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def like_a_corpus(count: int) -> tuple[Indices, Indices]:
    generator = np.random.default_rng(0)
    source = generator.lognormal(2.6, 0.4, count).astype(np.int64)
    return source, np.maximum(1, source + generator.normal(0, 2.5, count).astype(np.int64))


@given(lengths=LENGTHS, tokens=st.integers(31, 200), seed=st.integers(0, 9), epoch=st.integers(0, 9))
@settings(deadline=None)
def test_padded_batches_hold_each_example_once_within_the_budget(
    lengths: list[tuple[int, int]], tokens: int, seed: int, epoch: int
) -> None:
    source, target = sides(lengths)
    batches = padded_batches(source, target, tokens=tokens, seed=seed, epoch=epoch)
    assert sorted(np.concatenate([*batches, []])) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * (max(source[batch].max(), target[batch].max()) + 1) <= tokens


@given(
    lengths=LENGTHS,
    tokens=st.integers(31, 200),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 9),
    longest=st.none() | st.integers(1, 6),
)
@settings(deadline=None)
def test_packed_batches_hold_each_example_once_within_the_budget(
    lengths: list[tuple[int, int]], tokens: int, seed: int, epoch: int, longest: int | None
) -> None:
    source, target = sides(lengths)
    batches = packed_batches(source, target, tokens=tokens, longest_batch=longest, seed=seed, epoch=epoch)
    assert sorted(np.concatenate([*batches, []])) == list(range(len(lengths)))
    for batch in batches:
        assert source[batch].sum() + len(batch) <= tokens
        assert target[batch].sum() + len(batch) <= tokens
        assert longest is None or len(batch) <= longest


@pytest.mark.parametrize("batch", [padded_batches, packed_batches])
def test_batches_are_a_function_of_seed_and_epoch(batch: object) -> None:
    assert callable(batch)
    source, target = like_a_corpus(500)

    def flat(seed: int, epoch: int) -> list[list[int]]:
        return [one.tolist() for one in batch(source, target, tokens=256, seed=seed, epoch=epoch)]

    assert flat(1, 0) == flat(1, 0)
    assert flat(1, 0) != flat(1, 1)
    assert flat(1, 0) != flat(2, 0)


def test_padding_waste_is_small_for_varied_lengths() -> None:
    source, target = like_a_corpus(29_000)
    batches = padded_batches(source, target, tokens=4_096, seed=1, epoch=0)
    assert padding_waste(batches, source, target) < 0.06


def test_packed_batches_are_nearly_full() -> None:
    source, target = like_a_corpus(20_000)
    batches = packed_batches(source, target, tokens=2_048, seed=1, epoch=0)
    fuller = max((source + 1).sum(), (target + 1).sum())
    assert len(batches) <= np.ceil(fuller / 2_048 * 1.01)
    waste = packing_waste(batches, source, target, tokens=2_048)
    assert waste == pytest.approx(1 - (source.sum() + target.sum() + 40_000) / (2 * 2_048 * len(batches)))


def test_padding_waste_counts_both_sides_with_their_end_marks() -> None:
    source, target = np.array([1, 3]), np.array([2, 2])
    assert padding_waste([np.array([0, 1])], source, target) == pytest.approx(2 / 14)
    assert padding_waste([], source, target) == 0
    assert packing_waste([], source, target, tokens=8) == 0


def test_examples_of_equal_length_are_shuffled_between_batches() -> None:
    source = target = np.full(64, 7)
    meetings = {
        frozenset(b.tolist()) for e in range(3) for b in padded_batches(source, target, tokens=64, seed=1, epoch=e)
    }
    assert len(meetings) > 16


@pytest.mark.parametrize("batch", [padded_batches, packed_batches])
def test_an_example_longer_than_the_budget_is_named(batch: object) -> None:
    assert callable(batch)
    source, target = np.array([3, 3, 3]), np.array([3, 40, 3])
    with pytest.raises(ValueError, match="example 1 takes 41 places, and a batch has 32"):
        batch(source, target, tokens=32, seed=1, epoch=0)
    with pytest.raises(ValueError, match="example 1 takes 41 places"):  # by its own number
        batch(source, target, tokens=32, seed=1, epoch=0, examples=np.array([2, 0, 1]))
    assert len(batch(source, target, tokens=32, seed=1, epoch=0, examples=np.array([0, 2, 2]))) == 1


@given(
    weights=st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.25]), min_size=1, max_size=3), seed=st.integers(0, 9)
)
def test_source_weights_set_how_often_examples_occur(weights: list[float], seed: int) -> None:
    origin = np.repeat(np.arange(len(weights)), 8).astype(np.uint16)
    seen: Counter[int] = Counter()
    for epoch in range(4):
        examples = order(origin, weights, seed=seed, epoch=epoch)
        assert len(examples) == sum(8 * weight for weight in weights)
        seen.update(examples.tolist())
    for number, source in enumerate(origin):
        assert seen[number] == 4 * weights[source]


def test_fractional_weight_rotates_through_examples() -> None:
    seen = [order(np.zeros(4, np.uint16), [0.25], seed=1, epoch=epoch).tolist() for epoch in range(4)]
    assert sorted(seen) == [[0], [1], [2], [3]]


def test_order_is_unchanged() -> None:
    """Resuming an old run with a new NumPy must meet the same examples."""
    assert order(np.zeros(8, np.uint16), [1.0], seed=1, epoch=2).tolist() == [3, 4, 7, 6, 1, 5, 2, 0]
    assert order(np.zeros(0, np.uint16), [0.5], seed=1, epoch=2).tolist() == []
    origin = np.repeat([0, 1], 6).astype(np.uint16)
    assert order(origin, [0.5, 1.5], seed=1, epoch=0).tolist() == [10, 8, 7, 11, 8, 5, 9, 11, 9, 1, 3, 6]
    assert order(origin, [0.5, 1.5], seed=2, epoch=0).tolist() == [5, 7, 9, 6, 8, 8, 10, 2, 11, 9, 1, 10]


def test_batches_are_unchanged() -> None:
    """For the same reason."""
    source, target = np.array([1, 5, 2, 7, 3, 3, 6, 0, 4, 2, 9, 1]), np.array([2, 4, 2, 9, 3, 1, 5, 1, 4, 3, 8, 0])
    padded, packed = (
        [[one.tolist() for one in batch(source, target, tokens=16, seed=1, epoch=epoch)] for epoch in (0, 1)]
        for batch in (padded_batches, packed_batches)
    )
    assert padded[0] == [[3], [8, 1], [6], [9, 5, 4], [7, 0, 11, 2], [10]]
    assert padded[1] == [[7, 11, 0, 2], [9, 4, 5], [3], [6], [10], [8, 1]]
    assert packed[0] == [[3, 2], [10, 1], [5, 6, 0, 7, 11], [4, 9, 8]]
    assert packed[1] == [[7, 11, 6, 8], [4, 1, 2, 0], [3, 9], [10, 5]]
