"""y = x Wᵀ + b, with oneDNN's matrix product for float32 on the CPU.

PyTorch sends float32 products on the CPU to MKL, whose kernels for processors of other makers are slower than
oneDNN's, which PyTorch ships too and uses from compiled graphs: 1.4 times slower on an AMD EPYC (Zen 4). Here the
same oneDNN operator is called directly, forward and backward, in training and in decoding. Where it is missing
(other platforms, other types, CUDA) this is plain `torch.nn.functional.linear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def onednn_fits(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's float32 product can take these operands."""
    return bool(
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and weight.dtype == torch.float32
        and x.numel() > 0
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(N, I) × (O, I) → (N, O): x Wᵀ + b by oneDNN, outside autograd."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


class OneDnnLinear(torch.autograd.Function):
    """x Wᵀ + b; backward: dx = dy W by oneDNN, dW = dyᵀ x, db = Σ dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        flat = grad.view(-1, grad.shape[-1])
        grad_x = product(grad, weight.t()) if ctx.needs_input_grad[0] else None
        # MKL is the faster one for this shape: few, long dot products (measured: oneDNN at best even)
        grad_weight = flat.t() @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
        grad_bias = flat.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(…, I) → (…, O): x Wᵀ + b by the fastest kernel that computes it in the operands' precision."""
    if not onednn_fits(x, weight):
        return nn.functional.linear(x, weight, bias)
    learned = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and learned:
        result: Tensor = OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return result
    return product(x, weight, bias)


class Linear(nn.Linear):
    """`torch.nn.Linear`, Xavier-uniform, computed by `linear`."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
