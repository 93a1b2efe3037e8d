"""Normalization against the formulas and against PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sightline.layers.norms import BatchNorm, LayerNorm, RMSNorm, build_norm, build_residual
from sightline.recipe.model import NormConfig

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
    rms = (x.square().sum(-1, keepdim=True) / 8 + 1e-6).sqrt()
    torch.testing.assert_close(norm(x), x / rms * norm.weight, **SIXTY_FOUR)
    theirs = nn.RMSNorm(8, eps=norm.eps, dtype=torch.float64)
    theirs.load_state_dict(norm.state_dict())
    assert torch.equal(norm(x), theirs(x))


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_one_token_is_normalized_without_regard_to_others(kind: type[nn.Module]) -> None:
    norm, x = with_random_gain(kind(8)), torch.randn(4, 8, dtype=torch.float64)
    torch.testing.assert_close(norm(x)[2:3], norm(x[2:3]), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_pre_norm_normalizes_inputs_and_post_norm_outputs(kind: str) -> None:
    x, output = torch.randn(3, 8), torch.randn(3, 8)
    pre = build_residual(NormConfig(kind=kind, place="pre"), 8, 0.0)
    assert torch.equal(pre.prenorm(x), pre.norm(x))
    assert torch.equal(pre.add(x, output), x + output)
    post = build_residual(NormConfig(kind=kind, place="post"), 8, 0.0)
    assert torch.equal(post.prenorm(x), x)
    assert torch.equal(post.add(x, output), post.norm(x + output))


@pytest.mark.parametrize("place", ["pre", "post", "none"])
def test_dropout_applies_to_the_sublayer_and_not_to_the_residual(place: str) -> None:
    x, output = torch.randn(3, 8), torch.randn(3, 8)
    residual = build_residual(NormConfig(place=place), 8, 0.99999)  # next to all is dropped
    assert torch.equal(residual.add(x, output), residual.norm(x) if place == "post" else x)
    assert torch.equal(residual.eval().add(x, output), residual.norm(x + output) if place == "post" else x + output)


def test_post_norm_blocks_return_the_dtype_of_the_sublayer() -> None:
    x, output = torch.randn(3, 8), torch.randn(3, 8).bfloat16()
    for place, precision in {"post": torch.bfloat16, "pre": torch.float32, "none": torch.float32}.items():
        assert build_residual(NormConfig(place=place), 8, 0.0).add(x, output).dtype == precision


def test_without_a_place_nothing_is_normalized() -> None:
    x, output = torch.randn(3, 8), torch.randn(3, 8)
    residual = build_residual(NormConfig(kind="layer", place="none"), 8, 0.0)
    assert torch.equal(residual.prenorm(x), x)
    assert torch.equal(residual.add(x, output), x + output)
    assert not list(residual.parameters())


@pytest.mark.parametrize("kind", ["layer", "batch"])
@pytest.mark.parametrize(("gain", "bias"), [(True, False), (False, True), (False, False)])
def test_gain_and_bias_can_each_be_left_out(kind: str, gain: bool, bias: bool) -> None:
    norm = with_random_gain(build_norm(NormConfig(kind=kind, gain=gain, bias=bias), 8))
    assert {name for name, _ in norm.named_parameters()} == set(["weight"] * gain + ["bias"] * bias)
    bare = build_norm(NormConfig(kind=kind, gain=False, bias=False), 8).double()
    x = torch.randn(5, 8, dtype=torch.float64)
    expected = bare(x) * (norm.weight if gain else 1) + (norm.bias if bias else 0)
    torch.testing.assert_close(norm(x), expected, **SIXTY_FOUR)


def test_rms_norm_without_gain_learns_nothing() -> None:
    assert not list(build_norm(NormConfig(kind="rms", gain=False), 8).parameters())


# --- batch norm --------------------------------------------------------------------------------------------------

VALID = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)


def test_batch_norm_is_its_formula_over_the_real_tokens_and_torchs() -> None:
    norm, x = with_random_gain(BatchNorm(8)), torch.randn(3, 4, 8, dtype=torch.float64)
    theirs = nn.BatchNorm1d(8, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight.copy_(norm.weight)
        theirs.bias.copy_(norm.bias)
    real = x[VALID]  # (N, D)
    mean = real.sum(0) / 7
    variance = ((real - mean) ** 2).sum(0) / 7
    result = norm(x, VALID)[VALID]
    torch.testing.assert_close(result, (real - mean) / (variance + 1e-5).sqrt() * norm.weight + norm.bias, **SIXTY_FOUR)
    torch.testing.assert_close(result, theirs(real), **SIXTY_FOUR)
    torch.testing.assert_close(norm.mean, theirs.running_mean, **SIXTY_FOUR)
    torch.testing.assert_close(norm.variance, theirs.running_var, **SIXTY_FOUR)


def test_batch_norm_never_counts_padding() -> None:
    """Whatever stands there, what comes out, the averages and the gradients are those of a packed batch."""
    x = torch.randn(3, 4, 8, dtype=torch.float64)
    x[~VALID] = 1e6
    pull = torch.randn(7, 8, dtype=torch.float64)
    result = []
    for packed in (False, True):
        norm = BatchNorm(8).double()
        leaf = (x[VALID] if packed else x).clone().requires_grad_()
        whole = norm(leaf) if packed else norm(leaf, VALID)
        assert packed or not whole[~VALID].any()
        output = whole if packed else whole[VALID]
        (gradient,) = torch.autograd.grad(output, leaf, pull)
        result.append((output, norm.mean, norm.variance, gradient if packed else gradient[VALID]))
        assert packed or not gradient[~VALID].any()
    for padded, packed_one in zip(*result, strict=True):
        torch.testing.assert_close(padded, packed_one, **SIXTY_FOUR)


def test_batch_norm_uses_running_averages_in_evaluation() -> None:
    norm = BatchNorm(8).double()
    for _ in range(200):
        norm(3 + 2 * torch.randn(64, 8, dtype=torch.float64))
    norm.eval()
    x = torch.randn(4, 8, dtype=torch.float64)
    before = norm.mean.clone(), norm.variance.clone()
    torch.testing.assert_close(norm(x), (x - norm.mean) / (norm.variance + 1e-5).sqrt(), **SIXTY_FOUR)
    torch.testing.assert_close(norm(x)[2:3], norm(x[2:3]), rtol=0, atol=0)
    assert torch.equal(before[0], norm.mean)
    assert torch.equal(before[1], norm.variance)
    assert (norm.mean - 3).abs().max() < 0.5
    assert (norm.variance - 4).abs().max() < 1.5


def test_batch_norm_of_one_token_uses_running_averages_unchanged() -> None:
    norm, x = BatchNorm(8), torch.randn(1, 8)
    torch.testing.assert_close(norm(x), x, rtol=0, atol=2e-5)  # mean 0, variance 1 and ε
    assert not norm.mean.any()
    two = norm(torch.randn(2, 8)).detach()  # which have a mean of their own
    torch.testing.assert_close(two.sum(0), torch.zeros(8), rtol=0, atol=1e-5)
    assert norm.mean.all()


def test_batch_norm_sums_in_the_precision_of_its_averages() -> None:
    norm, x = BatchNorm(8), torch.randn(5, 8).bfloat16()
    assert torch.equal(norm(x), BatchNorm(8)(x.float()))


def test_frozen_batch_norm_uses_running_averages_unchanged() -> None:
    norm, x = with_random_gain(BatchNorm(8)), torch.randn(5, 8, dtype=torch.float64)
    norm(torch.randn(9, 8, dtype=torch.float64))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    norm.requires_grad_(False)
    expected = norm.eval()(x)
    torch.testing.assert_close(norm.train()(x), expected, rtol=0.0, atol=0.0)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    norm.weight.requires_grad_(True)
    norm.train()(x)
    assert not torch.equal(norm.mean, before["mean"])
