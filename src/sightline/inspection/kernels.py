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


def _to_shape(operation: str) -> Translator:
    """An operation that gives x the shape of the result."""

    def translate(given: Arguments, result: Tensor, number: int) -> Call:
        if given["self"].tensor.shape == result.shape:
            return "same", {"x": given["self"]}
        return operation, {"x": given["self"], "shape": list(result.shape)}

    return translate


def _slice(given: Arguments, result: Tensor, number: int) -> Call:
    axis, start, step = _axis(given["dim"], result), given["start"] or 0, given["step"]
    if start < 0:
        start += given["self"].tensor.shape[axis]
    stop = start + (result.shape[axis] - 1) * step + 1 if result.shape[axis] else start
    if given["self"].tensor.shape == result.shape:
        return "same", {"x": given["self"]}
    return "slice", {"x": given["self"], "axis": axis, "start": start, "stop": stop, "step": step}


def _picked(given: Arguments, result: Tensor, number: int) -> Call:
    """The result of `select`, or one of the results of `unbind`."""
    axis = given["dim"] % (result.dim() + 1)
    return "select", {"x": given["self"], "axis": axis, "index": given.get("index", number)}


def _part(given: Arguments, result: Tensor, number: int) -> Call:
    """One of the results of `chunk` and `split`."""
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
    weight = ("transpose", {"axes": (1, 0), "x": given["mat2"]})
    return "linear", {"x": given["mat1"], "weight": weight, "bias": given["self"]}


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
    return "conv1d", {
        "x": given["input"],
        "weight": given["weight"],
        "bias": given["bias"],
        "stride": given["stride"][0],
        "padding": padding[0],
        "dilation": given["dilation"][0],
    }


def _padded(given: Arguments, result: Tensor, number: int) -> Call | None:
    if given.get("mode", "constant") != "constant":
        return None
    amounts, count = list(given["pad"]), result.dim()
    if min(amounts) < 0:
        return None
    widths = [(0, 0)] * (count - len(amounts) // 2)
    widths += [(amounts[2 * k], amounts[2 * k + 1]) for k in reversed(range(len(amounts) // 2))]
    return "pad", {"x": given["self"], "widths": widths, "value": given.get("value") or 0.0}


def _vector_norm(given: Arguments, result: Tensor, number: int) -> Call | None:
    if given["ord"] != 2:
        return None
    return "norm", {"x": given["self"], "axes": given["dim"], "keep": given["keepdim"]}


def _gelu(given: Arguments, result: Tensor, number: int) -> Call | None:
    return ("gelu", {"x": given["self"]}) if given["approximate"] == "none" else None


def _repeated(given: Arguments, result: Tensor, number: int) -> Call | None:
    if not isinstance(given["repeats"], int) or given["dim"] is None:
        return None
    return "repeat", {"x": given["self"], "times": given["repeats"], "axis": given["dim"]}


_RESHAPES = ("view", "_unsafe_view", "reshape", "unflatten", "flatten", "unsqueeze", "squeeze")
_TRANSLATED: dict[str, Translator] = {
    "aten::t": _transposed,
    "aten::mT": _transposed,
    "aten::transpose": _transposed,
    "aten::permute": lambda given, result, number: (
        "transpose",
        {"x": given["self"], "axes": [axis % result.dim() for axis in given["dims"]]},
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


def to_operation(kernel: str, given: Arguments, result: Tensor, number: int) -> Call | None:
    """The operation and arguments of a kernel call, whose output number `number` is `result`; None if it is unknown.

    An argument may itself be such a call.
    """
    if kernel in _TRANSLATED:
        return _TRANSLATED[kernel](given, result, number)
    if kernel not in KERNELS or number:
        return None
    name, names = KERNELS[kernel]
    arguments = {ours: given[theirs] for ours, theirs in names.items() if theirs in given}
    if name in ("softmax", "log_softmax") and _axis(arguments["axis"], result) == result.dim() - 1:
        del arguments["axis"]  # the last one
    return name, arguments
