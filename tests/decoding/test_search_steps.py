"""What every step of a search does: how many sentences it goes on with."""

from __future__ import annotations

import pytest
import torch

from sightline.decoding.search import size_for

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("alive", [0, 1, 15, 16, 17, 100, 511, 4000])
def test_no_living_sentence_is_left_behind_and_none_is_made_up(alive: int, device: torch.device) -> None:
    assert alive <= size_for(alive, 4000, device) <= 4000


@pytest.mark.parametrize(("device", "sizes"), [(CPU, 500), (GPU, 42)])  # ln(4000 / 16) / ln(8 / 7) = 41.3
def test_a_gpu_moves_its_sentences_together_less_often(device: torch.device, sizes: int) -> None:
    """One sentence of four thousand ends after the other."""
    size, changes = 4000, 0
    for alive in range(4000, 16, -1):
        after = size_for(alive, size, device)
        changes += after < size
        size = after
    assert 0.9 * sizes <= changes <= sizes
    assert size <= 24
