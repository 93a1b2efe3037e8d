"""Labels of a tensor's axes, derived from those of its operands for each recorded operation.

The axes of inputs are given (`Recorder.give`), embeddings have a vocabulary axis, and layers name new axes at taps
(`axes={1: "heads"}`). All others follow: a product keeps the rows of one operand and the columns of the other, a slice
keeps the positions of its tokens, a gather reorders them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sightline.inspection.trace import Axis

BATCH, SOURCE, TARGET = Axis("batch"), Axis("source"), Axis("target")
HEADS, EXPERTS, VOCABULARY, FEATURES = Axis("heads"), Axis("experts"), Axis("vocabulary"), Axis("features")
UNKNOWN = Axis()
_MOST = 4_000_000  # numbers of a result whose origins are followed

Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class Operand:
    """An argument that is a record or a weight: its shape, its axes, and its target token, if it has one."""

    shape: tuple[int, ...]
    axes: Axes = ()
    token: int | None = None

    def axis(self, number: int) -> Axis:
        """One axis, possibly unknown."""
        return self.axes[number] if len(self.axes) == len(self.shape) else UNKNOWN


@dataclass(frozen=True)
class Labelled:
    """The axes of a result, and its target token if a decoder runs token by token."""

    axes: Axes
    token: int | None = None


@dataclass(frozen=True)
class Call:
    """One operation: its operands (or lists of them), its other arguments, and the shape of its result."""

    operands: Mapping[str, Any]
    constants: Mapping[str, Any]
    shape: tuple[int, ...]
    moved: str  # the operand whose numbers the operation moves, if it only moves numbers
    sources: Callable[[], Any]  # the flat index in that operand of each number of the result

    def all(self) -> list[Operand]:
        """Every operand."""
        every = [part for each in self.operands.values() for part in (each if isinstance(each, list) else [each])]
        return [each for each in every if isinstance(each, Operand)]

    @property
    def token(self) -> int | None:
        """The latest target token among the operands."""
        tokens = [each.token for each in self.all() if each.token is not None]
        return max(tokens) if tokens else None


Rule = Callable[[Call], Labelled]


def elementwise(call: Call) -> Labelled:
    """The axes of broadcast operands: the first known label of each."""
    return Labelled(_merged(call.all(), call.shape), call.token)


def _merged(operands: Sequence[Operand], shape: Sequence[int]) -> Axes:
    merged = []
    for back in range(-len(shape), 0):
        candidates = [
            each.axis(back) for each in operands if len(each.shape) >= -back and each.shape[back] == shape[back]
        ]
        best = UNKNOWN
        for axis in candidates:
            vague = best.kind in ("", "features", "batch") and axis.kind
            same = axis.kind == best.kind and shape[back]
            if vague or (same and _comes_before(axis, best, shape[back])):
                best = axis
        merged.append(best)
    return tuple(merged)


def _comes_before(one: Axis, other: Axis, size: int) -> bool:
    """Prefer all tokens in order (a convolution's own input), else the latest token."""
    if size == 1:
        return one.place(0) > other.place(0)
    whole = tuple(range(size))
    return (one.places or whole) == whole != (other.places or whole)


def first(call: Call) -> Labelled:
    """The axes of the first operand, where the sizes agree."""
    operand = call.all()[0]
    same = operand.axes if len(operand.axes) == len(call.shape) else ()
    axes = tuple(
        axis if size == old or axis.kind in ("vocabulary", "features") else UNKNOWN
        for axis, size, old in zip(same, call.shape, operand.shape, strict=False)
    )
    return Labelled(axes, call.token)


def first_with_features(call: Call) -> Labelled:
    """The axes of the first operand, with features as the last."""
    labelled = first(call)
    return replace(labelled, axes=(*labelled.axes[:-1], FEATURES) if labelled.axes else ())


def of(name: str) -> Rule:
    """The axes of one operand."""
    return lambda call: Labelled(call.operands[name].axes, call.token)


def matmul(call: Call) -> Labelled:
    a, b = call.operands["a"], call.operands["b"]
    if len(b.shape) == 1:
        return Labelled(tuple(a.axis(n) for n in range(len(a.shape) - 1)), call.token)
    leading = _merged(
        [Operand(each.shape[:-2], tuple(each.axis(n) for n in range(len(each.shape) - 2))) for each in (a, b)],
        call.shape[:-2],
    )
    return Labelled((*leading, a.axis(-2), b.axis(-1)), call.token)


def linear(call: Call) -> Labelled:
    x, weight = call.operands["x"], call.operands["weight"]
    last = weight.axis(0) if weight.axis(0).kind else FEATURES
    return Labelled((*(x.axis(n) for n in range(len(x.shape) - 1)), last), call.token)


def reduced(call: Call) -> Labelled:
    x, over = call.operands["x"], call.constants.get("axes")
    gone = set(range(len(x.shape))) if over is None else {axis % len(x.shape) for axis in over}
    if call.constants.get("keep"):
        return Labelled(tuple(UNKNOWN if n in gone else x.axis(n) for n in range(len(x.shape))), call.token)
    return Labelled(tuple(x.axis(n) for n in range(len(x.shape)) if n not in gone), call.token)


def embedding(call: Call) -> Labelled:
    tokens = call.operands["tokens"]
    return Labelled((*(tokens.axis(n) for n in range(len(tokens.shape))), FEATURES), call.token)


def select(call: Call) -> Labelled:
    """Remove an axis; selecting from target tokens sets the token."""
    x, axis = call.operands["x"], call.constants["axis"]
    gone, place = x.axis(axis), call.constants["index"] % x.shape[axis]
    token = gone.place(place) if gone.kind == "target" else call.token
    return Labelled(tuple(x.axis(n) for n in range(len(x.shape)) if n != axis), token)


def concatenate(call: Call) -> Labelled:
    parts, joined = call.operands["parts"], call.constants["axis"] % len(call.shape)
    axes = list(_merged([part for part in parts if len(part.shape) == len(call.shape)], call.shape))
    along = [part.axis(joined) for part in parts]
    kinds = {axis.kind for axis in along if axis.kind}
    if len(kinds) == 1 and kinds <= {"source", "target"}:  # unknown axes are padding
        places = [
            axis.place(k) if axis.kind else -1
            for part, axis in zip(parts, along, strict=True)
            for k in range(part.shape[joined])
        ]
        axes[joined] = Axis(next(iter(kinds)), tuple(places))
    elif len(kinds) == 1 and all(axis.kind for axis in along):
        axes[joined] = Axis(next(iter(kinds)))
    elif all(part.token is not None and part.shape[joined] == 1 for part in parts):
        return Labelled((*axes[:joined], _tokens(parts), *axes[joined + 1 :]))
    else:
        axes[joined] = UNKNOWN
    return Labelled(tuple(axes), call.token)


def stack(call: Call) -> Labelled:
    """Add an axis: the target tokens, if each part belongs to one."""
    parts, new = call.operands["parts"], call.constants["axis"] % len(call.shape)
    axes = list(_merged(parts, [*call.shape[:new], *call.shape[new + 1 :]]))
    if all(part.token is not None for part in parts):
        return Labelled((*axes[:new], _tokens(parts), *axes[new:]))
    return Labelled((*axes[:new], UNKNOWN, *axes[new:]), call.token)


def _tokens(parts: Sequence[Operand]) -> Axis:
    return Axis("target", tuple(part.token for part in parts if part.token is not None))


def moved(call: Call) -> Labelled:
    """The axes of moved numbers: an axis of the result is the axis of x along which its numbers lie."""
    x = call.operands[call.moved]
    size = int(np.prod(call.shape))
    if not x.axes or not size or size > _MOST:
        return Labelled((), call.token)
    sources = call.sources()
    coordinates = np.unravel_index(np.maximum(sources, 0), x.shape) if x.shape else ()
    lines, used = [], set()
    for axis in range(len(call.shape)):  # the line through the first number along each axis of the result
        line = tuple(slice(None) if n == axis else 0 for n in range(len(call.shape)))
        moving = [n for n, places in enumerate(coordinates) if len(set(places[line].tolist())) > 1]
        lines.append((line, moving))
        used.update(moving)
    constant = _constant([n for n, (_, moving) in enumerate(lines) if not moving], x, used)
    axes, kept = [], set()
    for number, (line, moving) in enumerate(lines):
        moving = moving or [constant[number]]
        kept.update(moving)
        if len(moving) > 1:
            axes.append(FEATURES if "features" in {x.axis(n).kind for n in moving} else UNKNOWN)
        elif moving[0] < 0:
            axes.append(UNKNOWN)
        else:
            axes.append(_taken(x.axis(moving[0]), x.shape[moving[0]], coordinates[moving[0]][line], sources[line] < 0))
    token = call.token
    for n in range(len(x.shape)):
        if n not in kept and x.axis(n).kind == "target":
            token = x.axis(n).place(int(coordinates[n].flat[0]))
    return Labelled(tuple(axes), token)


def _constant(places: list[int], x: Operand, used: set[int]) -> dict[int, int]:
    """Match axes of size 1 (or constant ones) of the result to unused axes of x: batch first, others from the end."""
    matched = dict.fromkeys(places, -1)
    rest = [n for n in range(len(x.shape)) if n not in used]
    if places and rest and places[0] == rest[0] == 0:
        matched[0] = 0
        places, rest = places[1:], rest[1:]
    for place, n in zip(reversed(places), reversed(rest), strict=False):
        matched[place] = n
    return matched


def _taken(axis: Axis, size: int, places: Any, padding: Any) -> Axis:
    """An axis of selected entries; −1 for padding."""
    if axis.kind not in ("source", "target", "vocabulary", "predicted"):
        return axis
    taken = [-1 if empty else axis.place(int(k)) for k, empty in zip(places, padding, strict=True)]
    return Axis(axis.kind, () if taken == list(range(size)) else tuple(taken))
