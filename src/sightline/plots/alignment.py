"""An alignment as a picture: a heat map with the tokens along its sides, labels in any script there are fonts for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sightline.inspection.alignment import Alignment, visible
from sightline.plots.captions import breadth, shortened
from sightline.plots.coloured_cells import (
    NUMBERED_CELLS,
    RED_TO_BLUE,
    colour_bar,
    coloured_cells,
    name_cells,
    set_cells_apart,
    write_in_cells,
)
from sightline.plots.figure_files import (
    INK,
    LARGEST,
    check_can_draw,
    check_figure,
    new_figure,
    plain_style,
    write_figure,
)
from sightline.plots.fonts import drawing, fonts_for
from sightline.plots.heat_map import PALE_TO_DEEP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUMBERED_FROM = 0.05
_UPRIGHT = 4  # labels wider than this are turned
_LONGEST_LABEL = 28


def draw_alignment(alignment: Alignment, path: Path | None = None, *, title: str | None = None) -> Figure:
    """The picture as a figure, also written to `path` if one is given; its suffix (.png, .svg, .pdf) is the format."""
    check_can_draw() if path is None else check_figure(path)
    sources, targets = (
        [shortened(visible(token), _LONGEST_LABEL) for token in side] for side in (alignment.source, alignment.target)
    )
    if not sources or not targets:
        raise ValueError(f"there is nothing to draw: {len(sources)} source and {len(targets)} target tokens")
    widest = max(map(breadth, sources))
    cell = 0.46 if widest > 2 else 0.36
    size = min(cell * len(sources) + 2.2, LARGEST), min(cell * len(targets) + 1.6, LARGEST)
    weights = alignment.weights
    peak = max(1.0, float(abs(weights).max()))
    negative = float(weights.min()) < 0  # as linear attention has them
    with drawing(plain_style(fonts_for("".join([*sources, *targets, title or ""])))):
        figure = new_figure(facecolor="white", figsize=size)
        axes = figure.add_subplot()
        colours, low = (RED_TO_BLUE, -peak) if negative else (PALE_TO_DEEP, 0.0)
        image = coloured_cells(axes, weights, colours, low, peak, square=True)
        set_cells_apart(axes, *weights.shape)
        name_cells(axes, sources, targets, upright=_UPRIGHT)
        axes.tick_params(axis="x", which="major", pad=3)
        axes.tick_params(axis="y", which="major", pad=5)
        if weights.size <= NUMBERED_CELLS:
            percents = [[_percent(float(weight)) for weight in row] for row in weights]
            write_in_cells(axes, image, percents, size=7.5)
        across = min(0.2 / max(len(sources) * 0.4, 1.0), 0.06)
        colour_bar(figure, image, axes.inset_axes((1.0 + across, 0.0, across, 1.0)), "attention")
        if title:
            axes.set_title(title, fontsize=11, color=INK, pad=30 if widest <= _UPRIGHT else 14, loc="left")
        if path is not None:
            write_figure(figure, path)
    return figure


def _percent(weight: float) -> str:
    """Nothing for what does not matter."""
    return str(round(weight * 100)) if abs(weight) >= _NUMBERED_FROM else ""
