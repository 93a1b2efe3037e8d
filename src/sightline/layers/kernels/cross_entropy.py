"""Smoothed cross entropy of logits on CUDA, as Triton kernels.

Logits are the largest tensor of a training step: 18,000 targets × 32,000 words are more than a gigabyte, and each of
PyTorch's operations reads and writes it again, in float32. These kernels read it once forward and once backward.
(A compiled step does not need them: torch.compile fuses the same way.)

    lse = log Σ_v exp l_v,  loss = lse − (1 − ε) l_y − ε mean(l),  dl_v = exp(l_v − lse) − (1 − ε) [v = y] − ε / V
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_WORDS, _WARPS = 4_096, 8  # read at a time by one program


@triton.jit
def _forward(logits, targets, whole, nll, uniform, size, PADDING: tl.constexpr, WORDS: tl.constexpr):
    """Log-sum-exp of one row, −log p of its target, and the mean of −log p; zeros for padding."""
    row = tl.program_id(0).to(tl.int64)
    word = tl.arange(0, WORDS)
    logits += row * size
    best = tl.full([WORDS], -float("inf"), tl.float32)
    total = tl.zeros([WORDS], tl.float32)
    summed = tl.zeros([WORDS], tl.float32)
    for start in range(0, size, WORDS):
        there = start + word < size
        some = tl.load(logits + start + word, mask=there, other=-float("inf")).to(tl.float32)
        peak = tl.maximum(best, some)
        level = tl.where(peak == -float("inf"), 0.0, peak)
        total = total * tl.exp(best - level) + tl.exp(some - level)
        summed += tl.where(there, some, 0.0)
        best = peak
    peak = tl.max(best, 0)
    lse = peak + tl.log(tl.sum(total * tl.exp(best - peak), 0))
    target = tl.load(targets + row)
    real = target != PADDING
    right = tl.load(logits + target).to(tl.float32)
    tl.store(whole + row, lse)
    tl.store(nll + row, tl.where(real, lse - right, 0.0))
    tl.store(uniform + row, tl.where(real, lse - tl.sum(summed, 0) / size, 0.0))


@triton.jit
def _backward(
    logits, targets, whole, pull, grad, size, smoothing, PADDING: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """The gradient of some logits of one row."""
    row, word = tl.program_id(0).to(tl.int64), tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    there = word < size
    target = tl.load(targets + row)
    strength = tl.where(target == PADDING, 0.0, tl.load(pull))
    some = tl.load(logits + row * size + word, mask=there, other=0.0).to(tl.float32)
    share = tl.exp(some - tl.load(whole + row)) - smoothing / size
    share = tl.where(word == target, share - (1.0 - smoothing), share) * strength
    tl.store(grad + row * size + word, share.to(grad.dtype.element_ty), mask=there)


class FusedCrossEntropy(torch.autograd.Function):
    """Logits (N, V) and targets (N,) → smoothed loss and −log p, summed over the targets that are not padding."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, ignore_index: int = 0
    ) -> tuple[Tensor, Tensor]:
        logits, targets = logits.contiguous(), targets.contiguous()
        rows, size = logits.shape
        whole, nll, uniform = logits.new_empty(3, rows, dtype=torch.float32)
        _forward[(rows,)](
            logits, targets, whole, nll, uniform, size, PADDING=ignore_index, WORDS=_WORDS, num_warps=_WARPS
        )  # fmt: skip
        ctx.save_for_backward(logits, targets, whole)
        ctx.smoothing, ctx.ignore_index = smoothing, ignore_index
        right = nll.sum()
        total = right.clone() if smoothing == 0 else (1 - smoothing) * right + smoothing * uniform.sum()
        ctx.mark_non_differentiable(right)
        return total, right

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, pull: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets, whole = ctx.saved_tensors
        rows, size = logits.shape
        grad = torch.empty_like(logits)
        _backward[(rows, triton.cdiv(size, _WORDS))](
            logits, targets, whole, pull, grad, size, ctx.smoothing,
            PADDING=ctx.ignore_index, WORDS=_WORDS, num_warps=_WARPS,
        )  # fmt: skip
        return grad, None, None, None
