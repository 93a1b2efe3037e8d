"""What the pictures of matrices have in common: colours, cells set apart, numbers that can be read on them, a bar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sightline.inspection.pictures.figure_files import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

RED_TO_BLUE = ("#8f2a12", "#e0936f", "#f5f7fa", "#4a93c8", "#0b3260")  # lightness falls both ways from nothing


def colour_map(stops: Sequence[str]) -> Colormap:
    """From the first colour to the last, through those between."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("sightline", list(stops))


def set_cells_apart(axes: Axes, rows: int, columns: int, *, by: float = 1.4) -> None:
    """White lines (so many points wide) between the cells of a heat map, and none around it."""
    axes.set_xticks([column - 0.5 for column in range(columns + 1)], minor=True)
    axes.set_yticks([row - 0.5 for row in range(rows + 1)], minor=True)
    axes.grid(which="minor", color="white", linewidth=by)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def write_in_cell(axes: Axes, row: int, column: int, text: str, colour: Iterable[float], *, size: float) -> None:
    """Write into a cell of this colour (red, green, blue, alpha), so that it can be read there."""
    red, green, blue, _ = colour
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.58
    axes.text(column, row, text, ha="center", va="center", fontsize=size, color="white" if dark else INK)


def colour_bar(
    figure: Figure, image: AxesImage, place: Axes, label: str, *, shares: bool = True, size: float = 8
) -> None:
    """What the colours stand for, in percent if they are shares."""
    from matplotlib.ticker import PercentFormatter

    form: dict[str, Any] = {"format": PercentFormatter(1.0, decimals=0)} if shares else {}
    bar = figure.colorbar(image, cax=place, **form)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=size, labelcolor=INK)
    bar.set_label(label, fontsize=size + 1, color=INK, labelpad=6)
