"""Normalization against the formulas and against PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sightline.layers.norms import LayerNorm, Residual, RMSNorm
from sightline.recipe import Norm

SIXTY_FOUR = {"rtol": 0.0, "atol": 1e-14}  # float64 sums over eight numbers near one


def with_random_gain(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    return norm.double()


def test_layer_norm_is_its_formula() -> None:
    """(x − μ) / σ · γ + β over the features of one token, σ² with the small ε that keeps a constant token finite."""
    norm, x = with_random_gain(LayerNorm(8)), torch.randn(2, 3, 8, dtype=torch.float64)
    mean = x.sum(-1, keepdim=True) / 8
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / 8
    torch.testing.assert_close(norm(x), (x - mean) / (variance + 1e-5).sqrt() * norm.weight + norm.bias, **SIXTY_FOUR)


def test_rms_norm_is_its_formula_and_torchs() -> None:
    norm, x = with_random_gain(RMSNorm(8)), torch.randn(2, 3, 8, dtype=torch.float64)
    rms = (x.square().sum(-1, keepdim=True) / 8 + norm.eps).sqrt()
    torch.testing.assert_close(norm(x), x / rms * norm.weight, **SIXTY_FOUR)
    theirs = nn.RMSNorm(8, eps=norm.eps, dtype=torch.float64)
    theirs.load_state_dict(norm.state_dict())
    assert torch.equal(norm(x), theirs(x))


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_one_token_is_normalized_without_regard_to_others(kind: type[nn.Module]) -> None:
    norm, x = with_random_gain(kind(8)), torch.randn(4, 8, dtype=torch.float64)
    torch.testing.assert_close(norm(x)[2:3], norm(x[2:3]), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_pre_norm_normalizes_what_goes_in_and_post_norm_what_comes_out(kind: str) -> None:
    x, output = torch.randn(3, 8), torch.randn(3, 8)
    pre = Residual(Norm(kind=kind, place="pre"), 8, 0.0)
    assert torch.equal(pre.enter(x), pre.norm(x))
    assert torch.equal(pre.leave(x, output), x + output)
    post = Residual(Norm(kind=kind, place="post"), 8, 0.0)
    assert torch.equal(post.enter(x), x)
    assert torch.equal(post.leave(x, output), post.norm(x + output))
