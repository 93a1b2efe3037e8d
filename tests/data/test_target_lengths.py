"""Target lengths by source length, and the limits of outputs that follow from them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.target_lengths import FACTOR, SLACK, TargetLengths, fixed_limits

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 300)), min_size=1, max_size=40)


def lengths_of(pairs: list[tuple[int, int]]) -> TargetLengths:
    sources, targets = np.array(pairs).T
    found = TargetLengths.of(sources, targets)
    assert found is not None
    return found


@given(PAIRS)
def test_training_pairs_are_below_their_limits(pairs: list[tuple[int, int]]) -> None:
    limits = lengths_of(pairs).limits([source + 1 for source, _ in pairs])
    assert all(limit >= FACTOR * (target + 1) + SLACK for limit, (_, target) in zip(limits, pairs, strict=True))


@given(PAIRS)
def test_limits_are_monotonic_and_bounded(
    pairs: list[tuple[int, int]],
) -> None:
    found, longest = lengths_of(pairs), max(source for source, _ in pairs) + 1
    limits = found.limits(range(1, longest + 1))
    assert (np.diff(limits) >= 0).all()
    assert limits.max() == np.ceil(FACTOR * (max(target for _, target in pairs) + 1)) + SLACK
    assert (found.ratio_limit * np.arange(1, longest + 1) + SLACK + 1 > limits).all() or found.corners[0][0] > 1


def test_outlier_adds_a_constant_to_limits() -> None:
    plain = [(length, length) for length in range(1, 300)]
    found = lengths_of([*plain, (1, 60)])  # 30 times as long as its source, with end marks
    (limit,) = found.limits([21])
    assert FACTOR * 61 < limit < FACTOR * (21 + 61) + SLACK
    assert found.ratio == 30.5


def test_limits_grow_beyond_the_longest_training_source() -> None:
    found = lengths_of([(4, 9), (9, 19)])
    assert found.limits([10, 20, 40]).tolist() == [40, 70, 130]


def test_limits_are_interpolated() -> None:
    found = lengths_of([(1, 3), (9, 19)])
    assert found.limits([6]).tolist() == [28]  # 1.5 · 12 + 10


def test_save_and_load() -> None:
    found = lengths_of([(0, 3), (5, 2), (9, 19)])
    config = json.loads(json.dumps(found.save()))
    assert config["target_lengths"]["longest_target"] == 20
    assert config["target_lengths"]["largest_ratio"] == 4.0
    assert TargetLengths.load(config) == found
    assert TargetLengths.load({}) is None


@given(PAIRS, PAIRS)
def test_union_of_statistics(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    both = TargetLengths.union([lengths_of(one), None, lengths_of(other)])
    assert both == lengths_of(one + other)


def test_no_statistics_without_pairs() -> None:
    assert TargetLengths.of(np.empty(0, np.int32), np.empty(0, np.int32)) is None
    assert TargetLengths.union([None, None]) is None


@pytest.mark.parametrize(("source", "limit"), [(1, 60), (20, 250), (200, 1_024), (3_000, 3_000)])
def test_fixed_limits(source: int, limit: int) -> None:
    assert fixed_limits([source]).tolist() == [limit]
