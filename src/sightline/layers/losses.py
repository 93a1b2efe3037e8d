"""Losses of features or logits against labels: label-smoothed cross entropy and R-Drop.

Models return features; what is minimized lives here. Targets equal to `PAD` count for nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.layers.kernels import triton_takes
from sightline.layers.linear import add_product, blockwise_precision, product

PAD = 0  # the label of padding: see text/tokenizer.py, which layers do not import
_ROWS = 512  # rows of logits computed at a time on the CPU: enough for a good product, few enough to stay in cache
_SMALL = 1e-30  # a probability below which float32 has too few digits for its logarithm


class Loss(NamedTuple):
    """Sums over the real target tokens of a batch."""

    total: Tensor  # label-smoothed cross entropy: what is minimized
    nll: Tensor  # −log p of the right tokens: what is reported
    counts: Tensor | None = None  # what layers counted on the way, where some do (layers/experts.py)

    def detached(self) -> Loss:
        """The same outside autograd."""
        return Loss(self.total.detach(), self.nll.detach(), self.counts)


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Loss:
    """−(1 − ε) log p(y) − ε/V Σ_v log p(v), summed over targets that are not PAD (Szegedy et al. 2016, §7)."""
    logits = logits.float()
    real = targets != PAD
    whole = logits.logsumexp(-1)
    right = logits.gather(-1, targets[..., None])[..., 0]
    nll = ((whole - right) * real).sum()
    if smoothing == 0:
        return Loss(nll, nll.detach())
    uniform = ((whole - logits.mean(-1)) * real).sum()
    return Loss((1 - smoothing) * nll + smoothing * uniform, nll.detach())


class ProjectedCrossEntropy(torch.autograd.Function):
    """The same from features, without ever holding all the logits: gradients are made on the way forward.

    For a block of rows x with logits l = x Wᵀ + b and p = softmax(l):
        loss = −(1 − ε) log p(y) − ε (mean(l) − lse(l)),  dl = p − (1 − ε) 1_y − ε/V.
    The constant ε/V is never written into the (rows, V) block: its share of dx, dW and db is rank one and added once.
    Products are taken in `precision`, all else and all sums in that of the weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        smoothing: float,
        precision: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        size, precision = weight.shape[0], precision or weight.dtype
        inputs, matrix, shift = (part.to(precision) for part in (features, weight, bias))
        weight_sum, bias_sum = weight.sum(0), bias.sum()  # (D,), ()
        grad_features = torch.empty_like(features)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None  # it may be frozen
        grad_bias = torch.zeros_like(bias)
        nll = weight.new_zeros(())
        uniform = weight.new_zeros(())  # Σ (mean(l) − lse(l))
        for start in range(0, len(features), _ROWS):
            rows = slice(start, start + _ROWS)
            x, right = inputs[rows], targets[rows, None]
            logits = product(x, matrix, shift).to(weight.dtype)  # (rows, V)
            hit = logits.gather(1, right)
            chances, log_hit = _softmax(logits, right)
            nll -= log_hit.sum()
            if smoothing:
                uniform += (((x.to(weight.dtype) @ weight_sum) + bias_sum) / size - (hit - log_hit)[:, 0]).sum()
            chances.scatter_add_(1, right, chances.new_full(right.shape, smoothing - 1.0))
            grad_bias += chances.sum(0)
            grad = chances.to(precision)
            grad_features[rows] = product(grad, matrix.t())
            if grad_weight is not None:
                add_product(grad_weight, grad.t(), x)
        if smoothing:
            grad_features -= smoothing / size * weight_sum
            if grad_weight is not None:
                grad_weight -= smoothing / size * features.sum(0)
            grad_bias -= smoothing / size * len(features)
        ctx.save_for_backward(grad_features, grad_weight, grad_bias)
        ctx.mark_non_differentiable(nll)
        return (1.0 - smoothing) * nll - smoothing * uniform, nll

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None, None, None]:
        grad_features, grad_weight, grad_bias = ctx.saved_tensors
        by_weight = None if grad_weight is None else grad_weight.mul_(grad)
        return grad_features.mul_(grad), by_weight, grad_bias.mul_(grad), None, None, None


def _softmax(logits: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """p (rows, V), and log p of the right ones (rows, 1).

    log p is the logarithm of p, which spares a pass over all of them, unless that is too small to have one.
    """
    chances = torch.softmax(logits, dim=-1)
    chosen = chances.gather(1, right)
    if bool(chosen.min() > _SMALL):
        return chances, chosen.log()
    return chances, torch.log_softmax(logits, dim=-1).gather(1, right)


def cross_entropy(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, smoothing: float) -> Loss:
    """The loss of features (…, D) against targets (…,), by the fastest way there is for them."""
    features, targets = features.reshape(-1, features.shape[-1]), targets.reshape(-1)
    precision = blockwise_precision(features, weight)
    if precision is not None:
        real = targets != PAD
        if not bool(real.all()):
            features, targets = features[real], targets[real]
        total, nll = ProjectedCrossEntropy.apply(features, weight, bias, targets, smoothing, precision)  # type: ignore[no-untyped-call]
        return Loss(total, nll)
    logits = nn.functional.linear(features, weight, bias)
    if triton_takes(logits) and not torch.compiler.is_compiling():
        from sightline.layers.kernels.cross_entropy import FusedCrossEntropy

        return Loss(*FusedCrossEntropy.apply(logits, targets, smoothing))  # type: ignore[no-untyped-call]
    return smoothed_cross_entropy(logits, targets, smoothing)


_PAIR_ROWS = 256  # rows of logits of each pass computed at a time on the CPU


def both_divergences(first: Tensor, second: Tensor) -> Tensor:
    """KL(p ‖ q) + KL(q ‖ p) = Σ_v (p − q)(log p − log q) of log-probabilities (…, V) → (…,)."""
    return ((first.exp() - second.exp()) * (first - second)).sum(-1)


def rdrop_from_logits(first: Tensor, second: Tensor, targets: Tensor, smoothing: float, alpha: float) -> Loss:
    """The loss of logits (…, V) of two passes, summed over targets (…,) that are not PAD; nll is the mean of both."""
    one, other = (smoothed_cross_entropy(logits, targets, smoothing) for logits in (first, second))
    gaps = both_divergences(first.float().log_softmax(-1), second.float().log_softmax(-1))
    apart = (gaps * (targets != PAD)).sum()
    return Loss((one.total + other.total) / 2 + alpha / 4 * apart, (one.nll + other.nll) / 2)


class ProjectedRDrop(torch.autograd.Function):
    """The same from features, without ever holding all logits: gradients are made on the way forward.

    With δ = log p − log q, the gradient by the logits of the first pass is
        ½ (p − (1 − ε) 1_y − ε/V) + α/4 (p (δ − KL(p ‖ q)) + p − q),
    and that of the second is the same with p and q exchanged. Products are taken in `precision`, all else and all sums
    in that of the weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        smoothing: float,
        alpha: float,
        precision: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        precision = precision or weight.dtype
        *sides, matrix, shift = (part.to(precision) for part in (first, second, weight, bias))
        grads = (torch.empty_like(first), torch.empty_like(second))
        grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        nll, uniform, apart = (weight.new_zeros(()) for _ in range(3))
        for start in range(0, len(first), _PAIR_ROWS):
            rows = slice(start, start + _PAIR_ROWS)
            right = targets[rows, None]
            logits = [product(side[rows], matrix, shift).to(weight.dtype) for side in sides]  # (rows, V) each
            logs = [torch.log_softmax(each, dim=-1) for each in logits]
            nll -= sum(each.gather(1, right).sum() for each in logs) / 2
            uniform -= sum(each.mean(-1).sum() for each in logs) / 2
            apart += both_divergences(*logs).sum()
            for side, grad, own, other in zip(sides, grads, logs, reversed(logs), strict=True):
                block = _gradient(own, other, right, smoothing, alpha)
                grad_bias += block.sum(0)
                rounded = block.to(precision)
                grad[rows] = product(rounded, matrix.t())
                add_product(grad_weight, rounded.t(), side[rows])
        ctx.save_for_backward(*grads, grad_weight, grad_bias)
        ctx.mark_non_differentiable(nll)
        return (1 - smoothing) * nll + smoothing * uniform + alpha / 4 * apart, nll

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *(part * grad for part in ctx.saved_tensors), None, None, None, None


def _gradient(own: Tensor, other: Tensor, right: Tensor, smoothing: float, alpha: float) -> Tensor:
    """By the logits of one pass (rows, V), from the log-probabilities of both."""
    p, gap = own.exp(), own - other
    apart = (p * gap).sum(-1, keepdim=True)  # KL(p ‖ q)
    grad = p * (0.5 + alpha / 4 * (gap - apart + 1)) - alpha / 4 * other.exp() - 0.5 * smoothing / own.shape[1]
    return grad.scatter_add_(1, right, grad.new_full(right.shape, 0.5 * (smoothing - 1)))


def rdrop(
    first: Tensor, second: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, smoothing: float, alpha: float
) -> Loss:
    """The loss of features (…, D) of two passes against targets (…,), by the fastest way there is for them."""
    first, second = (features.reshape(-1, features.shape[-1]) for features in (first, second))
    targets = targets.reshape(-1)
    precision = blockwise_precision(first, weight)
    if precision is not None:
        real = targets != PAD
        total, nll = ProjectedRDrop.apply(  # type: ignore[no-untyped-call]
            first[real], second[real], weight, bias, targets[real], smoothing, alpha, precision
        )
        return Loss(total, nll)
    one, other = (nn.functional.linear(features, weight, bias) for features in (first, second))
    return rdrop_from_logits(one, other, targets, smoothing, alpha)
