"""What a mixture of experts does, as plain NumPy: token by token and expert by expert, as the formula says it.

Like those of operations.py, where they have their names, these functions are printed into scripts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = Any  # np.ndarray


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
