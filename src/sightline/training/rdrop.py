"""R-Drop: two passes with different dropout should say the same (Wu et al. 2021).

For the distributions p and q that the two passes give at a wanted token y:

    loss = ½ (CE(p, y) + CE(q, y)) + α/2 · ½ (KL(p ‖ q) + KL(q ‖ p)),

half of the paper's, which adds the cross entropies up (its eq. 3): the α of the paper is the α here. CE is
label-smoothed as in plain training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.layers.linear import add_product, blockwise_precision, product
from sightline.text.tokenizer import PAD
from sightline.training.objectives import Loss, smoothed_cross_entropy

_ROWS = 256  # rows of logits of each pass computed at a time on the CPU


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
        for start in range(0, len(first), _ROWS):
            rows = slice(start, start + _ROWS)
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
