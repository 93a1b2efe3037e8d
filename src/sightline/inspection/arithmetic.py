"""Write the arithmetic of one number: "0.8·0.7 + 0.2·0.3".

Each function writes one cell of a kind of operation; the table in operations.py assigns them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.inspection.numpy_functions import expert

Index = tuple[int, ...]
MOST_TERMS = 12  # of a sum; the rest is summed
_decimals: ContextVar[int | None] = ContextVar("decimals", default=None)


@contextmanager
def decimals(digits: int | None) -> Iterator[None]:
    """Write numbers with this many digits after the point inside the block; None: four significant digits."""
    token = _decimals.set(digits)
    try:
        yield
    finally:
        _decimals.reset(token)


def number(value: Any) -> str:
    """A number with a minus sign and four significant digits, or as many after the point as `decimals` sets."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "−∞" if value < 0 else "∞" if value > 0 else "nan"
    digits = _decimals.get()
    if digits is None or isinstance(value, int):
        return f"{value:.4g}".replace("-", "−")
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")  # + 0.0: no −0.00


def factor(text: str) -> str:
    """A term in a product, with parentheses if needed."""
    return f"({text})" if text.startswith("−") or " " in text else text


def within(value: Any, index: Index) -> Index:
    """The cell of an operand, which may be broadcast, for a cell of the result."""
    last = index[len(index) - value.ndim :]
    return tuple(0 if size == 1 else k for k, size in zip(last, value.shape, strict=True))


@dataclass
class Cell:
    """One cell of an operation's result, with the values of its arguments."""

    operation: str
    arguments: Mapping[str, Any]
    index: Index
    operand: Callable[[str], str]  # writes an argument at this cell: its number or its computation
    operands: tuple[str, ...]  # the arguments that are records or weights

    def row(self, axis: int = -1) -> Any:
        """The numbers of x along the axis that a softmax or a norm runs over."""
        index: list[Any] = list(self.index)
        index[axis] = slice(None)
        return self.arguments["x"][tuple(index)]


# --- number by number -------------------------------------------------------------------------------------------------


def call(at: Cell) -> str:
    """Any other operation: its name and its operands at the same cell."""
    parts = []
    for name in at.operands:
        value = np.asarray(at.arguments[name])
        parts.append(number(value[within(value, at.index)]) if value.ndim <= len(at.index) else name)
    return f"{at.operation}({', '.join(parts)})"


def between(sign: str, *, product: bool = False) -> Callable[[Cell], str]:
    """A binary operation: a + b, a·b, ..."""

    def write(at: Cell) -> str:
        a, b = at.operand("a"), at.operand("b")
        if at.arguments.get("alpha", 1) != 1:
            b = f"{factor(number(at.arguments['alpha']))}·{factor(b)}"
        if product:
            return f"{factor(a)}{sign}{factor(b)}"
        return f"{a} {sign} {f'({b})' if b.startswith('−') or (sign == '−' and ' ' in b) else b}"

    return write


def function(name: str) -> Callable[[Cell], str]:
    """f(x)."""
    return lambda at: f"{name}({at.operand('x')})"


def relu(at: Cell) -> str:
    return f"max(0, {at.operand('x')})"


def glu(at: Cell) -> str:
    a, b = np.split(at.arguments["x"], 2, at.arguments["axis"])
    return f"{factor(number(a[at.index]))}·σ({number(b[at.index])})"


def masked_fill(at: Cell) -> str:
    masked = bool(np.broadcast_to(at.arguments["mask"], at.arguments["x"].shape)[at.index])
    return f"{number(at.arguments['value'])} (masked)" if masked else at.operand("x")


# --- sums -------------------------------------------------------------------------------------------------------------


def _sum(terms: Sequence[str], values: Sequence[float]) -> str:
    if len(terms) <= MOST_TERMS:
        return " + ".join(terms) if terms else "0"
    rest = values[MOST_TERMS:]
    return " + ".join(terms[:MOST_TERMS]) + f" + … ({len(rest)} more terms: {number(float(np.sum(rest)))})"


def products(left: Any, right: Any) -> str:
    """a₁·b₁ + a₂·b₂ + …"""
    pairs = [(float(a), float(b)) for a, b in zip(left, right, strict=True)]
    return _sum([f"{factor(number(a))}·{factor(number(b))}" for a, b in pairs], [a * b for a, b in pairs])


def matmul(at: Cell) -> str:
    a, b = at.arguments["a"], at.arguments["b"]
    if b.ndim == 1:
        return products(a[at.index], b)
    row = a[(*within(a[..., 0, 0], at.index[:-2]), at.index[-2])]
    column = b[(*within(b[..., 0, 0], at.index[:-2]), slice(None), at.index[-1])]
    return products(row, column)


def linear(at: Cell) -> str:
    weight, bias = at.arguments["weight"], at.arguments.get("bias")
    terms = products(at.arguments["x"][at.index[:-1]], weight[at.index[-1]])
    return terms if bias is None else f"{terms} + {factor(number(bias[at.index[-1]]))}"


def linear_relu(at: Cell) -> str:
    return f"max(0, {linear(at)})"


def _summands(at: Cell) -> list[float]:
    """The numbers of a sum, mean or maximum."""
    x, axes = at.arguments["x"], at.arguments.get("axes")
    over = set(range(x.ndim)) if axes is None else {axis % x.ndim for axis in axes}
    rest = list(at.index)
    index: list[Any] = []
    for axis in range(x.ndim):
        if axis not in over:
            index.append(rest.pop(0))
            continue
        index.append(slice(None))
        if at.arguments.get("keep"):
            rest.pop(0)
    return [float(value) for value in x[tuple(index)].ravel()]


def total(at: Cell) -> str:
    values = _summands(at)
    return _sum([factor(number(value)) for value in values], values)


def mean(at: Cell) -> str:
    return f"({total(at)}) / {len(_summands(at))}"


def largest(at: Cell) -> str:
    values = _summands(at)
    more = ", …" if len(values) > MOST_TERMS else ""
    return f"max({', '.join(number(value) for value in values[:MOST_TERMS])}{more})"


def _exponential_share(x: float, row: Any) -> str:
    return f"exp({number(x)}) / ({_sum([f'exp({number(value)})' for value in row], list(np.exp(row)))})"


def softmax(at: Cell) -> str:
    row = at.row(at.arguments.get("axis", -1))
    visible = row[np.isfinite(row)]
    if not len(visible):
        return "0 (everything is masked)"
    return _exponential_share(at.arguments["x"][at.index], visible)


def top_k_softmax(at: Cell) -> str:
    row, top = at.row(), at.arguments["top"]
    chosen = np.argsort(-row, kind="stable")[:top]
    if at.index[-1] not in chosen:
        return f"0 (not among the top {top})"
    return _exponential_share(row[at.index[-1]], row[chosen])


def _gained(at: Cell, text: str) -> str:
    gain, bias, feature = at.arguments.get("gain"), at.arguments.get("bias"), at.index[-1]
    text = text if gain is None else f"{text} · {factor(number(gain[feature]))}"
    return text if bias is None else f"{text} + {factor(number(bias[feature]))}"


def layer_norm(at: Cell) -> str:
    row, x = at.row(), at.arguments["x"][at.index]
    spread = np.sqrt(row.var() + at.arguments["epsilon"])
    return _gained(at, f"({number(x)} − {factor(number(row.mean()))}) / {number(spread)}")


def rms_norm(at: Cell) -> str:
    row, x = at.row(), at.arguments["x"][at.index]
    return _gained(at, f"{number(x)} / {number(np.sqrt((row * row).mean() + at.arguments['epsilon']))}")


def batch_norm(at: Cell) -> str:
    x, feature = at.arguments["x"][at.index], at.index[-1]
    mean_, variance = at.arguments["mean"][feature], at.arguments["variance"][feature]
    spread = np.sqrt(variance + at.arguments["epsilon"])
    return _gained(at, f"({number(x)} − {factor(number(mean_))}) / {number(spread)}")


# --- particular models ------------------------------------------------------------------------------------------------


def states_before(at: Cell) -> str:
    row, step, feature = at.index
    if step == 0:
        return f"{number(at.arguments['start'][at.arguments.get('part', 0)][row, feature])} (the initial state)"
    return f"the state after step {step - 1}"


def mixture_of_experts(at: Cell) -> str:
    """Σ gate · output of the experts that the token was routed to."""
    arguments = at.arguments
    x, gates = arguments["x"][at.index[:-1]], arguments["gates"][at.index[:-1]]
    first, second = (arguments[name].reshape(len(gates), -1) for name in ("widen_bias", "narrow_bias"))
    parts = list(zip(arguments["widen"], arguments["narrow"], first, second, strict=True))
    terms = [
        f"{number(gates[i])}·{factor(number(expert(x, *parts[i], arguments['kind'])[at.index[-1]]))}"
        for i in np.flatnonzero(gates)
    ]
    return " + ".join(terms) or "0"


def copy_mixture(at: Cell) -> str:
    """log(p_gen softmax(logits) + (1 − p_gen) Σ attention weights of the word's copies)."""
    *step, word = at.index
    logits, gate, weights, tokens = (np.asarray(at.arguments[name]) for name in ("logits", "gate", "weights", "tokens"))
    copies = tokens[step[0]] == word
    copied = " + ".join(number(weight) for weight in weights[tuple(step)][copies]) or "0"
    scores = logits[tuple(step)]
    generated = f"exp({number(scores[word])})/Σ exp(logits)" if word < len(scores) else "0"
    p_gen = f"σ({number(gate[tuple(step)])})"
    return f"log({p_gen}·{generated} + (1 − {p_gen})·({copied}))"


def nll(at: Cell) -> str:
    label = int(at.arguments["labels"][at.index])
    return f"−log({number(at.arguments['probabilities'][(*at.index, label)])})"


def sinusoid(key: str, index: Index, table: Any) -> str | None:
    """The formula of a sinusoidal position, PE(pos, 2i) = sin(pos / 10000^(2i/D)); None for other tables."""
    if "positions" not in key.split(".") or key.rpartition(".")[2] != "table" or len(index) != 2:
        return None
    (position, feature), width = index, table.shape[1]
    pair = feature - feature % 2
    angle = position / 10_000 ** (pair / width)
    name, value = ("sin", math.sin(angle)) if feature == pair else ("cos", math.cos(angle))
    if abs(float(table[index]) - value) > 1e-4 * max(1.0, position * 1e-3):  # a learned table
        return None
    return f"{name}({position} / 10000^({pair}/{width}))"
