"""The minimum number of sequential steps before each state can be computed, for each architecture.

A state can be computed one step after all states that it reads; embeddings are there at step 0:

    steps(s) = 1 + max{ steps(r) : s reads r }

A step is one state of one layer, however much arithmetic that is: a cell, an attention with its feed-forward net, a
convolution. States with the same number can be computed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sightline.inspection.claims.table import Claim, ClaimTable

Node = tuple[int, int, str]  # layer from 1 (0: embeddings), position from 0, direction: "", "→" or "←"
Reads = dict[Node, list[Node]]  # each state and what it reads


def recurrent(length: int, layers: int) -> Reads:
    """h_t of layer l reads h_t of layer l − 1 and its own h_{t−1}."""
    return {
        (layer, t, ""): [(layer - 1, t, ""), *([(layer, t - 1, "")] if t else [])]
        for layer in range(1, layers + 1)
        for t in range(length)
    }


def bidirectional(length: int, layers: int) -> Reads:
    """→h_t reads →h_{t−1}, ←h_t reads ←h_{t+1}, and both read both directions of the layer below."""
    reads: Reads = {}
    for layer in range(1, layers + 1):
        sides = ("",) if layer == 1 else ("→", "←")
        for t in range(length):
            below = [(layer - 1, t, side) for side in sides]
            reads[layer, t, "→"] = below + ([(layer, t - 1, "→")] if t else [])
            reads[layer, t, "←"] = below + ([(layer, t + 1, "←")] if t + 1 < length else [])
    return reads


def attention(length: int, layers: int, *, causal: bool = False) -> Reads:
    """Every position reads all positions of the layer below; causal: those up to its own."""
    return {
        (layer, t, ""): [(layer - 1, k, "") for k in range(t + 1 if causal else length)]
        for layer in range(1, layers + 1)
        for t in range(length)
    }


def convolution(length: int, layers: int, *, kernel: int = 3) -> Reads:
    """Every position reads `kernel` positions around it in the layer below."""
    half = kernel // 2
    return {
        (layer, t, ""): [(layer - 1, k, "") for k in range(max(0, t - half), min(length, t + half + 1))]
        for layer in range(1, layers + 1)
        for t in range(length)
    }


def window(length: int, layers: int, *, size: int = 4) -> Reads:
    """The first layer reads the last `size` embeddings, each further layer its own position."""
    first = {(1, t, ""): [(0, k, "") for k in range(max(0, t - size + 1), t + 1)] for t in range(length)}
    return first | {(layer, t, ""): [(layer - 1, t, "")] for layer in range(2, layers + 1) for t in range(length)}


ARCHITECTURES: dict[str, Callable[[int, int], Reads]] = {
    "recurrent": recurrent,
    "bidirectional": bidirectional,
    "convolutional": convolution,
    "transformer": attention,
    "transformer-decoder": partial(attention, causal=True),
    "window": window,
}
FORMULAS = {"recurrent": "n + L − 1", "bidirectional": "n · L"}  # of the others L


def sequential_steps(reads: Reads) -> dict[Node, int]:
    """The number of steps before each state is computed."""
    steps: dict[Node, int] = {}

    def count(node: Node) -> int:
        if node not in reads:  # an embedding
            return 0
        if node not in steps:
            steps[node] = 1 + max(count(each) for each in reads[node])
        return steps[node]

    # from both ends, so that no chain is followed deeper than one layer
    for node in sorted(reads, key=lambda node: (node[0], -node[1] if node[2] == "←" else node[1])):
        count(node)
    return steps


@dataclass(frozen=True)
class StepGrid:
    """The states of one architecture with their steps."""

    name: str
    reads: Reads
    steps: dict[Node, int]

    @staticmethod
    def of(name: str, length: int, layers: int) -> StepGrid:
        """The grid of an entry of ARCHITECTURES."""
        reads = ARCHITECTURES[name](length, layers)
        return StepGrid(name, reads, sequential_steps(reads))

    @property
    def last(self) -> int:
        """Steps until every state is computed."""
        return max(self.steps.values())

    def rows(self) -> list[tuple[str, list[int]]]:
        """The steps of each layer and direction by position, from the top; embeddings last."""
        sides = sorted({(layer, side) for layer, _, side in self.reads}, reverse=True)
        length = 1 + max(t for _, t, _ in self.reads)
        rows = [
            (f"layer {layer} {side}".rstrip(), [self.steps[layer, t, side] for t in range(length)])
            for layer, side in sides
        ]
        return [*rows, ("embeddings", [0] * length)]


def steps_claim(
    names: Sequence[str] = (), *, length: int = 6, layers: int = 2, lengths: Sequence[int] = (8, 64, 512)
) -> Claim:
    """Grids of a short sequence, and the steps of longer ones."""
    for name in names:
        if name not in ARCHITECTURES:
            raise ValueError(f"--architecture {name}: use {', '.join(ARCHITECTURES)}")
    grids = [StepGrid.of(name, length, layers) for name in names or ARCHITECTURES]
    tables = [
        ClaimTable(grid.name, ["", *map(str, range(1, length + 1))], [[name, *row] for name, row in grid.rows()])
        for grid in grids
    ]
    rows: list[list[str | int]] = [
        [grid.name, FORMULAS.get(grid.name, "L"), *(StepGrid.of(grid.name, n, layers).last for n in lengths)]
        for grid in grids
    ]
    title = f"steps until all states are computed, {layers} layers"
    tables.append(ClaimTable(title, ["architecture", "L layers", *(f"n = {n}" for n in lengths)], rows))
    notes = [
        "Training and reading take these steps forward, and as many backward; states with one number run in parallel.",
        "Writing is sequential for all: token t + 1 is chosen after token t, so n tokens take n · L steps.",
    ]

    def draw(path: Path) -> None:
        from sightline.plots.claims import draw_step_grids

        draw_step_grids(grids, path)

    claim = "A recurrent state waits for the states before it; with attention or convolution it waits for layers alone"
    return Claim(claim, tables, notes, {}, draw)
