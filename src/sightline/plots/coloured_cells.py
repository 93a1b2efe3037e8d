"""What the pictures of matrices have in common: colours, cells set apart, numbers that can be read on them, a bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from sightline.plots.captions import breadth
from sightline.plots.figure_files import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

RED_TO_BLUE = ("#8f2a12", "#e0936f", "#f5f7fa", "#4a93c8", "#0b3260")  # lightness falls both ways from nothing
NUMBERED_CELLS = 700  # more than this and the numbers would be dust


def colour_map(stops: Sequence[str]) -> Colormap:
    """From the first colour to the last, through those between."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("sightline", list(stops))


def coloured_cells(
    axes: Axes, values: NDArray[Any], stops: Sequence[str], low: float, high: float, *, square: bool = False
) -> AxesImage:
    """A matrix, from the first colour at `low` to the last at `high`; if not square, cells fill all."""
    colours = colour_map(stops)
    shape: Literal["equal", "auto"] = "equal" if square else "auto"
    return axes.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest", aspect=shape)


def set_cells_apart(axes: Axes, rows: int, columns: int, *, by: float = 1.4) -> None:
    """White lines (so many points wide) between the cells of a heat map, and none around it."""
    axes.set_xticks([column - 0.5 for column in range(columns + 1)], minor=True)
    axes.set_yticks([row - 0.5 for row in range(rows + 1)], minor=True)
    axes.grid(which="minor", color="white", linewidth=by)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def name_cells(axes: Axes, columns: Sequence[str], rows: Sequence[str], *, upright: int) -> None:
    """Names above the columns and beside the rows; where one above is wider than `upright`, all of those are turned."""
    turned: dict[str, Any] = {}
    if max(map(breadth, columns)) > upright:
        turned = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(columns)), columns, fontsize=10, color=INK, **turned)
    axes.set_yticks(range(len(rows)), rows, fontsize=10, color=INK)


def write_in_cells(axes: Axes, image: AxesImage, texts: Sequence[Sequence[str]], *, size: float) -> None:
    """A text for each cell ("": none), in white or in ink, so that it can be read there."""
    values = image.get_array()
    assert values is not None
    colours = image.to_rgba(values)  # (rows, columns, 4)
    for row, across in enumerate(texts):
        for column, text in enumerate(across):
            if text:
                red, green, blue, _ = colours[row, column]
                ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.58 else INK
                axes.text(column, row, text, ha="center", va="center", fontsize=size, color=ink)


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
