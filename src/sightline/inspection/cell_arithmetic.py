"""The arithmetic behind one number: "0.62 = 0.8·0.7 + 0.2·0.3".

From a cell of a step one goes back through whatever only moves numbers to the operation that made it, and writes that
down with the numbers that went in. Unnamed steps in between are written out, named ones are taken as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.inspection.arithmetic import Ref
from sightline.inspection.numpy_script import arguments_of
from sightline.inspection.operations import MOVING, OPERATIONS, expert
from sightline.inspection.trace import Step

Cell = tuple[int, ...]
_TERMS = 12  # of a sum; the others are added up
_DEPTH = 4  # unnamed steps written out inside one another
_DATA = ("x", "parts", "weight")  # the arguments of a moving operation that are moved; others say where to


def number(value: Any) -> str:
    """Four digits, with a real minus."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "−∞" if value < 0 else "∞" if value > 0 else "nan"
    return f"{value:.4g}".replace("-", "−")


def factor(text: str) -> str:
    """A term as it may stand in a product."""
    return f"({text})" if text.startswith("−") or " " in text else text


@dataclass
class Explainer:
    """Knows all steps and all their values."""

    steps: Mapping[str, Step]
    values: Mapping[str, Any]

    def explain(self, key: str, cell: Cell) -> str:
        """The number in that cell and how it was made."""
        value = self.values[key]
        if len(cell) != value.ndim or any(not -n <= k < n for k, n in zip(cell, value.shape, strict=True)):
            raise ValueError(f"{key} has the shape {tuple(value.shape)}; {cell} is no cell of it")
        cell = tuple(k % n for k, n in zip(cell, value.shape, strict=True))
        return f"{number(value[cell])} = {self._made(key, cell, 0)}"

    def _made(self, key: str, cell: Cell, depth: int) -> str:
        """How the number in a cell was made."""
        key, place, moved = self._source(key, cell)
        if place is None:
            return "padding"
        cell, step = place, self.steps.get(key)
        if step is None or step.operation in ("given", "") or (moved and not step.unnamed):
            entry = f"{key}[{', '.join(map(str, cell))}]"
            wave = _sinusoid(key, cell, self.values[key])
            return entry if wave is None else f"{wave}, which is {entry}"
        write = _WRITERS.get(step.operation, _called)
        return write(_At(self, step, arguments_of(step, self.values), cell, depth))

    def term(self, reference: Any, value: Any, cell: Cell, depth: int) -> str:
        """An operand: its number, or how it was made where it is an unnamed step."""
        if not isinstance(reference, Ref):
            return number(value)
        own = _within(np.asarray(value), cell)
        key, place, _ = self._source(reference.name, own)
        step = self.steps.get(key)
        if step is None or not step.unnamed or depth >= _DEPTH or step.operation not in _SHORT or place is None:
            return number(np.asarray(value)[own])
        return self._made(key, place, depth + 1)

    def _source(self, key: str, cell: Cell) -> tuple[str, Cell | None, bool]:
        """Where the number in a cell stood before it was moved; None, where it is padding."""
        moved = False
        while (step := self.steps.get(key)) is not None and step.operation in MOVING:
            arguments, places = self._numbered(step)
            if step.operation == "pad":
                arguments["value"] = -1
            move = OPERATIONS["same" if step.operation == "cast" else step.operation]
            arguments.pop("kind", None)  # of a cast, which moves nothing
            at = int(move(**arguments)[cell])
            if at < 0:
                return key, None, True
            first, key, shape = max((each for each in places if each[0] <= at), key=lambda each: each[0])
            cell = tuple(int(k) for k in np.unravel_index(at - first, shape)) if shape else ()  # of a single number
            moved = True
        return key, cell, moved

    def _numbered(self, step: Step) -> tuple[dict[str, Any], list[tuple[int, str, tuple[int, ...]]]]:
        """The arguments of a moving step, 0, 1, 2 … in place of what it moves; and with which number each begins."""
        arguments, places = arguments_of(step, self.values), []
        start = 0
        for name in _DATA:
            if name not in step.arguments:
                continue
            references = step.arguments[name]
            several = isinstance(references, list | tuple)
            marked = []
            for reference in references if several else [references]:
                shape = self.values[reference.name].shape
                count = int(np.prod(shape, dtype=np.int64))
                marked.append(np.arange(start, start + count).reshape(shape))
                places.append((start, reference.name, shape))
                start += count
            arguments[name] = marked if several else marked[0]
        return arguments, places


def _sinusoid(key: str, cell: Cell, table: Any) -> str | None:
    """A number of a table of sinusoidal positions by its formula, PE(pos, 2i) = sin(pos / 10000^(2i/D)); else None."""
    if "positions" not in key.split(".") or key.rpartition(".")[2] != "table" or len(cell) != 2:
        return None
    (position, feature), width = cell, table.shape[1]
    pair = feature - feature % 2
    angle = position / 10_000 ** (pair / width)
    name, value = ("sin", math.sin(angle)) if feature == pair else ("cos", math.cos(angle))
    if abs(float(table[cell]) - value) > 1e-4 * max(1.0, position * 1e-3):  # another table: one that is learned
        return None
    return f"{name}({position} / 10000^({pair}/{width}))"


def _within(value: Any, cell: Cell) -> Cell:
    """A cell of a result as a cell of one of its operands, which may have been broadcast."""
    own = cell[len(cell) - value.ndim :]
    return tuple(0 if size == 1 else k for k, size in zip(own, value.shape, strict=True))


@dataclass
class _At:
    """A step, its arguments and the cell that is asked for."""

    who: Explainer
    step: Step
    arguments: dict[str, Any]
    cell: Cell
    depth: int

    def term(self, name: str) -> str:
        return self.who.term(self.step.arguments[name], self.arguments[name], self.cell, self.depth)


def _sum(terms: list[str], values: list[float]) -> str:
    if len(terms) > _TERMS:
        shown, rest = terms[:_TERMS], values[_TERMS:]
        return " + ".join(shown) + f" + … ({len(rest)} more terms: {number(float(np.sum(rest)))})"
    return " + ".join(terms) if terms else "0"


def _products(left: Any, right: Any) -> str:
    pairs = [(float(a), float(b)) for a, b in zip(left, right, strict=True)]
    return _sum([f"{factor(number(a))}·{factor(number(b))}" for a, b in pairs], [a * b for a, b in pairs])


def _matmul(at: _At) -> str:
    a, b = at.arguments["a"], at.arguments["b"]
    if b.ndim == 1:
        return _products(a[at.cell], b)
    row = a[(*_within(a[..., 0, 0], at.cell[:-2]), at.cell[-2])]
    column = b[(*_within(b[..., 0, 0], at.cell[:-2]), slice(None), at.cell[-1])]
    return _products(row, column)


def _linear(at: _At) -> str:
    weight, bias = at.arguments["weight"], at.arguments.get("bias")
    told = _products(at.arguments["x"][at.cell[:-1]], weight[at.cell[-1]])
    return told if bias is None else f"{told} + {factor(number(bias[at.cell[-1]]))}"


def _between(sign: str, *, product: bool) -> Callable[[_At], str]:
    def write(at: _At) -> str:
        a, b = at.term("a"), at.term("b")
        if at.arguments.get("alpha", 1) != 1:
            b = f"{factor(number(at.arguments['alpha']))}·{factor(b)}"
        if product:
            return f"{factor(a)}{sign}{factor(b)}"
        return f"{a} {sign} {f'({b})' if b.startswith('−') or (sign == '−' and ' ' in b) else b}"

    return write


def _of(name: str) -> Callable[[_At], str]:
    return lambda at: f"{name}({at.term('x')})"


def _row(at: _At) -> Any:
    """The numbers of the axis that a softmax or a norm runs along."""
    axis = at.arguments.get("axis", -1)
    place = list(at.cell)
    return at.arguments["x"][tuple(slice(None) if k == axis % len(place) else c for k, c in enumerate(place))]


def _softmax(at: _At) -> str:
    own, row = at.arguments["x"][at.cell], _row(at)
    seen = row[np.isfinite(row)]
    if not len(seen):
        return "0 (nothing may be seen)"
    terms = [f"exp({number(value)})" for value in seen]
    return f"exp({number(own)}) / ({_sum(terms, list(np.exp(seen)))})"


def _norm(at: _At) -> str:
    row, own, feature = _row(at), at.arguments["x"][at.cell], at.cell[-1]
    epsilon = at.arguments["epsilon"]
    if at.step.operation == "rms_norm":
        told = f"{number(own)} / {number(np.sqrt((row * row).mean() + epsilon))}"
    elif at.step.operation == "batch_norm":
        mean, variance = at.arguments["mean"][feature], at.arguments["variance"][feature]
        told = f"({number(own)} − {factor(number(mean))}) / {number(np.sqrt(variance + epsilon))}"
    else:
        told = f"({number(own)} − {factor(number(row.mean()))}) / {number(np.sqrt(row.var() + epsilon))}"
    gain, bias = at.arguments.get("gain"), at.arguments.get("bias")
    told = told if gain is None else f"{told} · {factor(number(gain[feature]))}"
    return told if bias is None else f"{told} + {factor(number(bias[feature]))}"


def _over_axes(at: _At) -> list[float]:
    x, axes = at.arguments["x"], at.arguments.get("axes")
    over = set(range(x.ndim)) if axes is None else {axis % x.ndim for axis in axes}
    left = list(at.cell)
    place: list[Any] = []
    for axis in range(x.ndim):
        if axis in over:
            place.append(slice(None))
            if at.arguments.get("keep"):
                left.pop(0)
        else:
            place.append(left.pop(0))
    return [float(value) for value in x[tuple(place)].ravel()]


def _mean(at: _At) -> str:
    values = _over_axes(at)
    told = _sum([factor(number(value)) for value in values], values)
    return f"({told}) / {len(values)}" if at.step.operation == "mean" else told


def _highest(at: _At) -> str:
    values = _over_axes(at)
    return f"max({', '.join(number(value) for value in values[:_TERMS])}{', …' if len(values) > _TERMS else ''})"


def _mask(at: _At) -> str:
    hidden = bool(np.broadcast_to(at.arguments["hidden"], at.arguments["x"].shape)[at.cell])
    return f"{number(at.arguments['value'])} (masked)" if hidden else at.term("x")


def _before(at: _At) -> str:
    if at.cell[1] == 0:
        return f"{number(at.arguments['start'][at.arguments.get('part', 0)][at.cell[0], at.cell[2]])} (the start)"
    return f"what the step before it, {at.cell[1] - 1}, left"


def _surprise(at: _At) -> str:
    wanted = int(at.arguments["wanted"][at.cell])
    return f"−log({number(at.arguments['probabilities'][(*at.cell, wanted)])})"


def _written_or_copied(at: _At) -> str:
    """log of the share that is written, of a word of the vocabulary, and the weights of the places that have it."""
    *step, word = at.cell
    logits, gate, weights, tokens = (np.asarray(at.arguments[name]) for name in ("logits", "gate", "weights", "tokens"))
    own = tokens[step[0]] == word
    copied = " + ".join(number(weight) for weight in weights[tuple(step)][own]) or "0"
    scores = logits[tuple(step)]
    written = f"exp({number(scores[word])})/Σ exp(logits)" if word < len(scores) else "0"
    p_gen = f"σ({number(gate[tuple(step)])})"
    return f"log({p_gen}·{written} + (1 − {p_gen})·({copied}))"


def _glu(at: _At) -> str:
    a, b = np.split(at.arguments["x"], 2, at.arguments["axis"])
    return f"{factor(number(a[at.cell]))}·σ({number(b[at.cell])})"


def _gate(at: _At) -> str:
    row, top = _row(at), at.arguments["top"]
    chosen = np.argsort(-row, kind="stable")[:top]
    if at.cell[-1] not in chosen:
        return f"0 (not among the top {top})"
    terms = [f"exp({number(row[each])})" for each in chosen]
    return f"exp({number(row[at.cell[-1]])}) / ({_sum(terms, list(np.exp(row[chosen])))})"


def _mixture(at: _At) -> str:
    """Gates and what the experts that were asked say."""
    asked = dict(at.arguments)
    x, gates = asked["x"][at.cell[:-1]], asked["gates"][at.cell[:-1]]
    first, second = (asked[name].reshape(len(gates), -1) for name in ("widen_bias", "narrow_bias"))
    parts = list(zip(asked["widen"], asked["narrow"], first, second, strict=True))
    terms = [
        f"{number(gates[i])}·{factor(number(expert(x, *parts[i], asked['kind'])[at.cell[-1]]))}"
        for i in np.flatnonzero(gates)
    ]
    return " + ".join(terms) or "0"


def _called(at: _At) -> str:
    """Anything else: the operation and what stands in the same place."""
    parts = []
    for name, value in at.arguments.items():
        if isinstance(at.step.arguments[name], Ref):
            fits = np.asarray(value).ndim <= len(at.cell)
            parts.append(number(np.asarray(value)[_within(np.asarray(value), at.cell)]) if fits else name)
    return f"{at.step.operation}({', '.join(parts)})"


_WRITERS: dict[str, Callable[[_At], str]] = {
    "matmul": _matmul,
    "linear": _linear,
    "linear_relu": lambda at: f"max(0, {_linear(at)})",
    "add": _between("+", product=False),
    "subtract": _between("−", product=False),
    "multiply": _between("·", product=True),
    "divide": _between(" / ", product=True),
    "power": _between("^", product=True),
    "tanh": _of("tanh"),
    "sigmoid": _of("σ"),
    "exponential": _of("exp"),
    "logarithm": _of("log"),
    "relu": lambda at: f"max(0, {at.term('x')})",
    "silu": _of("silu"),
    "gelu": _of("gelu"),
    "negative": _of("−"),
    "sine": _of("sin"),
    "cosine": _of("cos"),
    "glu": _glu,
    "softmax": _softmax,
    "layer_norm": _norm,
    "rms_norm": _norm,
    "batch_norm": _norm,
    "mean": _mean,
    "total": _mean,
    "highest": _highest,
    "mask": _mask,
    "state_before": _before,
    "surprise": _surprise,
    "keep_top": _gate,
    "mixture": _mixture,
    "written_or_copied": _written_or_copied,
}
_SHORT = frozenset(  # operations that are written out where they stand inside another
    {"add", "subtract", "multiply", "divide", "negative", "linear", "sine", "cosine"}
    | {"tanh", "sigmoid", "relu", "silu", "gelu"}
)
