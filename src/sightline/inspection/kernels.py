"""Which operation of operations.py each PyTorch kernel is, and what its arguments are called there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Call = tuple[str, dict[str, Any]]  # an operation and its arguments

_PLAIN: dict[str, tuple[str, dict[str, str]]] = {  # kernel → operation, and the kernel's names of its arguments
    "aten::mm": ("matmul", {"a": "self", "b": "mat2"}),
    "aten::bmm": ("matmul", {"a": "self", "b": "mat2"}),
    "aten::mv": ("matmul", {"a": "self", "b": "vec"}),
    "aten::matmul": ("matmul", {"a": "self", "b": "other"}),
    "aten::linear": ("linear", {"x": "input", "weight": "weight", "bias": "bias"}),
    "aten::embedding": ("embedding", {"weight": "weight", "tokens": "indices"}),
    "aten::add": ("add", {"a": "self", "b": "other", "alpha": "alpha"}),
    "aten::sub": ("subtract", {"a": "self", "b": "other", "alpha": "alpha"}),
    "aten::rsub": ("subtract", {"a": "other", "b": "self", "alpha": "alpha"}),
    "aten::mul": ("multiply", {"a": "self", "b": "other"}),
    "aten::div": ("divide", {"a": "self", "b": "other"}),
    "aten::pow": ("power", {"a": "self", "b": "exponent"}),
    "aten::where": ("where", {"condition": "condition", "a": "self", "b": "other"}),
    "aten::masked_fill": ("masked_fill", {"x": "self", "mask": "mask", "value": "value"}),
    "aten::lt": ("less", {"a": "self", "b": "other"}),
    "aten::gt": ("less", {"a": "other", "b": "self"}),
    "aten::le": ("less_equal", {"a": "self", "b": "other"}),
    "aten::ge": ("less_equal", {"a": "other", "b": "self"}),
    "aten::eq": ("equal", {"a": "self", "b": "other"}),
    "aten::ne": ("not_equal", {"a": "self", "b": "other"}),
    "aten::bitwise_and": ("logical_and", {"a": "self", "b": "other"}),
    "aten::__and__": ("logical_and", {"a": "self", "b": "other"}),
    "aten::logical_and": ("logical_and", {"a": "self", "b": "other"}),
    "aten::tril": ("tril", {"x": "self", "diagonal": "diagonal"}),
    "aten::clamp": ("clip", {"x": "self", "low": "min", "high": "max"}),
    "aten::clamp_min": ("clip", {"x": "self", "low": "min"}),
    "aten::gather": ("gather", {"x": "self", "axis": "dim", "index": "index"}),
    "aten::index_select": ("take", {"x": "self", "axis": "dim", "index": "index"}),
    "aten::index_copy": ("index_copy", {"x": "self", "axis": "dim", "index": "index", "source": "source"}),
    "aten::index": ("index", {"x": "self", "indices": "indices"}),
    "aten::stack": ("stack", {"parts": "tensors", "axis": "dim"}),
    "aten::flip": ("flip", {"x": "self", "axes": "dims"}),
    "aten::repeat": ("tile", {"x": "self", "times": "repeats"}),
    "aten::softmax": ("softmax", {"x": "self", "axis": "dim"}),
    "aten::_softmax": ("softmax", {"x": "self", "axis": "dim"}),
    "aten::_safe_softmax": ("softmax", {"x": "self", "axis": "dim"}),
    "aten::log_softmax": ("log_softmax", {"x": "self", "axis": "dim"}),
    "aten::_log_softmax": ("log_softmax", {"x": "self", "axis": "dim"}),
    "aten::layer_norm": ("layer_norm", {"x": "input", "gain": "weight", "bias": "bias", "epsilon": "eps"}),
    "aten::native_layer_norm": ("layer_norm", {"x": "input", "gain": "weight", "bias": "bias", "epsilon": "eps"}),
    "aten::rms_norm": ("rms_norm", {"x": "input", "gain": "weight", "epsilon": "eps"}),
    "aten::mean": ("mean", {"x": "self", "axes": "dim", "keep": "keepdim"}),
    "aten::sum": ("sum", {"x": "self", "axes": "dim", "keep": "keepdim"}),
    "aten::amax": ("max", {"x": "self", "axes": "dim", "keep": "keepdim"}),
    "aten::minimum": ("minimum", {"a": "self", "b": "other"}),
    "aten::maximum": ("maximum", {"a": "self", "b": "other"}),
    "aten::glu": ("glu", {"x": "self", "axis": "dim"}),
    "aten::unfold": ("sliding_windows", {"x": "self", "axis": "dimension", "size": "size", "step": "step"}),
}
_OF_ONE = {  # kernels of one tensor: kernel → operation
    "same": ("alias", "clone", "contiguous", "detach", "dropout"),
    "ceil": ("ceil",),
    "floor": ("floor",),
    "negative": ("neg",),
    "abs": ("abs",),
    "exp": ("exp",),
    "log": ("log",),
    "sqrt": ("sqrt",),
    "rsqrt": ("rsqrt",),
    "sin": ("sin",),
    "cos": ("cos",),
    "tanh": ("tanh",),
    "sigmoid": ("sigmoid",),
    "relu": ("relu",),
    "silu": ("silu",),
    "logical_not": ("bitwise_not", "logical_not"),
}
_PLAIN |= {f"aten::{kernel}": (name, {"x": "self"}) for name, kernels in _OF_ONE.items() for kernel in kernels}
_PLAIN["aten::dropout"] = ("same", {"x": "input"})  # nothing is dropped outside training

_RESHAPES = ("view", "_unsafe_view", "reshape", "unflatten", "flatten", "unsqueeze", "squeeze")
_FROM_NOTHING = (
    "lift_fresh",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
)
FROM_NOTHING = frozenset(f"aten::{kernel}" for kernel in _FROM_NOTHING)  # a tensor says only how large, or of what type

Arguments = Mapping[str, Any]


def _axis(axis: int, result: Tensor) -> int:
    return axis % result.dim()


def _transposed(given: Arguments, result: Tensor, number: int) -> Call:
    order = list(range(result.dim()))
    first, second = given.get("dim0", -2), given.get("dim1", -1)
    if order:
        order[first], order[second] = order[second], order[first]
    return "transpose", {"x": given["self"], "axes": order}


def _concatenated(given: Arguments, result: Tensor, number: int) -> Call:
    tensors = given["tensors"]
    if len(tensors) == 1:
        return "same", {"x": tensors[0]}
    return "concatenate", {"parts": tensors, "axis": given["dim"]}


def _reshaped(given: Arguments, result: Tensor, number: int) -> Call:
    if given["self"].tensor.shape == result.shape:
        return "same", {"x": given["self"]}
    return "reshape", {"x": given["self"], "shape": list(result.shape)}


def _broadcast(given: Arguments, result: Tensor, number: int) -> Call:
    if given["self"].tensor.shape == result.shape:
        return "same", {"x": given["self"]}
    return "broadcast", {"x": given["self"], "shape": list(result.shape)}


def _slice(given: Arguments, result: Tensor, number: int) -> Call:
    axis, start, step = _axis(given["dim"], result), given["start"] or 0, given["step"]
    if start < 0:
        start += given["self"].tensor.shape[axis]
    stop = start + (result.shape[axis] - 1) * step + 1 if result.shape[axis] else start
    if given["self"].tensor.shape == result.shape:
        return "same", {"x": given["self"]}
    return "slice", {"x": given["self"], "axis": axis, "start": start, "stop": stop, "step": step}


def _picked(given: Arguments, result: Tensor, number: int) -> Call:
    """What `select` takes, or one of all that `unbind` gives."""
    axis = given["dim"] % (result.dim() + 1)
    return "select", {"x": given["self"], "axis": axis, "index": given.get("index", number)}


def _part(given: Arguments, result: Tensor, number: int) -> Call:
    """One of the tensors that `chunk` and `split` give; all but the last are alike, or of given sizes."""
    axis, sizes = _axis(given["dim"], result), given.get("split_sizes") or given.get("split_size")
    if isinstance(sizes, list | tuple):
        start = sum(sizes[:number])
    else:
        whole = given["self"].tensor.shape[axis]
        size = sizes if sizes is not None else -(-whole // given["chunks"])
        start = number * size
    if given["self"].tensor.shape == result.shape:
        return "same", {"x": given["self"]}
    return "slice", {"x": given["self"], "axis": axis, "start": start, "stop": start + result.shape[axis]}


def _addmm(given: Arguments, result: Tensor, number: int) -> Call | None:
    if given["alpha"] != 1 or given["beta"] != 1:
        return None
    turned = {"axes": (1, 0), "x": given["mat2"]}
    return "linear", {"x": given["mat1"], "weight": ("transpose", turned), "bias": given["self"]}


def _onednn_linear(given: Arguments, result: Tensor, number: int) -> Call | None:
    names = {"none": "linear", "relu": "linear_relu"}
    if given["attr"] not in names:
        return None
    return names[given["attr"]], {"x": given["X"], "weight": given["W"], "bias": given["B"]}


def _cast(given: Arguments, result: Tensor, number: int) -> Call:
    if given["self"].tensor.dtype == result.dtype:
        return "same", {"x": given["self"]}
    kinds = {torch.bool: "bool", torch.int64: "int64", torch.int32: "int32", torch.float64: "float64"}
    return "cast", {"x": given["self"], "kind": kinds.get(result.dtype, "float32")}


def _batch_norm(given: Arguments, result: Tensor, number: int) -> Call | None:
    if given.get("training"):
        return None
    return "batch_norm", {
        "x": given["input"],
        "gain": given["weight"],
        "bias": given["bias"],
        "mean": given["running_mean"],
        "variance": given["running_var"],
        "epsilon": given["eps"],
    }


def _convolution(given: Arguments, result: Tensor, number: int) -> Call | None:
    padding = given["padding"]
    if result.dim() != 3 or given["groups"] != 1 or given.get("transposed") or isinstance(padding, str):
        return None
    names = {"x": "input", "weight": "weight", "bias": "bias"}
    sizes = {"stride": given["stride"][0], "padding": padding[0], "dilation": given["dilation"][0]}
    return "conv1d", {**{ours: given[theirs] for ours, theirs in names.items()}, **sizes}


def _padded(given: Arguments, result: Tensor, number: int) -> Call | None:
    if given.get("mode", "constant") != "constant":
        return None
    amounts, count = list(given["pad"]), result.dim()
    if min(amounts) < 0:
        return None
    widths = [(0, 0)] * (count - len(amounts) // 2)
    widths += [(amounts[2 * k], amounts[2 * k + 1]) for k in reversed(range(len(amounts) // 2))]
    return "pad", {"x": given["self"], "widths": widths, "value": given.get("value") or 0.0}


def _length(given: Arguments, result: Tensor, number: int) -> Call | None:
    if given["ord"] != 2:
        return None
    return "norm", {"x": given["self"], "axes": given["dim"], "keep": given["keepdim"]}


def _gelu(given: Arguments, result: Tensor, number: int) -> Call | None:
    return ("gelu", {"x": given["self"]}) if given["approximate"] == "none" else None


def _repeated(given: Arguments, result: Tensor, number: int) -> Call | None:
    if not isinstance(given["repeats"], int) or given["dim"] is None:
        return None
    return "repeat", {"x": given["self"], "times": given["repeats"], "axis": given["dim"]}


Translator = Callable[[Arguments, Tensor, int], Call | None]
_TRANSLATED: dict[str, Translator] = {
    "aten::t": _transposed,
    "aten::mT": _transposed,
    "aten::transpose": _transposed,
    "aten::permute": lambda given, result, number: (
        "transpose",
        {"x": given["self"], "axes": [axis % result.dim() for axis in given["dims"]]},
    ),
    "aten::expand": _broadcast,
    "aten::expand_as": _broadcast,
    "aten::cat": _concatenated,
    "aten::slice": _slice,
    "aten::select": _picked,
    "aten::unbind": _picked,
    "aten::chunk": _part,
    "aten::split": _part,
    "aten::split_with_sizes": _part,
    "aten::addmm": _addmm,
    "mkldnn::_linear_pointwise": _onednn_linear,
    "aten::_to_copy": _cast,
    "aten::to": _cast,
    "aten::batch_norm": _batch_norm,
    "aten::native_batch_norm": _batch_norm,
    "aten::convolution": _convolution,
    "aten::conv1d": _convolution,
    "aten::constant_pad_nd": _padded,
    "aten::pad": _padded,
    "aten::gelu": _gelu,
    "aten::linalg_vector_norm": _length,
    "aten::repeat_interleave": _repeated,
    **{f"aten::{kernel}": _reshaped for kernel in _RESHAPES},
}


def to_operation(kernel: str, given: Arguments, result: Tensor, number: int) -> Call | None:
    """The operation and arguments of a kernel call, whose output number `number` is `result`; None if it is unknown.

    An argument may itself be such a call.
    """
    if kernel in _TRANSLATED:
        return _TRANSLATED[kernel](given, result, number)
    if kernel not in _PLAIN or number:
        return None
    name, names = _PLAIN[kernel]
    arguments = {ours: given[theirs] for ours, theirs in names.items() if theirs in given}
    if name in ("softmax", "log_softmax") and _axis(arguments["axis"], result) == result.dim() - 1:
        del arguments["axis"]  # the last one
    return name, arguments
