"""Cross entropy with label smoothing.

    loss = −(1 − ε) log p(y) − ε/V Σ_v log p(v),  p = softmax(W f + b)

with label smoothing ε (Szegedy et al. 2016, §7), summed over all targets that are not padding; ε = 0 gives the negative
log-likelihood. `cross_entropy` chooses the kernel:

- `ProjectedCrossEntropy` on the CPU: blocks of logits
- kernels/cross_entropy.py on CUDA: reads the logits once forward and once backward
- `smoothed_cross_entropy`, the formula: elsewhere and in compiled graphs

Shapes: N targets, D features, V tokens or labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.layers.kernels import supports_triton
from sightline.layers.linear import add_product, blockwise_precision, product

_PAD = 0  # default of ignore_index: the id of <pad> in every vocabulary
_ROWS = 512  # rows of logits per block on the CPU: large enough for fast products, small enough for the cache
_SMALL = 1e-30  # probabilities below this are too imprecise for a logarithm in float32


class Loss(NamedTuple):
    """Sums over the targets of a batch that are not padding."""

    total: Tensor  # the training loss
    nll: Tensor  # −log p of the targets, for reports
    counts: Tensor | None = None  # tokens per expert and dropped tokens, for models with experts
    carried: dict[str, Tensor] | None = None  # final state of a language model, for the next batch

    def detached(self) -> Loss:
        """The same values outside autograd."""
        return self._replace(total=self.total.detach(), nll=self.nll.detach())


def cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    label_smoothing: float,
    ignore_index: int = _PAD,
) -> Loss:
    """Loss of features (…, D) for targets (…,), by the fastest kernel for the device and dtype."""
    features, targets = features.reshape(-1, features.shape[-1]), targets.reshape(-1)  # (N, D), (N,)
    precision = blockwise_precision(features, weight)
    if precision is not None:
        real = targets != ignore_index
        if not bool(real.all()):
            features, targets = features[real], targets[real]
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        total, nll = ProjectedCrossEntropy.apply(features, weight, bias, targets, label_smoothing, precision)  # type: ignore[no-untyped-call]
        return Loss(total, nll)
    logits = nn.functional.linear(features, weight, bias)  # (N, V)
    if supports_triton(logits) and not torch.compiler.is_compiling():
        from sightline.layers.kernels.cross_entropy import FusedCrossEntropy

        return Loss(*FusedCrossEntropy.apply(logits, targets, label_smoothing, ignore_index))  # type: ignore[no-untyped-call]
    return smoothed_cross_entropy(logits, targets, label_smoothing, ignore_index)


def binary_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Loss:
    """−Σ y log σ(z) + (1 − y) log(1 − σ(z)) of logits z and targets y (B, C); with ε, y is (1 − ε) y + ε/2."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    targets = targets.to(logits.dtype)
    nll = nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    if label_smoothing == 0:
        return Loss(nll, nll.detach())
    smoothed = (1 - label_smoothing) * targets + label_smoothing / 2
    return Loss(nn.functional.binary_cross_entropy_with_logits(logits, smoothed, reduction="sum"), nll.detach())


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float, ignore_index: int = _PAD) -> Loss:
    """Loss of logits (…, V) for targets (…,), by the formula."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    real = targets != ignore_index
    lse = logits.logsumexp(-1)
    target_logits = logits.gather(-1, targets[..., None])[..., 0]
    nll = ((lse - target_logits) * real).sum()
    if label_smoothing == 0:
        return Loss(nll, nll.detach())
    uniform = ((lse - logits.mean(-1)) * real).sum()  # −1/V Σ_v log p(v)
    return Loss((1 - label_smoothing) * nll + label_smoothing * uniform, nll.detach())


class ProjectedCrossEntropy(torch.autograd.Function):
    """The same loss by blocks of rows, with gradients computed in the forward pass, without storing all logits.

    For a block of rows x with logits l = x Wᵀ + b and p = softmax(l):
        loss = −(1 − ε) log p(y) − ε (mean(l) − lse(l)),  dl = p − (1 − ε) 1_y − ε/V.
    The terms of ε/V in dx, dW and db have rank one and are added at the end. Products use `precision`, everything else
    the dtype of the weight.
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
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None  # None for a frozen weight
        grad_bias = torch.zeros_like(bias)
        nll = weight.new_zeros(())
        uniform = weight.new_zeros(())  # Σ (mean(l) − lse(l))
        for start in range(0, len(features), _ROWS):
            rows = slice(start, start + _ROWS)
            x, labels = inputs[rows], targets[rows, None]
            logits = product(x, matrix, shift).to(weight.dtype)  # (rows, V)
            target_logits = logits.gather(1, labels)  # (rows, 1)
            probabilities, target_logs = _softmax(logits, labels)
            nll -= target_logs.sum()
            if smoothing:
                lse = (target_logits - target_logs)[:, 0]
                uniform += (((x.to(weight.dtype) @ weight_sum) + bias_sum) / size - lse).sum()
            probabilities.scatter_add_(1, labels, probabilities.new_full(labels.shape, smoothing - 1.0))
            grad_bias += probabilities.sum(0)
            grad = probabilities.to(precision)
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
        grad_weight = None if grad_weight is None else grad_weight.mul_(grad)
        return grad_features.mul_(grad), grad_weight, grad_bias.mul_(grad), None, None, None


def _softmax(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """p (rows, V), and log p of the labels (rows, 1): log_softmax is needed for very small p only."""
    probabilities = torch.softmax(logits, dim=-1)
    label_probabilities = probabilities.gather(1, labels)
    if bool(label_probabilities.min() > _SMALL):
        return probabilities, label_probabilities.log()
    return probabilities, torch.log_softmax(logits, dim=-1).gather(1, labels)
