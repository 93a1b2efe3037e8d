"""The loss against its formula, and the one that never holds the logits against the one that does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sightline.layers import losses
from sightline.layers.kernels import cpu_multiplies_bfloat16
from sightline.layers.losses import Loss, ProjectedCrossEntropy, cross_entropy, smoothed_cross_entropy

PAD, WIDTH, SIZE = 0, 12, 37
SMOOTHINGS = [0.0, 0.1, 0.6]


def by_formula(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[float, float]:
    """−(1 − ε) log p(y) − ε/V Σ_v log p(v), and −log p(y), over all but PAD, in float64, word by word."""
    total = nll = 0.0
    for row, target in zip(logits.double().reshape(-1, logits.shape[-1]), targets.flatten().tolist(), strict=True):
        if target != PAD:
            logs = row - row.exp().sum().log()
            nll -= logs[target].item()
            total -= ((1 - smoothing) * logs[target] + smoothing / len(logs) * logs.sum()).item()
    return total, nll


def some_case(rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    features, weight, bias = torch.randn(rows, WIDTH), torch.randn(SIZE, WIDTH), torch.randn(SIZE)
    return features, weight, bias, torch.randint(1, SIZE, (rows,))


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("shape", [(30,), (5, 6)])
def test_the_loss_is_its_formula_and_padding_counts_for_nothing(smoothing: float, shape: tuple[int, ...]) -> None:
    logits, targets = 3 * torch.randn(*shape, SIZE), torch.randint(0, SIZE, shape)
    targets.view(-1)[::4] = PAD
    loss = smoothed_cross_entropy(logits.requires_grad_(), targets, smoothing)
    total, nll = by_formula(logits, targets, smoothing)
    # float32 sums of some twenty losses near 5
    assert loss.total.item() == pytest.approx(total, rel=1e-6)
    assert loss.nll.item() == pytest.approx(nll, rel=1e-6)
    assert not loss.nll.requires_grad


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_it_is_torchs_cross_entropy_with_its_gradient(smoothing: float) -> None:
    logits, targets = torch.randn(20, SIZE, requires_grad=True), torch.randint(0, SIZE, (20,))
    targets[3] = PAD
    ours = smoothed_cross_entropy(logits, targets, smoothing).total
    theirs = torch.nn.functional.cross_entropy(
        logits, targets, ignore_index=PAD, reduction="sum", label_smoothing=smoothing
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    gradients = (torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)  # probabilities in float32


def test_a_loss_in_bfloat16_is_computed_in_float32() -> None:
    logits, targets = torch.randn(20, SIZE).bfloat16(), torch.randint(1, SIZE, (20,))
    assert smoothed_cross_entropy(logits, targets, 0.1).total.item() == pytest.approx(
        by_formula(logits, targets, 0.1)[0], rel=1e-6
    )


def both(case: tuple[Tensor, ...], smoothing: float, scale: float = 1.0) -> list[tuple[Loss, list[Tensor]]]:
    """Losses and the gradients of features, weight and bias: without the logits, and with them."""
    results = []
    for kind in (ProjectedCrossEntropy, None):
        leaves = [part.clone().requires_grad_() for part in case[:3]]
        if kind is not None:
            loss = Loss(*kind.apply(*leaves, case[3], smoothing))
        else:
            loss = smoothed_cross_entropy(torch.nn.functional.linear(*leaves), case[3], smoothing)
        (scale * loss.total).backward()
        results.append((loss, [leaf.grad for leaf in leaves]))
    return results


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
def test_blockwise_cross_entropy_has_the_same_loss_and_gradients(
    smoothing: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "_ROWS", 16)
    ours, theirs = both(some_case(rows), smoothing, scale=0.25)
    torch.testing.assert_close(ours[0].total, theirs[0].total, rtol=2e-6, atol=0)
    torch.testing.assert_close(ours[0].nll, theirs[0].nll, rtol=2e-6, atol=0)
    assert not ours[0].nll.requires_grad
    for mine, other in zip(ours[1], theirs[1], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=5e-6)  # float32 sums of up to 40 terms, in two orders


def test_blocks_of_the_size_that_is_used_do_the_same() -> None:
    ours, theirs = both(some_case(losses._ROWS + 100), 0.1)
    torch.testing.assert_close(ours[0].total, theirs[0].total, rtol=2e-6, atol=0)
    for mine, other in zip(ours[1], theirs[1], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=5e-5)  # float32 sums of 612 terms


@pytest.mark.skipif(not cpu_multiplies_bfloat16(), reason="this CPU has no products of bfloat16")
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("features_in", [torch.float32, torch.bfloat16])
def test_in_mixed_precision_products_are_rounded_and_sums_are_not(smoothing: float, features_in: torch.dtype) -> None:
    """The features, weights and logits are rounded to bfloat16, and the gradient of the logits once more."""
    features, weight, bias, targets = some_case(losses._ROWS + 100)
    features = features.to(features_in)
    leaves = [part.clone().requires_grad_() for part in (features, weight, bias)]
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(*leaves, targets, smoothing)
    assert "ProjectedCrossEntropy" in loss.total.grad_fn.name() and loss.total.dtype == torch.float32
    result = torch.autograd.grad(loss.total, leaves)
    rounded = [part.bfloat16().double().requires_grad_() for part in (features, weight, bias)]
    exact = smoothed_cross_entropy(torch.nn.functional.linear(*rounded).float(), targets, smoothing)
    expected = torch.autograd.grad(exact.total, rounded)
    assert loss.total.item() == pytest.approx(exact.total.item(), rel=1e-4)  # logits are rounded up or down
    assert loss.nll.item() == pytest.approx(exact.nll.item(), rel=1e-4)
    for mine, other, leaf in zip(result, expected, leaves, strict=True):
        assert mine.dtype == leaf.dtype
        assert float((mine.double() - other).norm()) < 2**-7 * float(other.norm())


def test_tiny_probabilities_have_a_finite_loss() -> None:
    """Its probability is 0 in float32, whose logarithm is not its loss."""
    features, weight, bias = torch.ones(2, 1), torch.tensor([[0.0], [200.0], [0.0]]), torch.zeros(3)
    loss = cross_entropy(features.requires_grad_(), weight, bias, torch.tensor([2, 1]), 0.0)
    assert loss.nll.item() == 200.0


def test_a_frozen_output_layer_has_no_gradient_and_leaves_other_gradients_unchanged() -> None:
    case = some_case(20)
    _, (features, _, bias) = both(case, 0.1)[0]
    leaves = [case[0].clone().requires_grad_(), case[1].clone(), case[2].clone().requires_grad_()]
    ProjectedCrossEntropy.apply(*leaves, case[3], 0.1)[0].backward()
    assert leaves[1].grad is None
    torch.testing.assert_close(leaves[0].grad, features)
    torch.testing.assert_close(leaves[2].grad, bias)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("learning", [True, False])
def test_all_kernels_ignore_padding(smoothing: float, learning: bool) -> None:
    features, weight, bias, targets = some_case(24)
    targets[[0, 7, 23]] = PAD
    features = features.view(4, 6, WIDTH).requires_grad_(learning)
    with torch.set_grad_enabled(learning):
        loss = cross_entropy(features, weight, bias, targets.view(4, 6), smoothing)
    total, nll = by_formula(torch.nn.functional.linear(features, weight, bias).detach(), targets, smoothing)
    assert loss.total.item() == pytest.approx(total, rel=2e-6)
    assert loss.nll.item() == pytest.approx(nll, rel=2e-6)
    if learning:
        (gradient,) = torch.autograd.grad(loss.total, features)
        assert not gradient.view(24, WIDTH)[[0, 7, 23]].any()
        assert gradient.view(24, WIDTH)[1].abs().min() > 0


def test_a_batch_of_nothing_but_padding_has_no_loss() -> None:
    features, weight, bias, _ = some_case(4)
    features.requires_grad_()
    loss = cross_entropy(features, weight, bias, torch.full((4,), PAD), 0.1)
    loss.total.backward()
    assert loss.total.item() == 0.0
    assert not features.grad.any()


def test_outside_autograd_a_loss_is_the_same_with_all_that_was_counted() -> None:
    total, counts = torch.tensor(2.0, requires_grad=True), torch.tensor([3, 1])
    result = Loss(total, total + 1, counts).detached()
    assert (float(result.total), float(result.nll)) == (2.0, 3.0) and result.counts is counts
    assert not result.total.requires_grad and not result.nll.requires_grad


@pytest.mark.kernels
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [SIZE, 4_096, 10_001])  # words: part of what a kernel reads at a time, all of it, more
def test_the_loss_of_our_kernels_and_its_gradient_are_those_of_the_formula(
    smoothing: float, dtype: torch.dtype, size: int, kernels: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "blockwise_precision", lambda *operands: None)  # nobody else is asked
    shapes = ((70, 8), (size, 8), (size,))
    features, weight, bias = (torch.randn(*shape, device=kernels, dtype=dtype) for shape in shapes)
    targets = torch.randint(1, size, (70,), device=kernels)
    targets[::5] = PAD
    logits = torch.nn.functional.linear(features, weight, bias)
    exact = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        exact, targets, ignore_index=PAD, reduction="sum", label_smoothing=smoothing
    )
    (slope,) = torch.autograd.grad(0.3 * expected, exact)
    leaf = features.requires_grad_()
    loss = cross_entropy(leaf, weight, bias, targets, smoothing)
    (result,) = torch.autograd.grad(0.3 * loss.total, leaf)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.nll.item() == pytest.approx(by_formula(logits.cpu(), targets.cpu(), smoothing)[1], rel=1e-5)
    assert not loss.nll.requires_grad and "FusedCrossEntropy" in loss.total.grad_fn.name()
    half = dtype == torch.bfloat16
    torch.testing.assert_close(
        result.double(), slope @ weight.double(), rtol=0.02 if half else 1e-4, atol=0.02 if half else 1e-5
    )


@pytest.mark.kernels
def test_infinite_logits_give_no_nan_in_triton_kernels(kernels: torch.device) -> None:
    """Words that cannot be (−∞) have no probability and no gradient; nor need numbers lie side by side."""
    logits = torch.randn(9_000, 3, device=kernels).t()
    logits[:, 100:5_000] = -torch.inf
    targets = torch.tensor([7, 1, 8_000, 2, PAD], device=kernels)[::2]
    exact = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(exact, targets, ignore_index=PAD, reduction="sum").backward()
    from sightline.layers.kernels.cross_entropy import FusedCrossEntropy

    logits.requires_grad_()
    FusedCrossEntropy.apply(logits, targets, 0.0)[0].backward()
    torch.testing.assert_close(logits.grad, exact.grad, rtol=1e-5, atol=1e-7)
