"""Every operation that a record may name: how NumPy writes it, how one of its numbers is computed, what its axes are.

    OPERATIONS["matmul"].numpy        # "a @ b": the definition; recomputing evaluates it, the exported script prints it
    OPERATIONS["matmul"].cell         # writes "0.8·0.7 + 0.2·0.3" for one number of the result
    OPERATIONS["matmul"].axes         # labels of the result's axes from those of a and b
    OPERATIONS["matmul"].kernels      # the PyTorch kernels that compute it, with their names of its arguments

kernels.py translates kernels whose arguments need more than new names.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.inspection import arithmetic, axes
from sightline.inspection.numpy_functions import FUNCTIONS, Array
from sightline.inspection.trace import GIVEN, Ref, Trace

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Operation:
    """One operation.

    `numpy` is an expression in the names of its arguments, or a function that writes it for certain arguments. `cell`
    writes the arithmetic of one number. `axes` derives the axes of the result. `kernels` maps PyTorch kernels to
    "argument=argument of the kernel" pairs. `moved` names the argument (or the list of them) whose numbers the
    operation only moves, so that a number of the result can be followed back to its origin.
    """

    name: str
    numpy: str | Callable[[Arguments], str]
    cell: Callable[[arithmetic.Cell], str] = arithmetic.call
    axes: axes.Rule = axes.elementwise
    kernels: Mapping[str, str] = field(default_factory=dict)
    moved: str = ""

    def expression(self, arguments: Arguments) -> str:
        """The NumPy expression for these arguments; references stay as the names of the arguments."""
        return self.numpy if isinstance(self.numpy, str) else self.numpy(arguments)

    def compute(self, values: Arguments) -> Any:
        """The result for NumPy arrays."""
        return eval(_compiled(self.expression(values)), {"np": np, "math": math, **FUNCTIONS}, dict(values))


@lru_cache(1_024)
def _compiled(expression: str) -> Any:
    return compile(ast.parse(expression, mode="eval"), "<operation>", "eval")


# --- expressions that depend on arguments ---------------------------------------------------------------------------


def _linear(arguments: Arguments) -> str:
    return "x @ weight.T" if arguments.get("bias") is None else "x @ weight.T + bias"


def _with_alpha(sign: str) -> Callable[[Arguments], str]:
    return lambda arguments: f"a {sign} b" if arguments.get("alpha", 1) == 1 else f"a {sign} alpha * b"


def _transpose(arguments: Arguments) -> str:
    order = tuple(arguments["axes"])
    if order == tuple(range(len(order))):
        return "x"
    if order == (1, 0):
        return "x.T"
    if order[:-2] == tuple(range(len(order) - 2)):
        return "x.mT"
    return f"x.transpose{order}"


def _slice(arguments: Arguments) -> str:
    start, stop, step = arguments["start"], arguments["stop"], arguments.get("step", 1)
    return f"x[{':, ' * arguments['axis']}{start or ''}:{stop}{f':{step}' if step != 1 else ''}]"


def _index(arguments: Arguments) -> str:
    """x[i, j]: a list of references, None for a whole axis."""
    return f"x[{', '.join(':' if each is None else f'indices[{n}]' for n, each in enumerate(arguments['indices']))}]"


def _reduction(function: str) -> Callable[[Arguments], str]:
    def write(arguments: Arguments) -> str:
        over, keep = arguments.get("axes"), arguments.get("keep")
        over = over[0] if over is not None and len(over) == 1 else None if over is None else tuple(over)
        options = ([] if over is None else [f"axis={over!r}"]) + (["keepdims=True"] if keep else [])
        return f"np.{function}({', '.join(['x', *options])})"

    return write


def _norm(arguments: Arguments) -> str:
    return f"np.sqrt({_reduction('sum')(arguments).replace('(x', '(x * x', 1)})"


def _clip(arguments: Arguments) -> str:
    low, high = arguments.get("low"), arguments.get("high")
    if high is None:
        return "np.maximum(x, low)"
    return "np.minimum(x, high)" if low is None else "np.clip(x, low, high)"


def _states_before(arguments: Arguments) -> str:
    part = f", {arguments['part']}" if arguments.get("part") else ""
    return f"states_before({arguments['cell']}_step, inputs, weight, bias, start{part})"


def _optional(expression: str, argument: str) -> Callable[[Arguments], str]:
    """An expression that ends with an argument which may be missing."""
    return lambda arguments: expression.format(f", {argument}" if arguments.get(argument) is not None else "")


# --- the table -----------------------------------------------------------------------------------------------------

X, AB, BA = "x=self", "a=self b=other", "a=other b=self"
_ALONG, _NORM = "x=self axis=dim", "x=input gain=weight bias=bias epsilon=eps"
_REDUCED, _UNFOLDED = "x=self axes=dim keep=keepdim", "x=self axis=dimension size=size step=step"


def _moves(
    name: str,
    numpy: str | Callable[[Arguments], str],
    moved: str = "x",
    rule: axes.Rule = axes.moved,
    **kernels: str,
) -> Operation:
    return Operation(name, numpy, arithmetic.call, rule, kernels, moved)


def _function(name: str, numpy: str = "", sign: str = "", **kernels: str) -> Operation:
    """A function of single numbers; by default NumPy and PyTorch call it by the same name."""
    return Operation(name, numpy or f"np.{name}(x)", arithmetic.function(sign or name), kernels=kernels or {name: X})


def _comparison(name: str, sign: str, **kernels: str) -> Operation:
    return Operation(name, f"a {sign} b", kernels=kernels)


_ALL = (
    # moving numbers
    _moves("same", "x", alias=X, clone=X, contiguous=X, detach=X, dropout="x=input"),
    _moves("shown_as", "x"),  # computed in another way, shown by this formula
    _moves("reshape", lambda arguments: f"x.reshape({', '.join(map(str, arguments['shape']))})"),
    _moves("broadcast", lambda arguments: f"np.broadcast_to(x, {tuple(arguments['shape'])})"),
    _moves("transpose", _transpose),
    _moves("slice", _slice),
    _moves("select", lambda arguments: f"x[{':, ' * arguments['axis']}{arguments['index']}]", rule=axes.select),
    _moves("concatenate", "np.concatenate(parts, axis)", "parts", axes.concatenate),
    _moves("stack", "np.stack(parts, axis)", "parts", axes.stack, stack="parts=tensors axis=dim"),
    _moves(
        "sliding_windows", "sliding_windows(x, axis, size, step)", unfold="x=self axis=dimension size=size step=step"
    ),
    _moves("pad", lambda arguments: f"np.pad(x, {_pairs(arguments['widths'])}, constant_values=value)"),
    _moves("flip", lambda arguments: f"np.flip(x, {tuple(arguments['axes'])})", flip="x=self axes=dims"),
    _moves("tile", lambda arguments: f"np.tile(x, {tuple(arguments['times'])})", repeat="x=self times=repeats"),
    _moves("repeat", "np.repeat(x, times, axis)"),
    _moves("index", _index, index="x=self indices=indices"),
    _moves("take", "np.take(x, index, axis)", index_select="x=self axis=dim index=index"),
    _moves("gather", "np.take_along_axis(x, index, axis)", gather="x=self axis=dim index=index"),
    _moves("embedding", "weight[tokens]", "weight", axes.embedding, embedding="weight=weight tokens=indices"),
    _moves("cast", lambda arguments: f"x.astype({arguments['kind']!r})"),
    # number by number
    Operation("add", _with_alpha("+"), arithmetic.between("+"), kernels={"add": f"{AB} alpha=alpha"}),
    Operation(
        "subtract",
        _with_alpha("-"),
        arithmetic.between("−"),
        kernels={"sub": f"{AB} alpha=alpha", "rsub": f"{BA} alpha=alpha"},
    ),
    Operation("multiply", "a * b", arithmetic.between("·", product=True), kernels={"mul": AB}),
    Operation("divide", "a / b", arithmetic.between(" / ", product=True), kernels={"div": AB}),
    Operation("power", "a ** b", arithmetic.between("^", product=True), kernels={"pow": "a=self b=exponent"}),
    *map(_function, ("abs", "exp", "log", "sin", "cos", "tanh", "ceil", "floor")),
    _function("negative", "-x", "−", neg=X),
    _function("sqrt", sign="√"),
    _function("rsqrt", "1 / np.sqrt(x)", "1 / √"),
    _function("sigmoid", "sigmoid(x)", "σ"),
    _function("silu", "silu(x)"),
    Operation("gelu", "gelu(x)", arithmetic.function("gelu")),
    Operation("relu", "relu(x)", arithmetic.relu, kernels={"relu": X}),
    Operation("glu", "glu(x, axis)", arithmetic.glu, axes.first, {"glu": _ALONG}),
    Operation("clip", _clip, kernels={"clamp": "x=self low=min high=max", "clamp_min": "x=self low=min"}),
    Operation("minimum", "np.minimum(a, b)", kernels={"minimum": AB}),
    Operation("maximum", "np.maximum(a, b)", kernels={"maximum": AB}),
    Operation(
        "masked_fill",
        "np.where(mask, value, x)",
        arithmetic.masked_fill,
        kernels={"masked_fill": "x=self mask=mask value=value"},
    ),
    Operation("where", "np.where(condition, a, b)", kernels={"where": f"condition=condition {AB}"}),
    Operation(
        "index_copy",
        "index_copy(x, axis, index, source)",
        axes=axes.first,
        kernels={"index_copy": "x=self axis=dim index=index source=source"},
    ),
    _comparison("less", "<", lt=AB, gt=BA),
    _comparison("less_equal", "<=", le=AB, ge=BA),
    _comparison("equal", "==", eq=AB),
    _comparison("not_equal", "!=", ne=AB),
    _comparison("logical_and", "&", bitwise_and=AB, __and__=AB, logical_and=AB),
    Operation("logical_not", "~x", kernels={"bitwise_not": X, "logical_not": X}),
    Operation(
        "tril",
        lambda arguments: "np.tril(x, diagonal)" if arguments.get("diagonal") else "np.tril(x)",
        kernels={"tril": "x=self diagonal=diagonal"},
    ),
    # sums
    Operation(
        "matmul",
        "a @ b",
        arithmetic.matmul,
        axes.matmul,
        {"mm": "a=self b=mat2", "bmm": "a=self b=mat2", "mv": "a=self b=vec", "matmul": AB},
    ),
    Operation("linear", _linear, arithmetic.linear, axes.linear, {"linear": "x=input weight=weight bias=bias"}),
    Operation("linear_relu", lambda arguments: f"relu({_linear(arguments)})", arithmetic.linear_relu, axes.linear),
    Operation("mean", _reduction("mean"), arithmetic.mean, axes.reduced, {"mean": _REDUCED}),
    Operation("sum", _reduction("sum"), arithmetic.total, axes.reduced, {"sum": _REDUCED}),
    Operation("max", _reduction("max"), arithmetic.largest, axes.reduced, {"amax": _REDUCED}),
    Operation("norm", _norm, axes=axes.reduced),
    Operation(
        "softmax",
        _optional("softmax(x{})", "axis"),
        arithmetic.softmax,
        kernels=dict.fromkeys(("softmax", "_softmax", "_safe_softmax"), _ALONG),
    ),
    Operation(
        "log_softmax",
        _optional("log_softmax(x{})", "axis"),
        kernels=dict.fromkeys(("log_softmax", "_log_softmax"), _ALONG),
    ),
    Operation("mean_over_visible", "mean_over_visible(x, visible)"),
    Operation(
        "layer_norm",
        "layer_norm(x, gain, bias, epsilon)",
        arithmetic.layer_norm,
        kernels=dict.fromkeys(("layer_norm", "native_layer_norm"), _NORM),
    ),
    Operation(
        "rms_norm",
        "rms_norm(x, gain, epsilon)",
        arithmetic.rms_norm,
        kernels={"rms_norm": "x=input gain=weight epsilon=eps"},
    ),
    Operation("batch_norm", "batch_norm(x, gain, bias, mean, variance, epsilon)", arithmetic.batch_norm),
    Operation("conv1d", "conv1d(x, weight, bias, stride, padding, dilation)"),
    Operation("states_before", _states_before, arithmetic.states_before, axes.first_with_features),
    Operation("top_k_softmax", "top_k_softmax(x, top)", arithmetic.top_k_softmax),
    Operation(
        "mixture_of_experts",
        _optional("mixture_of_experts(x, gates, widen, narrow, widen_bias, narrow_bias, kind{})", "real"),
        arithmetic.mixture_of_experts,
        axes.first,
    ),
    Operation("copy_mixture", "copy_mixture(logits, gate, weights, tokens)", arithmetic.copy_mixture, axes.first),
    Operation(
        "nll",
        "-np.log(np.take_along_axis(probabilities, labels[..., None], -1))[..., 0]",
        arithmetic.nll,
        axes.of("labels"),
    ),
)


def _pairs(widths: Sequence[Sequence[int]]) -> str:
    return f"({', '.join(str(tuple(pair)) for pair in widths)},)"


OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _ALL}
# Kernel: its operation, and the kernel's name of each argument
KERNELS = {
    f"aten::{kernel}": (operation.name, dict(pair.split("=") for pair in pairs.split()))
    for operation in _ALL
    for kernel, pairs in operation.kernels.items()
}


def numpy_value(tensor: Tensor) -> Any:
    """A tensor for NumPy: half precision is widened."""
    wide = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    return wide.detach().cpu().numpy()


def recompute(trace: Trace) -> dict[str, Any]:
    """Every record of a trace by its operation, unnamed ones too, as NumPy arrays."""
    values: dict[str, Any] = {name: numpy_value(tensor) for name, tensor in trace.weights.items()}
    with np.errstate(over="ignore"):
        for record in trace.records:
            if record.operation in (GIVEN, None):
                values[record.key] = numpy_value(record.tensor)
            else:
                arguments = with_values(record.arguments, values)
                values[record.key] = np.asarray(OPERATIONS[record.operation].compute(arguments))
    return values


def with_values(arguments: Arguments, values: Arguments) -> dict[str, Any]:
    """Arguments with arrays in place of references."""
    return {name: _value(argument, values) for name, argument in arguments.items()}


def _value(argument: Any, values: Arguments) -> Any:
    if isinstance(argument, Ref):
        return values[argument.name]
    return [_value(part, values) for part in argument] if isinstance(argument, list | tuple) else argument


# --- where a number came from -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """Of an operation that only moves numbers: where each number of the result came from."""

    sources: Array  # shaped as the result: the place in all moved arguments, flattened one after the other; −1: padding
    starts: tuple[int, ...]  # the first place of each moved argument
    names: tuple[str, ...]  # the records they refer to
    shapes: tuple[tuple[int, ...], ...]

    def origin(self, cell: tuple[int, ...]) -> tuple[str, tuple[int, ...] | None]:
        """The record and the cell in it that a number came from; None for padding."""
        place = int(self.sources[cell])
        if place < 0:
            return self.names[0], None
        part = max(n for n, start in enumerate(self.starts) if start <= place)
        shape = self.shapes[part]
        return self.names[part], tuple(
            int(k) for k in np.unravel_index(place - self.starts[part], shape)
        ) if shape else ()


def moved_from(operation: Operation, references: Arguments, values: Arguments) -> Moved:
    """`references` are the arguments as recorded, `values` the same with arrays in place of references."""
    of = references[operation.moved]
    parts: Sequence[Ref] = of if isinstance(of, list | tuple) else [of]
    arrays = values[operation.moved] if isinstance(of, list | tuple) else [values[operation.moved]]
    shapes, starts, numbered, start = [], [], [], 0
    for array in arrays:
        shape = tuple(np.shape(array))
        count = math.prod(shape)
        numbered.append(np.arange(start, start + count).reshape(shape))
        shapes.append(shape)
        starts.append(start)
        start += count
    arguments = {**values, operation.moved: numbered if isinstance(of, list | tuple) else numbered[0], "value": -1}
    sources = numbered[0] if operation.name == "cast" else operation.compute(arguments)
    return Moved(sources, tuple(starts), tuple(part.name for part in parts), tuple(shapes))
