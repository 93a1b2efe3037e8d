"""One word in many places: its vectors there, and a plane to look at them in.

The same word has one vector in a table of word vectors; a model that reads has one for each place where it stands. In
the plane of the two directions in which they differ most, places where the word means the same lie together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Occurrences:
    """The places of a word, and its vectors there, layer by layer."""

    word: str
    contexts: list[str]  # a few words around each
    layers: dict[str, NDArray[np.float32]]  # (places, D) each, the lowest first


def principal_plane(vectors: NDArray[np.float32]) -> tuple[Numbers, Numbers]:
    """Principal components: (n, D) → coordinates (n, 2) and the share of the variance along each (2,).

    X − mean = U S Vᵀ; coordinates are the first two columns of U S, shares S² / Σ S² (Pearson 1901). Where all vectors
    are one, all stand at the origin.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    least = 1e-9 * max(1.0, float(np.abs(vectors).max(initial=0.0)))  # below this it is rounding
    sizes = np.where(sizes > least * np.sqrt(vectors.size), sizes, 0.0)
    room = max(0, 2 - len(sizes))
    places = np.pad((left * sizes)[:, :2], ((0, 0), (0, room)))
    shares = np.pad(sizes[:2] ** 2, (0, room)) / max(float((sizes**2).sum()), np.finfo(np.float64).tiny)
    return places, shares


def turned_alike(places: Numbers, model: Numbers) -> Numbers:
    """The same plane with each axis turned so that it runs as the model's: components have no sign of their own."""
    signs = np.where((places * model).sum(axis=0) < 0, -1.0, 1.0)
    result: Numbers = places * signs
    return result
