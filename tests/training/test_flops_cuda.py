"""Counting on a CUDA device: its kernels count as the explicit ones."""

from __future__ import annotations

import pytest
import torch

from sightline.layers import scores
from sightline.layers.attention import attend
from sightline.layers.layout import Packed, Padded
from sightline.layers.recurrent import Recurrence
from sightline.layers.scores import Additive, ScaledDot
from sightline.training.flops import count_flops


@pytest.mark.kernels
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("longest", "operator"),
    [(40, "sightline::short_attention"), pytest.param(300, "_varlen_attn", marks=pytest.mark.cuda)],
)
def test_packed_kernels_count_the_pairs_inside_each_sequence(
    kernels: torch.device, half: torch.dtype, causal: bool, longest: int, operator: str
) -> None:
    queries = Packed.of([7, 1, longest], kernels)
    keys = queries if causal else Packed.of([3, longest, 5], kernels)
    query, key, value = (
        torch.randn(len(side.index), 2, 32, device=kernels, dtype=half, requires_grad=True)
        for side in (queries, keys, keys)
    )
    pairs = int((queries.lengths * keys.lengths).sum())
    with count_flops() as forward:
        result = attend(query, key, value, score=ScaledDot(32), causal=causal, layout=(queries, keys))
    with count_flops() as backward:
        result.sum().backward()
    assert forward.total == 2 * pairs * 2 * (32 + 32)
    assert backward.total == 2 * forward.total
    assert all(operator in name for name in (*forward.by_operator, *backward.by_operator))


@pytest.mark.kernels
def test_additive_scores_count_as_by_the_formula(kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(device: torch.device) -> tuple[bool, int, int]:
        score = Additive(6).to(device)
        query, key = (torch.randn(2, 1, size, 6, device=device, requires_grad=True) for size in (3, 5))
        with count_flops() as forward:
            found = score(query, score.prepare(key))
        with count_flops() as backward:
            found.sum().backward()
        return "sightline::additive_scores" in forward.by_operator, forward.total, backward.total

    fused, *ours = counts(kernels)
    monkeypatch.setattr(scores, "supports_triton", lambda x: False)
    plain, *theirs = counts(torch.device("cpu"))
    assert fused and not plain and ours == theirs


@pytest.mark.cuda
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("cell", "gates"), [("elman", 1), ("gru", 3), ("lstm", 4)])
def test_cudnn_counts_as_on_paper(cuda: torch.device, cell: str, gates: int, mixed: bool) -> None:
    layer = Recurrence(cell, 6, 5, bidirectional=True).to(cuda)
    x = torch.randn(3, 7, 6, device=cuda, requires_grad=True)
    with count_flops() as forward, torch.autocast("cuda", torch.bfloat16, enabled=mixed):
        states, _ = layer.read(x, Padded.of([7, 2, 4], cuda))
    with count_flops() as backward:
        states.sum().backward()
    assert forward.total == 2 * 2 * 13 * gates * 5 * (6 + 5)
    assert backward.total == 2 * forward.total
