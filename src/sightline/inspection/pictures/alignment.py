"""An alignment as a picture: a heat map with the tokens along its sides, labels in any script there are fonts for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.inspection.alignment import Alignment, visible
from sightline.inspection.heat_map import PALE_TO_DEEP
from sightline.inspection.pictures.captions import breadth, shortened
from sightline.inspection.pictures.coloured_cells import (
    RED_TO_BLUE,
    colour_bar,
    colour_map,
    set_cells_apart,
    write_in_cell,
)
from sightline.inspection.pictures.figure_files import INK, LARGEST, check_figure, new_figure, plain_style, write_figure
from sightline.inspection.pictures.fonts import drawing, fonts_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_NUMBERED_CELLS = 700  # more than this and the numbers would be dust
_NUMBERED_FROM = 0.05
_UPRIGHT = 4  # labels wider than this are turned
_LONGEST_LABEL = 28


def draw_alignment(alignment: Alignment, path: Path, *, title: str | None = None) -> None:
    """Draw into memory, then write the file in one piece; its suffix (.png, .svg or .pdf) chooses the format."""
    check_figure(path)
    sources = [shortened(visible(token), _LONGEST_LABEL) for token in alignment.source]
    targets = [shortened(visible(token), _LONGEST_LABEL) for token in alignment.target]
    if not sources or not targets:
        raise ValueError(f"there is nothing to draw: {len(sources)} source and {len(targets)} target tokens")
    fonts = fonts_for("".join([*sources, *targets, title or ""]))
    cell = 0.46 if max(map(breadth, sources)) > 2 else 0.36
    figure = new_figure(
        figsize=(min(cell * len(sources) + 2.2, LARGEST), min(cell * len(targets) + 1.6, LARGEST)),
        facecolor="white",
    )
    axes = figure.add_subplot()
    image = _heat_map(axes, alignment)
    _label(axes, sources, targets, fonts)
    if alignment.weights.size <= _NUMBERED_CELLS:
        _number(axes, alignment, image)
    _colour_bar(figure, axes, image)
    if title:
        axes.set_title(
            title,
            fontsize=11,
            color=INK,
            pad=30 if max(map(breadth, sources)) <= _UPRIGHT else 14,
            loc="left",
            family=fonts,
            parse_math=False,
        )
    with drawing(plain_style(fonts)):
        write_figure(figure, path)


def _heat_map(axes: Axes, alignment: Alignment) -> AxesImage:
    peak = max(1.0, float(abs(alignment.weights).max()))
    negative = float(alignment.weights.min()) < 0  # as linear attention has them
    image = axes.imshow(
        alignment.weights,
        cmap=colour_map(RED_TO_BLUE if negative else PALE_TO_DEEP),
        vmin=-peak if negative else 0.0,
        vmax=peak,
        interpolation="nearest",
        aspect="equal",
    )
    set_cells_apart(axes, *alignment.weights.shape)
    return image


def _label(axes: Axes, sources: list[str], targets: list[str], fonts: list[str]) -> None:
    axes.xaxis.tick_top()
    upright = max(map(breadth, sources)) <= _UPRIGHT
    turned: dict[str, Any] = {} if upright else {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(sources)), sources, family=fonts, fontsize=10, color=INK, parse_math=False, **turned)
    axes.set_yticks(range(len(targets)), targets, family=fonts, fontsize=10, color=INK, parse_math=False)
    axes.tick_params(axis="x", which="major", pad=3)
    axes.tick_params(axis="y", which="major", pad=5)


def _number(axes: Axes, alignment: Alignment, image: AxesImage) -> None:
    """The weights that matter, in percent, in a colour that can be read on their cell."""
    colours = image.to_rgba(alignment.weights)  # (T, S, 4)
    for row, weights in enumerate(alignment.weights):
        for column, weight in enumerate(weights):
            if abs(weight) >= _NUMBERED_FROM:
                write_in_cell(axes, row, column, str(round(float(weight) * 100)), colours[row, column], size=7.5)


def _colour_bar(figure: Figure, axes: Axes, image: AxesImage) -> None:
    _, columns = image.get_size()
    across = min(0.2 / max(columns * 0.4, 1.0), 0.06)
    place = axes.inset_axes((1.0 + across, 0.0, across, 1.0))
    colour_bar(figure, image, place, "attention")
