"""Translate calls of PyTorch kernels to operations of operations.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sightline.inspection.operations import KERNELS

Call = tuple[str, dict[str, Any]]  # an operation and its arguments

FROM_NOTHING = frozenset(  # kernels that take only the size or the type of a tensor
    f"aten::{kernel}"
    for kernel in (
        *("lift_fresh", "new_zeros", "new_ones", "new_full", "new_empty"),
        *("zeros_like", "ones_like", "full_like", "empty_like"),
    )
)

Arguments = Mapping[str, Any]
Translator = Callable[[Arguments, Tensor, int], Call | None]  # of arguments, a result, and its number among several


def _axis(axis: int, result: Tensor) -> int:
    return axis % result.dim()


def _transposed(arguments: Arguments, result: Tensor, number: int) -> Call:
    order = list(range(result.dim()))
    first, second = arguments.get("dim0", -2), arguments.get("dim1", -1)
    if order:
        order[first], order[second] = order[second], order[first]
    return "transpose", {"x": arguments["self"], "axes": order}


def _concatenated(arguments: Arguments, result: Tensor, number: int) -> Call:
    tensors = arguments["tensors"]
    if len(tensors) == 1:
        return "same", {"x": tensors[0]}
    return "concatenate", {"parts": tensors, "axis": arguments["dim"]}


def _to_shape(operation: str) -> Translator:
    """An operation that gives x the shape of the result."""

    def translate(arguments: Arguments, result: Tensor, number: int) -> Call:
        if arguments["self"].tensor.shape == result.shape:
            return "same", {"x": arguments["self"]}
        return operation, {"x": arguments["self"], "shape": list(result.shape)}

    return translate


def _slice(arguments: Arguments, result: Tensor, number: int) -> Call:
    axis, start, step = _axis(arguments["dim"], result), arguments["start"] or 0, arguments["step"]
    if start < 0:
        start += arguments["self"].tensor.shape[axis]
    stop = start + (result.shape[axis] - 1) * step + 1 if result.shape[axis] else start
    if arguments["self"].tensor.shape == result.shape:
        return "same", {"x": arguments["self"]}
    return "slice", {"x": arguments["self"], "axis": axis, "start": start, "stop": stop, "step": step}


def _picked(arguments: Arguments, result: Tensor, number: int) -> Call:
    """The result of `select`, or one of the results of `unbind`."""
    axis = arguments["dim"] % (result.dim() + 1)
    return "select", {"x": arguments["self"], "axis": axis, "index": arguments.get("index", number)}


def _part(arguments: Arguments, result: Tensor, number: int) -> Call:
    """One of the results of `chunk` and `split`."""
    axis, sizes = _axis(arguments["dim"], result), arguments.get("split_sizes") or arguments.get("split_size")
    if isinstance(sizes, list | tuple):
        start = sum(sizes[:number])
    else:
        whole = arguments["self"].tensor.shape[axis]
        size = sizes if sizes is not None else -(-whole // arguments["chunks"])
        start = number * size
    if arguments["self"].tensor.shape == result.shape:
        return "same", {"x": arguments["self"]}
    return "slice", {"x": arguments["self"], "axis": axis, "start": start, "stop": start + result.shape[axis]}


def _addmm(arguments: Arguments, result: Tensor, number: int) -> Call | None:
    if arguments["alpha"] != 1 or arguments["beta"] != 1:
        return None
    weight = ("transpose", {"axes": (1, 0), "x": arguments["mat2"]})
    return "linear", {"x": arguments["mat1"], "weight": weight, "bias": arguments["self"]}


def _onednn_linear(arguments: Arguments, result: Tensor, number: int) -> Call | None:
    names = {"none": "linear", "relu": "linear_relu"}
    if arguments["attr"] not in names:
        return None
    return names[arguments["attr"]], {"x": arguments["X"], "weight": arguments["W"], "bias": arguments["B"]}


def _cast(arguments: Arguments, result: Tensor, number: int) -> Call:
    if arguments["self"].tensor.dtype == result.dtype:
        return "same", {"x": arguments["self"]}
    kinds = {torch.bool: "bool", torch.int64: "int64", torch.int32: "int32", torch.float64: "float64"}
    return "cast", {"x": arguments["self"], "kind": kinds.get(result.dtype, "float32")}


def _batch_norm(arguments: Arguments, result: Tensor, number: int) -> Call | None:
    if arguments.get("training"):
        return None
    return "batch_norm", {
        "x": arguments["input"],
        "gain": arguments["weight"],
        "bias": arguments["bias"],
        "mean": arguments["running_mean"],
        "variance": arguments["running_var"],
        "epsilon": arguments["eps"],
    }


def _convolution(arguments: Arguments, result: Tensor, number: int) -> Call | None:
    padding = arguments["padding"]
    if result.dim() != 3 or arguments["groups"] != 1 or arguments.get("transposed") or isinstance(padding, str):
        return None
    return "conv1d", {
        "x": arguments["input"],
        "weight": arguments["weight"],
        "bias": arguments["bias"],
        "stride": arguments["stride"][0],
        "padding": padding[0],
        "dilation": arguments["dilation"][0],
    }


def _padded(arguments: Arguments, result: Tensor, number: int) -> Call | None:
    if arguments.get("mode", "constant") != "constant":
        return None
    amounts, count = list(arguments["pad"]), result.dim()
    if min(amounts) < 0:
        return None
    widths = [(0, 0)] * (count - len(amounts) // 2)
    widths += [(amounts[2 * k], amounts[2 * k + 1]) for k in reversed(range(len(amounts) // 2))]
    return "pad", {"x": arguments["self"], "widths": widths, "value": arguments.get("value") or 0.0}


def _vector_norm(arguments: Arguments, result: Tensor, number: int) -> Call | None:
    if arguments["ord"] != 2:
        return None
    return "norm", {"x": arguments["self"], "axes": arguments["dim"], "keep": arguments["keepdim"]}


def _gelu(arguments: Arguments, result: Tensor, number: int) -> Call | None:
    return ("gelu", {"x": arguments["self"]}) if arguments["approximate"] == "none" else None


def _repeated(arguments: Arguments, result: Tensor, number: int) -> Call | None:
    if not isinstance(arguments["repeats"], int) or arguments["dim"] is None:
        return None
    return "repeat", {"x": arguments["self"], "times": arguments["repeats"], "axis": arguments["dim"]}


_RESHAPES = ("view", "_unsafe_view", "reshape", "unflatten", "flatten", "unsqueeze", "squeeze")
_TRANSLATED: dict[str, Translator] = {
    "aten::t": _transposed,
    "aten::mT": _transposed,
    "aten::transpose": _transposed,
    "aten::permute": lambda arguments, result, number: (
        "transpose",
        {"x": arguments["self"], "axes": [axis % result.dim() for axis in arguments["dims"]]},
    ),
    "aten::expand": _to_shape("broadcast"),
    "aten::expand_as": _to_shape("broadcast"),
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
    "aten::linalg_vector_norm": _vector_norm,
    "aten::repeat_interleave": _repeated,
    **dict.fromkeys((f"aten::{kernel}" for kernel in _RESHAPES), _to_shape("reshape")),
}


def to_operation(kernel: str, arguments: Arguments, result: Tensor, number: int) -> Call | None:
    """The operation and arguments of a kernel call, whose output number `number` is `result`; None if it is unknown.

    An argument may itself be such a call.
    """
    if kernel in _TRANSLATED:
        return _TRANSLATED[kernel](arguments, result, number)
    if kernel not in KERNELS or number:
        return None
    name, names = KERNELS[kernel]
    arguments = {ours: arguments[theirs] for ours, theirs in names.items() if theirs in arguments}
    if name in ("softmax", "log_softmax") and _axis(arguments["axis"], result) == result.dim() - 1:
        del arguments["axis"]  # the last one
    return name, arguments
