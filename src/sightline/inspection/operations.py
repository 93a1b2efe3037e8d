"""What a step of a walk-through does, as plain NumPy: one small function for each operation, by name.

A recorded step is an operation, the names of what goes in, and constants; this table gives it its meaning. A script
that recomputes a trace is made of the functions' own source, so each needs nothing but NumPy, `math` and the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sightline.inspection.moving_operations import MOVES

Array = Any  # np.ndarray; annotations stay short, because these functions are printed into scripts


# --- number by number ---------------------------------------------------------------------------------------------


def add(a: Array, b: Array, alpha: float = 1) -> Array:
    return a + b if alpha == 1 else a + alpha * b


def subtract(a: Array, b: Array, alpha: float = 1) -> Array:
    return a - b if alpha == 1 else a - alpha * b


def multiply(a: Array, b: Array) -> Array:
    return a * b


def divide(a: Array, b: Array) -> Array:
    return a / b


def power(a: Array, b: Array) -> Array:
    return a**b


def negative(x: Array) -> Array:
    return -x


def absolute(x: Array) -> Array:
    return np.abs(x)


def exponential(x: Array) -> Array:
    return np.exp(x)


def logarithm(x: Array) -> Array:
    return np.log(x)


def root(x: Array) -> Array:
    return np.sqrt(x)


def inverse_root(x: Array) -> Array:
    return 1 / np.sqrt(x)


def sine(x: Array) -> Array:
    return np.sin(x)


def cosine(x: Array) -> Array:
    return np.cos(x)


def tanh(x: Array) -> Array:
    return np.tanh(x)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """x Φ(x), Φ the distribution function of the normal distribution."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def glu(x: Array, axis: int) -> Array:
    """a ∘ σ(b), of the first and the second half of an axis."""
    a, b = np.split(x, 2, axis)
    return a / (1 + np.exp(-b))


def clamp(x: Array, low: float | None, high: float | None) -> Array:
    return np.clip(x, low, high)


def mask(x: Array, hidden: Array, value: float) -> Array:
    """`value` where `hidden` is true."""
    return np.where(hidden, value, x)


def where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


def place(x: Array, axis: int, index: Array, source: Array) -> Array:
    """x with what stands at `index` of an axis replaced."""
    y = np.array(x)
    y[(slice(None),) * axis + (index,)] = source
    return y


def lower(a: Array, b: Array) -> Array:
    return np.minimum(a, b)


def higher(a: Array, b: Array) -> Array:
    return np.maximum(a, b)


def round_up(x: Array) -> Array:
    return np.ceil(x)


def round_down(x: Array) -> Array:
    return np.floor(x)


def less(a: Array, b: Array) -> Array:
    return a < b


def less_or_equal(a: Array, b: Array) -> Array:
    return a <= b


def equal(a: Array, b: Array) -> Array:
    return a == b


def unequal(a: Array, b: Array) -> Array:
    return a != b


def both(a: Array, b: Array) -> Array:
    return a & b


def invert(x: Array) -> Array:
    return ~x


def triangle(x: Array, diagonal: int = 0) -> Array:
    return np.tril(x, diagonal)


# --- sums -------------------------------------------------------------------------------------------------------------


def matmul(a: Array, b: Array) -> Array:
    return a @ b


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x Wᵀ + b."""
    return x @ weight.T if bias is None else x @ weight.T + bias


def linear_relu(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """max(0, x Wᵀ + b)."""
    return np.maximum(linear(x, weight, bias), 0)


def mean(x: Array, axes: Sequence[int] | None = None, keep: bool = False) -> Array:
    return np.mean(x, None if axes is None else tuple(axes), keepdims=keep)


def total(x: Array, axes: Sequence[int] | None = None, keep: bool = False) -> Array:
    return np.sum(x, None if axes is None else tuple(axes), keepdims=keep)


def highest(x: Array, axes: Sequence[int], keep: bool = False) -> Array:
    return np.max(x, tuple(axes), keepdims=keep)


def length(x: Array, axes: Sequence[int] | None = None, keep: bool = False) -> Array:
    """√(Σ x²)."""
    return np.sqrt(np.sum(x * x, None if axes is None else tuple(axes), keepdims=keep))


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / Σ exp(x); where all is −∞ it is 0."""
    top = np.maximum(np.max(x, axis, keepdims=True), np.finfo(x.dtype).min)
    weights = np.exp(x - top)
    return weights / np.maximum(weights.sum(axis, keepdims=True), np.finfo(x.dtype).tiny)


def log_softmax(x: Array, axis: int = -1) -> Array:
    top = np.max(x, axis, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis, keepdims=True))


def share_of_seen(x: Array, seen: Array | None) -> Array:
    """x / N over the N keys that may be seen, 0 elsewhere: the weights of linear attention."""
    if seen is None:
        return x / max(x.shape[-1], 1)
    seen = np.broadcast_to(seen, seen.shape[:-1] + x.shape[-1:])
    return np.where(seen, x, 0) / np.maximum(seen.sum(-1, keepdims=True), 1)


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


def convolve(x: Array, weight: Array, bias: Array | None, stride: int, padding: int, dilation: int) -> Array:
    """(B, C, T) with filters (O, C, k) → (B, O, T'): Σ over channels and neighbours."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding)))
    reach = (weight.shape[2] - 1) * dilation + 1
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, 2)[:, :, ::stride, ::dilation]  # (B, C, T', k)
    y = np.einsum("bctk,ock->bot", seen, weight)
    return y if bias is None else y + bias[:, None]


# --- recurrence -------------------------------------------------------------------------------------------------------


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


def state_before(inputs: Array, weight: Array, bias: Array, start: Sequence[Array], cell: str, part: int = 0) -> Array:
    """The state (part 0) or the cell (part 1) before each step: (B, T, ·) products of the inputs → (B, T, D)."""
    step = {"elman": elman_step, "gru": gru_step, "lstm": lstm_step}[cell]
    hidden, before = tuple(start), []
    for t in range(inputs.shape[1]):
        before.append(hidden[part])
        hidden = tuple(step(inputs[:, t], linear(hidden[0], weight, bias), hidden))
    return np.stack(before, 1)


# --- experts: token by token and expert by expert, as the formula says it ---------------------------------------------


def keep_top(x: Array, top: int) -> Array:
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
        hidden = a / (1 + np.exp(-a)) * b
    elif kind == "gelu":
        hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    else:
        hidden = np.maximum(hidden, 0)
    return hidden @ narrow + narrow_bias


def mixture(
    x: Array,
    gates: Array,
    widen: Array,
    narrow: Array,
    widen_bias: Array,
    narrow_bias: Array,
    kind: str,
    real: Array | None = None,
) -> Array:
    """Σ_i G_i E_i(x) over all experts; what is not real gets zeros."""
    first, second = widen_bias.reshape(len(widen), -1), narrow_bias.reshape(len(narrow), -1)
    said = [expert(x, *parts, kind) for parts in zip(widen, narrow, first, second, strict=True)]
    y = sum(gates[..., i, None] * said[i] for i in range(len(said)))
    return y if real is None else np.where(real[..., None], y, 0)


# --- the end ----------------------------------------------------------------------------------------------------------


def written_or_copied(logits: Array, gate: Array, weights: Array, tokens: Array) -> Array:
    """log(p_gen softmax(logits) + (1 − p_gen) Σ weights where the word stands), p_gen = σ(gate); −∞ where it is 0."""
    p_gen = 1 / (1 + np.exp(-gate))[..., None]
    written = np.exp(logits - logits.max(-1, keepdims=True))
    written = p_gen * written / written.sum(-1, keepdims=True)
    size = max(logits.shape[-1], int(tokens.max()) + 1)
    p = np.concatenate([written, np.zeros((*logits.shape[:-1], size - logits.shape[-1]))], -1)
    for row in range(len(tokens)):
        for place, word in enumerate(tokens[row]):
            p[row, :, word] += (1 - p_gen[row, :, 0]) * weights[row, :, place]
    with np.errstate(divide="ignore"):
        return np.log(p).astype(logits.dtype)


def surprise(probabilities: Array, wanted: Array) -> Array:
    """−log p of the wanted tokens."""
    return -np.log(np.take_along_axis(probabilities, wanted[..., None], -1)[..., 0])


_STEPS: tuple[Callable[..., Any], ...] = (
    *MOVES, place, add, subtract, multiply, divide, power, negative, absolute,
    exponential, logarithm, root, inverse_root, sine, cosine, tanh, sigmoid, relu, silu, gelu, glu, clamp, mask,
    where, less, less_or_equal, equal, unequal, both, invert, triangle, matmul, linear, linear_relu, mean, total,
    highest, length, lower, higher, round_up, round_down, softmax, log_softmax, share_of_seen, layer_norm, rms_norm,
    batch_norm, convolve, state_before, keep_top, mixture, written_or_copied, surprise,
)  # fmt: skip
OPERATIONS: dict[str, Callable[..., Any]] = {step.__name__: step for step in _STEPS}
MOVING = frozenset(move.__name__ for move in MOVES)  # these change where numbers stand, never the numbers
NEEDED: dict[str, tuple[Callable[..., Any], ...]] = {  # other functions that one calls
    "linear_relu": (linear,),
    "mixture": (expert,),
    "state_before": (linear, sigmoid, elman_step, gru_step, lstm_step),
}
