"""Triton kernels for the label-smoothed cross entropy of logits on CUDA.

Logits are the largest tensor of a training step: 18,000 targets × 32,000 words take more than a gigabyte. PyTorch's
operations read and write them several times in float32, these kernels once forward and once backward. (Compiled steps
do not need them: torch.compile fuses the same operations.)

    lse = log Σ_v exp l_v,  loss = lse − (1 − ε) l_y − ε mean(l),  dl_v = exp(l_v − lse) − (1 − ε) [v = y] − ε / V
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_WORDS, _WARPS = 4_096, 8  # logits per iteration, warps


@triton.jit
def _forward(logits, targets, lses, nll, uniform, size, PADDING: tl.constexpr, WORDS: tl.constexpr):
    """Log-sum-exp of one row, −log p of its target, and the mean of −log p; zeros for padding."""
    row = tl.program_id(0).to(tl.int64)
    word = tl.arange(0, WORDS)
    logits += row * size
    running_max = tl.full([WORDS], -float("inf"), tl.float32)
    total = tl.zeros([WORDS], tl.float32)
    logit_sum = tl.zeros([WORDS], tl.float32)
    for start in range(0, size, WORDS):
        valid = start + word < size
        values = tl.load(logits + start + word, mask=valid, other=-float("inf")).to(tl.float32)
        new_max = tl.maximum(running_max, values)
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)
        total = total * tl.exp(running_max - shift) + tl.exp(values - shift)
        logit_sum += tl.where(valid, values, 0.0)
        running_max = new_max
    maximum = tl.max(running_max, 0)
    lse = maximum + tl.log(tl.sum(total * tl.exp(running_max - maximum), 0))
    target = tl.load(targets + row)
    real = target != PADDING
    target_logit = tl.load(logits + target).to(tl.float32)
    tl.store(lses + row, lse)
    tl.store(nll + row, tl.where(real, lse - target_logit, 0.0))
    tl.store(uniform + row, tl.where(real, lse - tl.sum(logit_sum, 0) / size, 0.0))


@triton.jit
def _backward(
    logits, targets, lses, loss_grad, grad, size, smoothing, PADDING: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """The gradient of some logits of one row."""
    row, word = tl.program_id(0).to(tl.int64), tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    valid = word < size
    target = tl.load(targets + row)
    scale = tl.where(target == PADDING, 0.0, tl.load(loss_grad))
    values = tl.load(logits + row * size + word, mask=valid, other=0.0).to(tl.float32)
    result = tl.exp(values - tl.load(lses + row)) - smoothing / size
    result = tl.where(word == target, result - (1.0 - smoothing), result) * scale
    tl.store(grad + row * size + word, result.to(grad.dtype.element_ty), mask=valid)


class FusedCrossEntropy(torch.autograd.Function):
    """Logits (N, V) and targets (N,) → smoothed loss and −log p, summed over the targets that are not padding."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, ignore_index: int = 0
    ) -> tuple[Tensor, Tensor]:
        logits, targets = logits.contiguous(), targets.contiguous()
        rows, size = logits.shape
        lses, nll, uniform = logits.new_empty(3, rows, dtype=torch.float32)
        _forward[(rows,)](
            logits, targets, lses, nll, uniform, size, PADDING=ignore_index, WORDS=_WORDS, num_warps=_WARPS
        )  # fmt: skip
        ctx.save_for_backward(logits, targets, lses)
        ctx.smoothing, ctx.ignore_index = smoothing, ignore_index
        nll = nll.sum()
        total = nll.clone() if smoothing == 0 else (1 - smoothing) * nll + smoothing * uniform.sum()
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, loss_grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets, lses = ctx.saved_tensors
        rows, size = logits.shape
        grad = torch.empty_like(logits)
        _backward[(rows, triton.cdiv(size, _WORDS))](
            logits, targets, lses, loss_grad, grad, size, ctx.smoothing,
            PADDING=ctx.ignore_index, WORDS=_WORDS, num_warps=_WARPS,
        )  # fmt: skip
        return grad, None, None, None
