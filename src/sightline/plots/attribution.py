"""An attribution as a picture: answers downwards, the source and the target before them across, for and against."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sightline.inspection.alignment import visible
from sightline.inspection.attributed import Attribution
from sightline.plots.captions import shortened
from sightline.plots.coloured_cells import (
    NUMBERED_CELLS,
    RED_TO_BLUE,
    colour_bar,
    coloured_cells,
    name_cells,
    set_cells_apart,
    write_in_cells,
)
from sightline.plots.figure_files import INK, LARGEST, new_picture
from sightline.plots.heat_map import Numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST_LABEL = 28
_UPRIGHT = 3  # labels wider than this are turned
_BETWEEN = 0.45  # inches between the two grids


def draw_attribution(attribution: Attribution, path: Path, *, title: str | None = None) -> None:
    """Draw into memory, then write the file in one piece; its suffix (.png, .svg or .pdf) chooses the format."""
    grids = [
        (name, [_label(token) for token in tokens], found)
        for name, tokens, found in (
            ("source", attribution.source, attribution.from_source),
            ("target before it", attribution.target, attribution.from_target),
        )
        if tokens
    ]
    if not grids or not attribution.outputs:
        raise ValueError(f"there is nothing to draw in {path.name}: no answers, or no tokens to attribute them to")
    outputs = [_label(token) for token in attribution.outputs]
    labels = [*outputs, *(label for _, columns, _ in grids for label in columns), title or ""]
    cell = 0.42
    columns = sum(len(tokens) for _, tokens, _ in grids)
    width = min(cell * columns + _BETWEEN * (len(grids) - 1), LARGEST)
    height = min(cell * len(outputs), LARGEST)
    size = (width, height)  # of the grids: labels stand outside, and the margin makes room
    with new_picture(path, "".join(labels), dpi=150, figsize=size) as figure:
        _draw_grids(figure, grids, outputs, width)
        if title:
            wrapped = textwrap.fill(title, max(40, round(width * 11)))
            figure.axes[0].set_title(wrapped, fontsize=12, loc="left", pad=12)


def _draw_grids(
    figure: Figure, grids: Sequence[tuple[str, list[str], Numbers]], outputs: list[str], width: float
) -> None:
    peak = max(float(np.abs(found).max(initial=0.0)) for _, _, found in grids) or 1.0
    columns = sum(len(tokens) for _, tokens, _ in grids)
    room = 1 - _BETWEEN / width * (len(grids) - 1)
    left, image = 0.0, None
    for number, (name, tokens, found) in enumerate(grids):
        share = room * len(tokens) / columns
        axes = figure.add_axes((left, 0.0, share, 1.0))
        image = coloured_cells(axes, found, RED_TO_BLUE, -peak, peak)
        set_cells_apart(axes, *found.shape)
        name_cells(axes, tokens, outputs if number == 0 else [], upright=_UPRIGHT)
        if len(grids) > 1:
            axes.set_xlabel(name, fontsize=10, color=INK, labelpad=8)
        if found.size <= NUMBERED_CELLS:
            write_in_cells(axes, image, [[_written(float(value), peak) for value in row] for row in found], size=7)
        left += share + _BETWEEN / width
    assert image is not None
    place = figure.add_axes((1.0 + 0.2 / width, 0.0, 0.16 / width, 1.0))
    colour_bar(figure, image, place, "nats of log p: against | for", shares=False)


def _written(value: float, peak: float) -> str:
    """With as many digits as the least number that is written needs: a twentieth of the peak."""
    if abs(value) < 0.05 * peak:
        return ""
    digits = ".0f" if peak >= 100 else ".1f" if peak >= 2 else ".2g"
    return f"{value:{digits}}".replace("-", "−")


def _label(token: str) -> str:
    shown = "".join(each for each in visible(token) if unicodedata.category(each) != "Cf" or each == "\u200d")
    return shortened(shown, _LONGEST_LABEL)
