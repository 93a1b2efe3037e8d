"""Entropy, diagonality and confidence, on weights whose measures can be told by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sightline.inspection.attention import measure_head
from sightline.plots.matrices import row_shares


def test_one_key_alone_has_no_entropy_and_full_confidence() -> None:
    found = measure_head(np.eye(4, dtype=np.float32))
    assert (found.entropy, found.entropy_share, found.confidence) == (0.0, 0.0, 1.0)


def test_even_attention_has_all_the_entropy_there_can_be_and_no_diagonality() -> None:
    found = measure_head(np.full((3, 5), 0.2, dtype=np.float32))
    assert found.entropy == pytest.approx(math.log(5))
    assert found.entropy_share == pytest.approx(1.0)
    assert found.diagonality == pytest.approx(0.0, abs=1e-6)
    assert found.confidence == pytest.approx(0.2)


def test_the_diagonal_has_diagonality_one_and_the_other_one_less_than_none() -> None:
    assert measure_head(np.eye(5, dtype=np.float32)).diagonality == pytest.approx(1.0)
    assert measure_head(np.eye(5, dtype=np.float32)[::-1]).diagonality < 0


def test_a_stretched_diagonal_is_one_too() -> None:
    weights = np.zeros((3, 5), dtype=np.float32)
    weights[[0, 1, 2], [0, 2, 4]] = 1.0
    assert measure_head(weights).diagonality == pytest.approx(1.0)


def test_diagonality_by_hand() -> None:
    weights = np.array([[0.5, 0.5], [0.0, 1.0]], dtype=np.float32)  # distances 0 and 1: 0.5 of it, evenly 1
    assert measure_head(weights).diagonality == pytest.approx(0.5)


def test_what_a_decoder_cannot_see_is_no_room_for_entropy() -> None:
    even = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    found = measure_head(even.astype(np.float32), causal=True)
    assert found.entropy_share == pytest.approx(1.0, abs=1e-6)
    assert found.diagonality == pytest.approx(0.0, abs=1e-6)
    assert measure_head(even.astype(np.float32)).entropy_share < 0.8


def test_one_query_with_one_key_has_no_shares_to_tell() -> None:
    found = measure_head(np.ones((1, 1), dtype=np.float32), causal=True)
    assert math.isnan(found.entropy_share) and math.isnan(found.diagonality)
    assert found.to_dict() == {"entropy": 0.0, "entropy_share": None, "diagonality": None, "confidence": 1.0}


def test_negative_weights_count_by_their_size_and_rows_of_zeros_stay() -> None:
    found = row_shares(np.array([[-1.0, 3.0], [0.0, 0.0]], dtype=np.float32))
    assert found.tolist() == [[0.25, 0.75], [0.0, 0.0]]
