"""Dropout: how much, what it is scaled by, and that it happens in training only."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from sightline.layers.dropout import Dropout, keep_mask

PROBABILITIES = [0.1, 0.3, 0.5, 0.999]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probability", PROBABILITIES)
def test_an_element_is_dropped_with_that_probability_and_the_mean_is_kept(
    probability: float, dtype: torch.dtype
) -> None:
    mask = keep_mask(torch.Size([400, 251]), probability, dtype)
    assert mask.dtype == dtype
    kept = mask > 0
    count, share = mask.numel(), kept.double().mean().item()
    error = (probability * (1 - probability) / count) ** 0.5
    assert abs(share - (1 - probability)) < 4 * error + 2**-16  # four standard errors, and the rounding to 16 bits
    scales = mask[kept].unique()
    assert len(scales) == 1
    dropped = round(probability * 2**16)
    rounding = torch.finfo(dtype).eps / 2
    assert scales.item() == pytest.approx(2**16 / (2**16 - dropped), rel=rounding)


def test_probabilities_below_two_to_the_minus_17_drop_nothing() -> None:
    assert torch.equal(keep_mask(torch.Size([1_000]), 2**-18), torch.ones(1_000))


def test_neighbours_are_dropped_independently() -> None:
    """Four elements share one draw of 64 bits."""
    mask = (keep_mask(torch.Size([40_000]), 0.5) > 0).view(-1, 4)
    patterns = Counter(map(tuple, mask.tolist()))
    expected = len(mask) / 16
    statistic = sum((patterns[p] - expected) ** 2 / expected for p in patterns)
    assert len(patterns) == 16
    assert statistic < 37.7  # 15 degrees of freedom: less in 999 of 1000 draws; the seed is fixed


@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (5,), (2, 3, 7)])
def test_any_number_of_elements_gets_a_mask(shape: tuple[int, ...]) -> None:
    assert keep_mask(torch.Size(shape), 0.5).shape == shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_seed_determines_the_dropout_mask(dtype: torch.dtype) -> None:
    layer, x = Dropout(0.5), torch.ones(64, dtype=dtype)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(layer(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert results[0].dtype == dtype


def test_both_precisions_drop_the_same_elements() -> None:
    masks = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(3)
        masks.append(keep_mask(torch.Size([7, 13]), 0.3, dtype) > 0)
    assert torch.equal(*masks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_add_equals_dropout_followed_by_a_sum(dtype: torch.dtype) -> None:
    layer, x, addition = Dropout(0.3), torch.randn(5, 9, dtype=dtype), torch.randn(5, 9, dtype=dtype)
    torch.manual_seed(4)
    apart = x + layer(addition)
    torch.manual_seed(4)
    torch.testing.assert_close(layer.add(x, addition), apart, rtol=0, atol=1e-6)  # one float32 rounding more or less


def test_the_gradient_passes_where_nothing_was_dropped() -> None:
    layer, x = Dropout(0.5), torch.randn(200, requires_grad=True)
    result = layer(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(gradient, torch.where(result == 0, 0.0, 2.0))


@pytest.mark.parametrize("layer", [Dropout(0.5).eval(), Dropout(0.0)])
def test_outside_training_and_without_a_probability_nothing_happens(layer: Dropout) -> None:
    x, addition = torch.randn(20), torch.randn(20)
    assert layer(x) is x
    assert torch.equal(layer.add(x, addition), x + addition)
