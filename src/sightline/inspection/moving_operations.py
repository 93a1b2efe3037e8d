"""The same numbers in other places, as plain NumPy: what a step of a walk-through moves, cuts, turns or repeats.

Like those of operations.py, where they have their names, these functions are printed into scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any  # np.ndarray


def same(x: Array) -> Array:
    return x


def result(x: Array) -> Array:
    """What was reached another way and is told this way."""
    return x


def reshape(x: Array, shape: Sequence[int]) -> Array:
    return np.reshape(x, shape)


def broadcast(x: Array, shape: Sequence[int]) -> Array:
    return np.broadcast_to(x, shape)


def transpose(x: Array, axes: Sequence[int]) -> Array:
    return np.transpose(x, axes)


def cut(x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    """What stands from `start` up to `stop` on one axis."""
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def pick(x: Array, axis: int, index: int) -> Array:
    """One place of an axis."""
    return np.take(x, index, axis)


def concatenate(parts: Sequence[Array], axis: int = 0) -> Array:
    return np.concatenate(parts, axis)


def stack(parts: Sequence[Array], axis: int = 0) -> Array:
    return np.stack(parts, axis)


def windows(x: Array, axis: int, size: int, step: int) -> Array:
    """Every run of `size` neighbours on an axis, along a new last axis."""
    return np.lib.stride_tricks.sliding_window_view(x, size, axis)[(slice(None),) * axis + (slice(None, None, step),)]


def pad(x: Array, widths: Sequence[Sequence[int]], value: float = 0.0) -> Array:
    return np.pad(x, widths, constant_values=value)


def flip(x: Array, axes: Sequence[int]) -> Array:
    return np.flip(x, tuple(axes))


def tile(x: Array, times: Sequence[int]) -> Array:
    return np.tile(x, times)


def repeat(x: Array, times: int, axis: int) -> Array:
    return np.repeat(x, times, axis)


def rows(x: Array, indices: Sequence[Array | None]) -> Array:
    """x[indices], where None takes a whole axis."""
    return x[tuple(slice(None) if index is None else index for index in indices)]


def take(x: Array, axis: int, index: Array) -> Array:
    return np.take(x, index, axis)


def gather(x: Array, axis: int, index: Array) -> Array:
    return np.take_along_axis(x, index, axis)


def embedding(weight: Array, tokens: Array) -> Array:
    return weight[tokens]


def cast(x: Array, kind: str) -> Array:
    return x.astype(kind)


MOVES: tuple[Callable[..., Any], ...] = (
    same, result, reshape, broadcast, transpose, cut, pick, concatenate, stack, windows, pad, flip, tile, repeat,
    rows, take, gather, embedding, cast,
)  # fmt: skip
