"""Figures of `sightline inspect claims`: matrices side by side, and the numbered grid of sequential steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sightline.plots.figures import INK, new_picture
from sightline.plots.matrices import (
    PALE_TO_DEEP,
    RED_TO_BLUE,
    UNSEEN,
    colour_map,
    coloured_cells,
    name_cells,
    set_cells_apart,
    write_in_cells,
)

if TYPE_CHECKING:
    from sightline.inspection.claims.sequential_steps import StepGrid

_CELL = 0.62  # inches


def draw_matrices(
    matrices: Mapping[str, NDArray[Any]],
    labels: Sequence[str],
    path: Path,
    *,
    columns: Sequence[str] | None = None,
    digits: int = 2,
) -> None:
    """Draw matrices (R, C) with the same labels side by side, their numbers in the cells; −∞ is grey."""
    across = labels if columns is None else columns
    size = ((_CELL * len(across) + 1.3) * len(matrices), _CELL * len(labels) + 1.5)
    with new_picture(path, {"font.size": 9}, figsize=size, layout="constrained") as figure:
        for axes, (title, values) in zip(
            figure.subplots(1, len(matrices), squeeze=False)[0], matrices.items(), strict=True
        ):
            finite = values[np.isfinite(values)]
            peak = float(np.abs(finite).max(initial=0.0)) or 1.0
            signed = bool((finite < 0).any())
            shown = np.where(np.isfinite(values), values, np.nan)
            image = coloured_cells(axes, shown, RED_TO_BLUE if signed else PALE_TO_DEEP, -peak if signed else 0, peak)
            axes.set_facecolor(UNSEEN)
            set_cells_apart(axes, *values.shape)
            name_cells(axes, across, labels, upright=5)
            texts = [[f"{value:.{digits}f}" if np.isfinite(value) else "" for value in row] for row in values]
            write_in_cells(axes, image, [[text.replace("-", "−") for text in row] for row in texts], size=9)
            for row, column in zip(*np.nonzero(np.isneginf(values)), strict=True):
                axes.text(column, row, "−∞", ha="center", va="center", color=INK)
            axes.set_xlabel(title)


def draw_step_grids(grids: Sequence[StepGrid], path: Path) -> None:
    """Draw states as numbered circles, by layer and position, with lines to the states that they read."""
    length = 1 + max(t for _, t, _ in grids[0].reads)
    across = min(3, len(grids))
    down = -(-len(grids) // across)
    size = ((0.62 * length + 0.9) * across, 2.9 * down)
    with new_picture(path, {"font.size": 9}, figsize=size, layout="constrained") as figure:
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for axes, grid in zip(panels, grids, strict=False):
            _draw_steps(axes, grid)
        for axes in panels[len(grids) :]:
            axes.set_visible(False)


def _draw_steps(axes: Any, grid: StepGrid) -> None:
    shift = {"": 0.0, "→": -0.16, "←": 0.16}  # both directions of a state beside each other
    most = max(grid.last, 1)
    colours = colour_map(PALE_TO_DEEP)

    def place(node: tuple[int, int, str]) -> tuple[float, float]:
        layer, t, side = node
        return t + shift[side], layer + shift[side]

    for node, read in grid.reads.items():
        for each in read:
            xs, ys = zip(place(each), place(node), strict=True)
            axes.plot(xs, ys, color="#9aa5b1", linewidth=0.6, zorder=1)
    embeddings = {each: 0 for read in grid.reads.values() for each in read if each[0] == 0}
    for node, steps in {**embeddings, **grid.steps}.items():
        x, y = place(node)
        colour = colours(steps / most)
        axes.scatter([x], [y], s=150, color=[colour], edgecolors=INK, linewidths=0.6, zorder=2)
        dark = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] < 0.58
        ink = "white" if dark else INK
        axes.text(x, y, str(steps), ha="center", va="center", fontsize=7, color=ink, zorder=3)
    layers = max(layer for layer, _, _ in grid.reads)
    axes.set_yticks(range(layers + 1), ["x", *(f"layer {layer}" for layer in range(1, layers + 1))])
    axes.set_xticks([])
    axes.margins(0.12)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{grid.name}: {grid.last} steps", fontsize=10, loc="left")
