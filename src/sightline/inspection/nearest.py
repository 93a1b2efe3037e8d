"""The texts nearest to one: by the cosine of their vectors, block by block, with no index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Found = tuple[float, int, str]  # cosine, line, text


def cosines(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """x·q / (‖x‖ ‖q‖) of each row: (rows, D), (D,) → (rows,); 0 where one of both is nothing but zeros."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    found: NDArray[np.float32] = (vectors @ query / np.where(lengths > 0, lengths, np.inf)).astype(np.float32)
    return found


class Nearest:
    """Keeps the best of what it is offered, best first; of equal ones those that came first."""

    def __init__(self, query: NDArray[np.float32], top: int) -> None:
        if top < 1:
            raise ValueError(f"top ({top}) is how many neighbours to keep, at least 1")
        self.query, self.top = query, top
        self.best: list[Found] = []

    def offer(self, lines: Sequence[int], units: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """A block of rows (rows, D)."""
        found = cosines(vectors, self.query)
        order = np.argsort(-found, kind="stable")[: self.top]
        block = [(float(found[place]), lines[place], units[place]) for place in order]
        self.best = sorted([*self.best, *block], key=lambda each: -each[0])[: self.top]
