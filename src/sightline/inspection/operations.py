"""Every operation that a record may name: how NumPy writes it, how one of its numbers is computed, what its axes are.

    OPERATIONS["matmul"].numpy        # "a @ b": the definition; recomputing evaluates it, the exported script prints it
    OPERATIONS["matmul"].cell         # writes "0.8·0.7 + 0.2·0.3" for one number of the result
    OPERATIONS["matmul"].axes         # labels of the result's axes from those of a and b

kernels.py says which PyTorch kernel is which operation. Functions that an expression calls are printed into scripts,
so they use nothing but NumPy, `math` and each other.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sightline.inspection import axes, cells
from sightline.inspection.trace import Ref

Array = Any  # np.ndarray; annotations stay short, because these functions are printed into scripts
Arguments = Mapping[str, Any]


# --- functions that expressions call ----------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """x Φ(x), Φ the distribution function of the normal distribution."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def glu(x: Array, axis: int) -> Array:
    """a ∘ σ(b), of the first and the second half of an axis."""
    a, b = np.split(x, 2, axis)
    return a * sigmoid(b)


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / Σ exp(x); where all is −∞ it is 0."""
    top = np.maximum(np.max(x, axis, keepdims=True), np.finfo(x.dtype).min)
    weights = np.exp(x - top)
    return weights / np.maximum(weights.sum(axis, keepdims=True), np.finfo(x.dtype).tiny)


def log_softmax(x: Array, axis: int = -1) -> Array:
    top = np.max(x, axis, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis, keepdims=True))


def mean_over_visible(x: Array, visible: Array | None) -> Array:
    """x / N over the N visible keys, 0 elsewhere: the weights of linear attention."""
    if visible is None:
        return x / max(x.shape[-1], 1)
    visible = np.broadcast_to(visible, visible.shape[:-1] + x.shape[-1:])
    return np.where(visible, x, 0) / np.maximum(visible.sum(-1, keepdims=True), 1)


def layer_norm(x: Array, gain: Array | None, bias: Array | None, epsilon: float) -> Array:
    """(x − μ) / σ · γ + β over the last axis."""
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    y = y if gain is None else y * gain
    return y if bias is None else y + bias


def rms_norm(x: Array, gain: Array | None, epsilon: float) -> Array:
    """x / √(mean of x²) · γ over the last axis."""
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return y if gain is None else y * gain


def batch_norm(x: Array, gain: Array | None, bias: Array | None, mean: Array, variance: Array, epsilon: float) -> Array:
    """(x − μ) / σ · γ + β with the averages of training."""
    y = (x - mean) / np.sqrt(variance + epsilon)
    y = y if gain is None else y * gain
    return y if bias is None else y + bias


def conv1d(x: Array, weight: Array, bias: Array | None, stride: int, padding: int, dilation: int) -> Array:
    """(B, C, T) with filters (O, C, k) → (B, O, T'): Σ over channels and neighbours."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding)))
    reach = (weight.shape[2] - 1) * dilation + 1
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, 2)[:, :, ::stride, ::dilation]  # (B, C, T', k)
    y = np.einsum("bctk,ock->bot", windows, weight)
    return y if bias is None else y + bias[:, None]


def index_copy(x: Array, axis: int, index: Array, source: Array) -> Array:
    """x with the entries at `index` of an axis replaced."""
    y = np.array(x)
    y[(slice(None),) * axis + (index,)] = source
    return y


def sliding_windows(x: Array, axis: int, size: int, step: int) -> Array:
    """Every run of `size` neighbours on an axis, along a new last axis."""
    return np.lib.stride_tricks.sliding_window_view(x, size, axis)[(slice(None),) * axis + (slice(None, None, step),)]


def elman_step(inputs: Array, recurrent: Array, hidden: Sequence[Array]) -> Sequence[Array]:
    return (np.tanh(inputs + recurrent),)


def gru_step(inputs: Array, recurrent: Array, hidden: Sequence[Array]) -> Sequence[Array]:
    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = np.split(inputs, 3, -1), np.split(recurrent, 3, -1)
    reset, update = sigmoid(reset_x + reset_h), sigmoid(update_x + update_h)
    return ((1 - update) * np.tanh(new_x + reset * new_h) + update * hidden[0],)


def lstm_step(inputs: Array, recurrent: Array, hidden: Sequence[Array]) -> Sequence[Array]:
    i, f, g, o = np.split(inputs + recurrent, 4, -1)
    cell = sigmoid(f) * hidden[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def states_before(step: Any, inputs: Array, weight: Array, bias: Array, start: Sequence[Array], part: int = 0) -> Array:
    """The state (part 0) or the cell (part 1) before each step: (B, T, ·) products of the inputs → (B, T, D)."""
    hidden, before = tuple(start), []
    for t in range(inputs.shape[1]):
        before.append(hidden[part])
        hidden = tuple(step(inputs[:, t], hidden[0] @ weight.T + bias, hidden))
    return np.stack(before, 1)


def top_k_softmax(x: Array, top: int) -> Array:
    """softmax over the `top` largest of the last axis, 0 elsewhere; of equal ones the earlier is taken."""
    best = np.argsort(-x, axis=-1, kind="stable")[..., :top]
    chosen = np.take_along_axis(x, best, -1)
    shares = np.exp(chosen - chosen.max(-1, keepdims=True))
    y = np.zeros_like(x)
    np.put_along_axis(y, best, shares / shares.sum(-1, keepdims=True), -1)
    return y


def expert(x: Array, widen: Array, narrow: Array, widen_bias: Array, narrow_bias: Array, kind: str) -> Array:
    """One expert's net: f(x W₁ + b₁) W₂ + b₂, or gated: (silu(x W₁) ∘ x W₃) W₂."""
    hidden = x @ widen + widen_bias
    if kind == "swiglu":
        a, b = np.split(hidden, 2, -1)
        hidden = silu(a) * b
    else:
        hidden = gelu(hidden) if kind == "gelu" else relu(hidden)
    return hidden @ narrow + narrow_bias


def mixture_of_experts(
    x: Array,
    gates: Array,
    widen: Array,
    narrow: Array,
    widen_bias: Array,
    narrow_bias: Array,
    kind: str,
    real: Array | None = None,
) -> Array:
    """Σ_i G_i E_i(x) over all experts; padding gets zeros."""
    first, second = widen_bias.reshape(len(widen), -1), narrow_bias.reshape(len(narrow), -1)
    outputs = [expert(x, *parts, kind) for parts in zip(widen, narrow, first, second, strict=True)]
    y = sum(gates[..., i, None] * outputs[i] for i in range(len(outputs)))
    return y if real is None else np.where(real[..., None], y, 0)


def copy_mixture(logits: Array, gate: Array, weights: Array, tokens: Array) -> Array:
    """log(p_gen softmax(logits) + (1 − p_gen) Σ weights of the word's copies), p_gen = σ(gate); −∞ where it is 0."""
    p_gen = sigmoid(gate)[..., None]
    generated = p_gen * softmax(logits)
    size = max(logits.shape[-1], int(tokens.max()) + 1)
    p = np.concatenate([generated, np.zeros((*logits.shape[:-1], size - logits.shape[-1]))], -1)
    for row in range(len(tokens)):
        for place, word in enumerate(tokens[row]):
            p[row, :, word] += (1 - p_gen[row, :, 0]) * weights[row, :, place]
    with np.errstate(divide="ignore"):
        return np.log(p).astype(logits.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        sigmoid, silu, gelu, relu, glu, softmax, log_softmax, mean_over_visible, layer_norm, rms_norm, batch_norm,
        conv1d, index_copy, sliding_windows, elman_step, gru_step, lstm_step, states_before, top_k_softmax, expert,
        mixture_of_experts, copy_mixture,
    )
}  # fmt: skip
_NAMESPACE = {"np": np, "math": math, **FUNCTIONS}


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """One operation.

    `numpy` is an expression in the names of its arguments, or gives one for certain arguments. `cell` writes the
    arithmetic of one number. `axes` derives the axes of the result. `moved` names the argument (or the list of them)
    whose numbers the operation only moves, so that a number of the result can be followed back to where it was.
    """

    name: str
    numpy: str | Callable[[Arguments], str]
    cell: Callable[[cells.Cell], str] = cells.call
    axes: axes.Rule = axes.elementwise
    moved: str = ""

    def expression(self, arguments: Arguments) -> str:
        """How NumPy writes it with these arguments; references stay as the names of the arguments."""
        return self.numpy if isinstance(self.numpy, str) else self.numpy(arguments)

    def compute(self, values: Arguments) -> Any:
        """The result for NumPy arrays."""
        return eval(_compiled(self.expression(values)), dict(_NAMESPACE), dict(values))


@lru_cache(1_024)
def _compiled(expression: str) -> Any:
    return compile(ast.parse(expression, mode="eval"), "<operation>", "eval")


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


def _method(name: str, argument: str) -> Callable[[Arguments], str]:
    def write(arguments: Arguments) -> str:
        values = ", ".join(map(str, arguments[argument]))
        return f"x.{name}({values})"

    return write


def _moves(name: str, numpy: str | Callable[[Arguments], str], moved: str = "x", rule: Any = axes.moved) -> Operation:
    return Operation(name, numpy, cells.call, rule, moved)


def _states_before(arguments: Arguments) -> str:
    part = f", {arguments['part']}" if arguments.get("part") else ""
    return f"states_before({arguments['cell']}_step, inputs, weight, bias, start{part})"


def _optional(expression: str, argument: str) -> Callable[[Arguments], str]:
    """An expression that ends with an argument which may be missing."""
    return lambda arguments: expression.format(f", {argument}" if arguments.get(argument) is not None else "")


_ALL = (
    # moving numbers
    _moves("same", "x"),
    _moves("shown_as", "x"),  # computed in another way, shown by this formula
    _moves("reshape", _method("reshape", "shape")),
    _moves("broadcast", lambda arguments: f"np.broadcast_to(x, {tuple(arguments['shape'])})"),
    _moves("transpose", _transpose),
    _moves("slice", _slice),
    _moves("select", lambda arguments: f"x[{':, ' * arguments['axis']}{arguments['index']}]", rule=axes.select),
    _moves("concatenate", "np.concatenate(parts, axis)", "parts", axes.concatenate),
    _moves("stack", "np.stack(parts, axis)", "parts", axes.stack),
    _moves("sliding_windows", "sliding_windows(x, axis, size, step)"),
    _moves("pad", lambda arguments: f"np.pad(x, {_pairs(arguments['widths'])}, constant_values=value)"),
    _moves("flip", lambda arguments: f"np.flip(x, {tuple(arguments['axes'])})"),
    _moves("tile", lambda arguments: f"np.tile(x, {tuple(arguments['times'])})"),
    _moves("repeat", "np.repeat(x, times, axis)"),
    _moves("index", _index),
    _moves("take", "np.take(x, index, axis)"),
    _moves("gather", "np.take_along_axis(x, index, axis)"),
    _moves("embedding", "weight[tokens]", "weight", axes.embedding),
    _moves("cast", lambda arguments: f"x.astype({arguments['kind']!r})"),
    # number by number
    Operation("add", _with_alpha("+"), cells.between("+")),
    Operation("subtract", _with_alpha("-"), cells.between("−")),
    Operation("multiply", "a * b", cells.between("·", product=True)),
    Operation("divide", "a / b", cells.between(" / ", product=True)),
    Operation("power", "a ** b", cells.between("^", product=True)),
    Operation("negative", "-x", cells.function("−")),
    Operation("abs", "np.abs(x)", cells.function("abs")),
    Operation("exp", "np.exp(x)", cells.function("exp")),
    Operation("log", "np.log(x)", cells.function("log")),
    Operation("sqrt", "np.sqrt(x)", cells.function("√")),
    Operation("rsqrt", "1 / np.sqrt(x)", cells.function("1 / √")),
    Operation("sin", "np.sin(x)", cells.function("sin")),
    Operation("cos", "np.cos(x)", cells.function("cos")),
    Operation("tanh", "np.tanh(x)", cells.function("tanh")),
    Operation("ceil", "np.ceil(x)", cells.function("ceil")),
    Operation("floor", "np.floor(x)", cells.function("floor")),
    Operation("sigmoid", "sigmoid(x)", cells.function("σ")),
    Operation("relu", "relu(x)", cells.relu),
    Operation("silu", "silu(x)", cells.function("silu")),
    Operation("gelu", "gelu(x)", cells.function("gelu")),
    Operation("glu", "glu(x, axis)", cells.glu, axes.first),
    Operation("clip", _clip),
    Operation("minimum", "np.minimum(a, b)"),
    Operation("maximum", "np.maximum(a, b)"),
    Operation("masked_fill", "np.where(mask, value, x)", cells.masked_fill),
    Operation("where", "np.where(condition, a, b)"),
    Operation("index_copy", "index_copy(x, axis, index, source)", axes=axes.first),
    Operation("less", "a < b"),
    Operation("less_equal", "a <= b"),
    Operation("equal", "a == b"),
    Operation("not_equal", "a != b"),
    Operation("logical_and", "a & b"),
    Operation("logical_not", "~x"),
    Operation("tril", lambda arguments: "np.tril(x, diagonal)" if arguments.get("diagonal") else "np.tril(x)"),
    # sums
    Operation("matmul", "a @ b", cells.matmul, axes.matmul),
    Operation("linear", _linear, cells.linear, axes.linear),
    Operation("linear_relu", lambda arguments: f"relu({_linear(arguments)})", cells.linear_relu, axes.linear),
    Operation("mean", _reduction("mean"), cells.mean, axes.reduced),
    Operation("sum", _reduction("sum"), cells.total, axes.reduced),
    Operation("max", _reduction("max"), cells.largest, axes.reduced),
    Operation("norm", _norm, axes=axes.reduced),
    Operation("softmax", _optional("softmax(x{})", "axis"), cells.softmax),
    Operation("log_softmax", _optional("log_softmax(x{})", "axis")),
    Operation("mean_over_visible", "mean_over_visible(x, visible)"),
    Operation("layer_norm", "layer_norm(x, gain, bias, epsilon)", cells.layer_norm),
    Operation("rms_norm", "rms_norm(x, gain, epsilon)", cells.rms_norm),
    Operation("batch_norm", "batch_norm(x, gain, bias, mean, variance, epsilon)", cells.batch_norm),
    Operation("conv1d", "conv1d(x, weight, bias, stride, padding, dilation)"),
    Operation("states_before", _states_before, cells.states_before, axes.first_with_features),
    Operation("top_k_softmax", "top_k_softmax(x, top)", cells.top_k_softmax),
    Operation(
        "mixture_of_experts",
        _optional("mixture_of_experts(x, gates, widen, narrow, widen_bias, narrow_bias, kind{})", "real"),
        cells.mixture_of_experts,
        axes.first,
    ),
    Operation("copy_mixture", "copy_mixture(logits, gate, weights, tokens)", cells.copy_mixture, axes.first),
    Operation(
        "nll", "-np.log(np.take_along_axis(probabilities, labels[..., None], -1))[..., 0]", cells.nll, axes.of("labels")
    ),
)


def _pairs(widths: Sequence[Sequence[int]]) -> str:
    return f"({', '.join(str(tuple(pair)) for pair in widths)},)"


OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _ALL}


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
