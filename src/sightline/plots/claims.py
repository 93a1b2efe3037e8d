"""Figures of `sightline inspect claims`: matrices side by side, and the numbered grid of sequential steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.plots.figures import INK, new_picture
from sightline.plots.matrices import (
    PALE_TO_DEEP,
    RED_TO_BLUE,
    UNSEEN,
    coloured_cells,
    name_cells,
    set_cells_apart,
    write_in_cells,
)

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
