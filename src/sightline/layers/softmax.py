"""Softmax over what may be seen: a row with nothing to see gives zeros, never NaN."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class ShortSoftmax(torch.autograd.Function):
    """Softmax over a short last axis on the CPU, −∞ anywhere; a row of nothing but −∞ gives zeros.

    PyTorch's kernel takes each row alone, and below 16 elements (a vector of AVX-512) without vectors: a quarter of a
    microsecond a row, which is as much as the products around it. These passes over all rows at once take a quarter.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        highest = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)  # −∞ − −∞ is not a number
        weights = (scores - highest).exp_()
        weights /= weights.sum(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).tiny)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        product = grad * weights
        result: Tensor = product.sub_(weights * product.sum(-1, keepdim=True))
        return result


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis where `mask` is True; a row with nothing to see gives zeros, never NaN.

    Scores are finite: what may not be seen is said by the mask.
    """
    if _few(scores):
        hidden = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
        result: Tensor = ShortSoftmax.apply(hidden)  # type: ignore[no-untyped-call]
        return result
    if mask is None:
        return torch.softmax(scores, dim=-1)
    if _all_see(scores, mask):
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    # bfloat16 is widened here: CUDA's autocast would do it inside, where the derivative does not expect it
    wide = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    return torch._safe_softmax(wide.masked_fill(~mask, float("-inf")), dim=-1).to(scores.dtype)


def _few(scores: Tensor) -> bool:
    """Whether rows are shorter than a vector register, on the CPU."""
    return _plain(scores) and 0 < scores.shape[-1] < 16


def _all_see(scores: Tensor, mask: Tensor) -> bool:
    """Whether no row is without keys, where it is cheaper to ask the mask (all heads have one) than to look for NaN."""
    return _plain(scores) and not torch.is_grad_enabled() and bool(mask.any(-1).all())


def _plain(scores: Tensor) -> bool:
    """Float32 on the CPU, not on its way into a compiled graph."""
    return scores.device.type == "cpu" and scores.dtype == torch.float32 and not torch.compiler.is_compiling()
