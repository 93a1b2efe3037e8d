"""The k largest of each row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sightline.decoding.ranking import top_k


@pytest.mark.parametrize("size", [7, 64, 256, 640, 641, 703, 1000, 8000])
@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_it_is_torchs_topk(size: int, k: int) -> None:
    scores = torch.randn(9, size)
    values, indices = top_k(scores, k)
    expected = scores.topk(k, dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)  # normal draws do not tie


@pytest.mark.parametrize("size", [703, 704])  # with and without a rest behind the last whole block
@pytest.mark.parametrize("where", [0, 63, 64, 639, 640, 702])
def test_top_k_finds_the_largest_at_any_index(where: int, size: int) -> None:
    scores = torch.zeros(2, size)
    scores[1, where] = 1.0
    values, indices = top_k(scores, 3)
    assert indices[1, 0] == where
    assert values.tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("size", [703, 704])
def test_rows_that_do_not_lie_side_by_side_in_memory_are_read_right(size: int) -> None:
    scores = torch.randn(size, 6).t()
    values, indices = top_k(scores, 3)
    expected = scores.topk(3, dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)


def test_all_of_them_may_stand_in_one_block() -> None:
    scores = torch.zeros(1, 1024)
    scores[0, 128:133] = torch.tensor([1.0, 5.0, 2.0, 4.0, 3.0])
    assert top_k(scores, 5)[1].tolist() == [[129, 131, 132, 130, 128]]


@given(seed=st.integers(0, 10**6), size=st.integers(300, 500), k=st.integers(1, 3))
def test_with_ties_the_values_are_right_and_the_indices_point_at_them_once(seed: int, size: int, k: int) -> None:
    scores = torch.randint(0, 4, (1, size), generator=torch.Generator().manual_seed(seed)).float()
    values, indices = top_k(scores, k)
    assert torch.equal(values, scores.topk(k, dim=-1).values)
    assert torch.equal(scores.gather(1, indices), values)
    assert len(set(indices[0].tolist())) == k


def test_rows_with_little_left_are_handled() -> None:
    """A forced prefix leaves one word; everything else is at −∞."""
    scores = torch.full((2, 1000), float("-inf"))
    scores[0, 999] = 0.5
    scores[1, 70] = -2.0
    values, indices = top_k(scores, 4)
    assert indices[:, 0].tolist() == [999, 70]
    assert values[:, 0].tolist() == [0.5, -2.0]
    assert torch.isinf(values[:, 1:]).all()


@pytest.mark.cuda
@pytest.mark.parametrize("size", [640, 641, 8000, 32_000])
@pytest.mark.parametrize("k", [1, 10])
def test_top_k_on_a_gpu_equals_the_cpu(cuda: torch.device, size: int, k: int) -> None:
    scores = torch.randn(50, size)
    values, indices = top_k(scores.to(cuda), k)
    expected = scores.topk(k, dim=-1)
    assert torch.equal(values.cpu(), expected.values)
    assert torch.equal(indices.cpu(), expected.indices)
