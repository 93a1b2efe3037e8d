"""Writing or copying a word, as plain NumPy: word by word, as the formula says it.

Like those of operations.py, where they have their names, these functions are printed into scripts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # np.ndarray


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
