"""Functions that recorded operations call. Exported scripts print them: they use only NumPy, `math` and each other."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any  # np.ndarray; annotations stay short, because these functions are printed into scripts


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


def elman_relu_step(inputs: Array, recurrent: Array, hidden: Sequence[Array]) -> Sequence[Array]:
    return (relu(inputs + recurrent),)


def elman_sigmoid_step(inputs: Array, recurrent: Array, hidden: Sequence[Array]) -> Sequence[Array]:
    return (sigmoid(inputs + recurrent),)


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
        recurrent = hidden[0] @ weight.T
        hidden = tuple(step(inputs[:, t], recurrent if bias is None else recurrent + bias, hidden))
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
        hidden = gelu(hidden) if kind == "gelu" else np.tanh(hidden) if kind == "tanh" else relu(hidden)
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
        conv1d, index_copy, sliding_windows, elman_step, elman_relu_step, elman_sigmoid_step, gru_step, lstm_step,
        states_before, top_k_softmax, expert, mixture_of_experts, copy_mixture,
    )
}  # fmt: skip


def source_of_functions(script: str) -> str:
    """The source of the functions that a script calls, and of those that they call."""
    called: set[str] = set()
    unread = [script]
    while unread:
        names = {node.id for node in ast.walk(ast.parse(unread.pop())) if isinstance(node, ast.Name)}
        new = names & FUNCTIONS.keys() - called
        called |= new
        unread += map(_source, new)
    return "\n\n".join(_source(name) for name in FUNCTIONS if name in called)


def _source(name: str) -> str:
    """The source of a function without type annotations."""
    tree = ast.parse(inspect.getsource(FUNCTIONS[name]))
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    for argument in (*function.args.args, *function.args.kwonlyargs):
        argument.annotation = None
    function.returns = None
    return ast.unparse(tree) + "\n"
