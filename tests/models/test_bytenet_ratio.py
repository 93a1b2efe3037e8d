"""At which ratio ByteNet unfolds a source: a length t̂ = a s + b for each, fitted to the training text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sightline.models.convolutional.bytenet import ByteNetDecoder, fit_ratio, unfold
from sightline.models.convolutional.config import ByteNetConfig
from sightline.models.protocol import FitsLengths


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        ((1.0, 0.0), [[1, 2, 3, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]]),  # place by place
        ((1.0, 2.0), [[1, 2, 3, 3, 3, 0, 0], [1, 1, 1, 0, 0, 0, 0]]),  # the last stays until t̂
        ((2.0, 0.0), [[1, 1, 2, 2, 3, 3, 0], [1, 1, 0, 0, 0, 0, 0]]),
        ((0.5, 1.2), [[1, 3, 3, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]]),  # t̂ = 2.7 and 1.7, rounded up
    ],
)
def test_the_source_is_unfolded_at_its_ratio_and_ends(ratio: tuple[float, float], expected: list[list[int]]) -> None:
    states = torch.tensor([[1.0, 2, 3], [1, float("nan"), float("nan")]])[..., None]  # of the second, one is real
    for places in (torch.arange(7), torch.arange(7)[3:5]):
        result = unfold(states, torch.tensor([3, 1]), places, torch.tensor(ratio))
        assert result[..., 0].tolist() == [[row[place] for place in places] for row in expected]


def test_the_ratio_is_that_of_least_squares_and_long_enough_for_most() -> None:
    random = np.random.default_rng(3)
    sources = random.integers(1, 60, 5000)
    targets = np.maximum(1, (0.8 * sources + 4 + random.normal(0, 2, 5000)).astype(int))
    a, b = fit_ratio(sources, targets)
    slope, intercept = np.polyfit(sources, targets, 1)
    assert a == pytest.approx(slope, rel=1e-9)
    assert b > intercept
    assert 0.985 < np.mean(targets <= a * sources + b) < 0.995
    assert fit_ratio(np.array([1, 2, 5]), np.array([5, 7, 13])) == pytest.approx((2, 3))


@pytest.mark.parametrize(
    ("sources", "targets", "expected"),
    [([4, 4, 4], [6, 6, 6], (1.5, 0.0)), ([4], [2], (0.5, 0.0)), ([2, 4], [6, 3], (1.5, 3.0))],
)
def test_lengths_that_tell_no_slope_have_the_ratio_of_their_means(
    sources: list[int], targets: list[int], expected: tuple[float, float]
) -> None:
    assert fit_ratio(np.array(sources), np.array(targets), covered=1.0) == pytest.approx(expected)


def test_no_lengths_leave_the_ratio_as_it_was() -> None:
    decoder = ByteNetDecoder(ByteNetConfig(), 8)
    decoder.fit_lengths(np.array([], np.int64), np.array([], np.int64))
    assert decoder.ratio.tolist() == [1.0, 0.0]


def test_a_decoder_without_a_source_has_no_ratio() -> None:
    alone = ByteNetDecoder(ByteNetConfig(), 8, source=False)
    alone.fit_lengths(np.array([3]), np.array([4]))
    assert isinstance(alone, FitsLengths)
    assert dict(alone.named_buffers()) == {}
