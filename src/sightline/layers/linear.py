"""y = x Wᵀ + b, with oneDNN's matrix product for float32 on the CPU.

PyTorch's float32 products on the CPU use MKL, which is 1.4 times slower than oneDNN on an AMD EPYC (Zen 4). PyTorch
ships oneDNN too, and uses it in compiled graphs; here the same operator is called directly, forward and backward. For
other platforms, dtypes and devices this is `torch.nn.functional.linear`.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.layers.kernels import cpu_multiplies_bfloat16

Module = TypeVar("Module", bound=nn.Module)


def onednn_fits(x: Tensor, weight: Tensor) -> bool:
    """True if oneDNN's float32 product supports these operands."""
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


def blockwise_precision(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """The dtype of oneDNN's products of these operands in training; None if it does not support them.

    That of the operands, or bfloat16 under autocast if the CPU has instructions for it.
    """
    if not torch.is_grad_enabled():
        return None
    if onednn_fits(x, weight):
        return x.dtype
    mixed = x.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    rounded = mixed and torch.get_autocast_dtype("cpu") == torch.bfloat16 and weight.dtype == torch.float32
    return torch.bfloat16 if rounded and x.numel() > 0 and cpu_multiplies_bfloat16() else None


def add_product(total: Tensor, x: Tensor, y: Tensor) -> None:
    """total += x y. The product is rounded to the dtype of its factors, the sum is not."""
    if x.dtype == total.dtype:
        total.addmm_(x, y)
    else:
        total += x @ y


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
        # MKL: oneDNN is not faster for few, long dot products
        grad_weight = flat.t() @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
        grad_bias = flat.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b: (…, I) → (…, O), by the fastest kernel for the operands' dtype."""
    if not onednn_fits(x, weight):
        return nn.functional.linear(x, weight, bias)
    needs_grad = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and needs_grad:
        return OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product(x, weight, bias)


class PackedWeights:
    """Weights in oneDNN's memory format for prediction: products take 5 to 25% less time.

    Inputs, weights and results are rounded to `precision`, sums inside a product are not.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, precision: torch.dtype) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(precision), None)
        self.bias = None if bias is None else bias.detach().to(precision)
        self.precision = precision

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        rounded = x.to(self.precision)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(rounded, self.weight, self.bias, activation, [], "")
        return result.to(x.dtype)


class Projection(nn.Module):
    """Base class of linear layers: a weight (O, I) and a bias (O,), and the format in which they are stored."""

    entry_points: ClassVar[tuple[str, ...]] = ("apply_rows",)
    weight: nn.Parameter
    bias: nn.Parameter | None
    _packed: dict[tuple[int, int], PackedWeights] | None = None  # by rows; for prediction
    _precision = torch.float32  # of packed products
    _computed: Tensor | None = None  # cached weight for prediction without oneDNN

    def __init__(self) -> None:
        super().__init__()
        self.adapters: nn.Module | None = None  # LowRankRows (layers/adapters.py)

    def apply_rows(self, x: Tensor, start: int, stop: int, activation: str = "none") -> Tensor:
        """Outputs `start` to `stop` of x Wᵀ + b; `activation`: none or relu."""
        if self._packed is not None and not torch.is_grad_enabled() and onednn_fits(x, self.weight):
            key = (start, stop)
            if key not in self._packed:
                self._packed[key] = PackedWeights(*self._rows(start, stop), self._precision)
            return self._packed[key](x, activation)
        result = linear(x, *self._rows(start, stop))
        if self.adapters is not None:
            result = self.adapters(x, result, start, stop)
        return nn.functional.relu(result) if activation == "relu" else result

    def pack(self, precision: torch.dtype = torch.float32) -> None:
        """Prepare for prediction with products of this precision; weights must not change afterwards."""
        weight, onednn = self.weight, torch.backends.mkldnn.is_available()
        if onednn and weight.device.type == "cpu" and weight.dtype == torch.float32:
            self._packed, self._precision = {}, precision

    def _rows(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        if start == 0 and stop == self.weight.shape[0]:
            return self.weight, self.bias
        return self.weight[start:stop], None if self.bias is None else self.bias[start:stop]

    def forward(self, x: Tensor, activation: str = "none") -> Tensor:
        return self.apply_rows(x, 0, self.weight.shape[0], activation)


def pack(model: nn.Module, precision: torch.dtype = torch.float32) -> None:
    """Prepare a model for prediction with products of this precision; weights must not change afterwards."""
    for module in model.modules():
        if isinstance(module, Projection) and module.adapters is None:
            module.pack(precision)


def shallow_copy(model: Module, *, packed: bool = True) -> Module:
    """Copy the modules but share parameters and buffers, so that changes to the copy do not affect other threads.

    `packed=False`: use plain weights, because operations on packed weights cannot be recorded.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    for module in model.modules():
        if isinstance(module, Projection):
            parts = (part for part in (module._packed, module._computed) if part is not None)
            memo |= {id(part): part if packed else None for part in parts}
    return deepcopy(model, memo)


class Linear(Projection):
    """`torch.nn.Linear` with Xavier-uniform weights and zero biases."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, *, gain: float | None = None) -> None:
        super().__init__()
        self.gain = gain
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.gain is not None:  # a second draw, so that seeds give the same weights as in earlier versions
            nn.init.xavier_uniform_(self.weight, self.gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
