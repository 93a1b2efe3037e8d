"""Heat maps: a matrix with labels and a colour scale, as a PNG with one pixel per number or drawn by matplotlib.

Both scales are distinguishable with colour blindness and in grey: one hue from pale to deep for non-negative numbers,
orange through white to blue for signed ones.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sightline.plots.figures import INK, breadth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Numbers = NDArray[np.float64]
Colour = tuple[int, int, int]

PALE_TO_DEEP = ("#f5f7fa", "#cddff0", "#8fc0e0", "#4a93c8", "#1f62a3", "#0b3260")
BELOW_TO_ABOVE = ("#7a3d00", "#d97a0c", "#fbd3a0", "#f5f7fa", "#a9cde8", "#3d8bc4", "#0b3260")
UNSEEN, BROKEN = "#c3c0b8", "#d41159"  # of −∞ (masked) and NaN
LEVELS = 254  # of a PNG's palette; the last two of 256 are for −∞ and NaN
_STEPS, _LOW_INFINITE, _HIGH_INFINITE, _NOT_A_NUMBER = 65_000, 65_535, 65_534, 65_533  # codes of 16 bits


@dataclass(frozen=True)
class Scale:
    """The numbers of the first and the last colour."""

    low: float
    high: float

    @staticmethod
    def of(*matrices: Numbers) -> Scale:
        """From zero to the largest number, or symmetric around zero."""
        finite = np.concatenate([matrix[np.isfinite(matrix)].ravel() for matrix in matrices] or [np.zeros(0)])
        peak = float(np.abs(finite).max(initial=0.0)) or 1.0
        return Scale(-peak if float(finite.min(initial=0.0)) < 0 else 0.0, peak)

    @property
    def signed(self) -> bool:
        return self.low < 0

    def levels(self, values: Numbers) -> NDArray[np.uint8]:
        """The index of each number in the palette."""
        levels = np.round(self._shares(values) * (LEVELS - 1)).astype(np.uint8)
        levels[np.isneginf(values)] = LEVELS
        levels[np.isnan(values)] = LEVELS + 1
        return levels

    def encoded(self, values: Numbers) -> str:
        """Base64 of the numbers, quantized to two bytes each, for the page's script."""
        codes = np.round(self._shares(values) * _STEPS).astype("<u2")
        codes[np.isneginf(values)] = _LOW_INFINITE
        codes[np.isposinf(values)] = _HIGH_INFINITE
        codes[np.isnan(values)] = _NOT_A_NUMBER
        return base64.b64encode(codes.tobytes()).decode("ascii")

    def _shares(self, values: Numbers) -> Numbers:
        """Map low … high to 0 … 1."""
        finite = np.nan_to_num(values, posinf=self.high, neginf=self.low)
        shares: Numbers = np.clip((finite - self.low) / (self.high - self.low), 0, 1)
        return shares


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A matrix with labelled rows and columns."""

    values: Numbers  # (R, C)
    rows: Sequence[str]
    columns: Sequence[str]
    label: str  # alternative text
    scale: Scale

    @staticmethod
    def of(
        values: NDArray[np.floating],
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        *,
        label: str = "",
        scale: Scale | None = None,
    ) -> HeatMap:
        """Sides without matching labels are numbered from 0."""
        numbers = np.asarray(values, np.float64)
        sides = [
            list(names) if names is not None and len(names) == size else [str(place) for place in range(size)]
            for names, size in zip((rows, columns), numbers.shape, strict=True)
        ]
        return HeatMap(numbers, sides[0], sides[1], label, scale or Scale.of(numbers))

    def within(self, most: int) -> tuple[HeatMap, str]:
        """Reduce to at most `most` rows and columns by taking the largest of each block; with a note if reduced."""
        blocks = [-(-size // most) for size in self.values.shape]
        if blocks == [1, 1]:
            return self, ""
        values = _largest(self.values, *blocks)
        rows, columns = (_ranges(names, block) for names, block in zip((self.rows, self.columns), blocks, strict=True))
        whole = "×".join(map(str, self.values.shape))
        note = f"sampled: each cell is the largest of {blocks[0]}×{blocks[1]}, of {whole} in all"
        return HeatMap(values, rows, columns, self.label, self.scale), note

    def png(self) -> bytes:
        """A PNG with one pixel per number."""
        from PIL import Image

        levels = self.scale.levels(self.values)  # (R, C)
        image = Image.frombytes("P", (max(levels.shape[1], 1), max(levels.shape[0], 1)), levels.tobytes() or b"\0")
        image.putpalette([part for colour in palette(self.scale.signed) for part in colour])
        content = io.BytesIO()
        image.save(content, "PNG", optimize=True)
        return content.getvalue()


def row_shares(values: NDArray[Any]) -> Numbers:
    """Absolute values divided by the sum of their row (R, C); rows of zeros stay zero."""
    sizes = np.abs(values.astype(np.float64))
    totals = sizes.sum(axis=1, keepdims=True)
    result: Numbers = np.divide(sizes, totals, out=np.zeros(sizes.shape), where=totals > 0)
    return result


def _largest(values: Numbers, down: int, across: int) -> Numbers:
    """The number with the largest absolute value of each block."""
    height, width = values.shape
    padded = np.full((-(-height // down) * down, -(-width // across) * across), np.nan)
    padded[:height, :width] = values
    blocks = padded.reshape(padded.shape[0] // down, down, padded.shape[1] // across, across)
    flat = blocks.transpose(0, 2, 1, 3).reshape(blocks.shape[0], blocks.shape[2], -1)  # (R', C', block)
    sizes = np.where(np.isnan(flat), -1.0, np.where(np.isneginf(flat), -0.5, np.abs(flat)))
    largest: Numbers = np.take_along_axis(flat, sizes.argmax(-1)[..., None], -1)[..., 0]
    return largest


def _ranges(names: Sequence[str], block: int) -> list[str]:
    """Labels of blocks: `first … last`."""
    parts = [names[start : start + block] for start in range(0, len(names), block)]
    return [part[0] if len(part) == 1 else f"{part[0]} … {part[-1]}" for part in parts]


# --- colours ---------------------------------------------------------------------------------------------------------


def rgb(colour: str) -> Colour:
    """`#1f62a3` → (31, 98, 163)."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


@cache
def palette(signed: bool) -> tuple[Colour, ...]:
    """256 colours: the levels of a scale, then those of −∞ and NaN."""
    stops = np.array([rgb(colour) for colour in (BELOW_TO_ABOVE if signed else PALE_TO_DEEP)], np.float64)
    places, at = np.linspace(0, 1, len(stops)), np.linspace(0, 1, LEVELS)
    mixed = np.stack([np.interp(at, places, stops[:, part]) for part in range(3)], axis=1).round().astype(int)
    return (*((int(r), int(g), int(b)) for r, g, b in mixed), rgb(UNSEEN), rgb(BROKEN))


RED_TO_BLUE = ("#8f2a12", "#e0936f", "#f5f7fa", "#4a93c8", "#0b3260")  # darker in both directions
NUMBERED_CELLS = 700  # the numbers of more cells would be too small


def colour_map(stops: Sequence[str]) -> Colormap:
    """Interpolate between colours."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("sightline", list(stops))


def coloured_cells(
    axes: Axes, values: NDArray[Any], stops: Sequence[str], low: float, high: float, *, square: bool = False
) -> AxesImage:
    """Draw a matrix with the first colour at `low` and the last at `high`."""
    colours = colour_map(stops)
    shape: Literal["equal", "auto"] = "equal" if square else "auto"
    return axes.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest", aspect=shape)


def set_cells_apart(axes: Axes, rows: int, columns: int, *, by: float = 1.4) -> None:
    """Draw white lines, `by` points wide, between the cells of a heat map."""
    axes.set_xticks([column - 0.5 for column in range(columns + 1)], minor=True)
    axes.set_yticks([row - 0.5 for row in range(rows + 1)], minor=True)
    axes.grid(which="minor", color="white", linewidth=by)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def name_cells(axes: Axes, columns: Sequence[str], rows: Sequence[str], *, upright: int) -> None:
    """Label columns above and rows beside; rotate column labels if one is wider than `upright`."""
    turned: dict[str, Any] = {}
    if max(map(breadth, columns)) > upright:
        turned = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(columns)), columns, fontsize=10, color=INK, **turned)
    axes.set_yticks(range(len(rows)), rows, fontsize=10, color=INK)


def write_in_cells(axes: Axes, image: AxesImage, texts: Sequence[Sequence[str]], *, size: float) -> None:
    """Write into each cell in white or ink, whichever has more contrast."""
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
    """Draw the colour bar into `place`, in percent for shares."""
    from matplotlib.ticker import PercentFormatter

    form: dict[str, Any] = {"format": PercentFormatter(1.0, decimals=0)} if shares else {}
    bar = figure.colorbar(image, cax=place, **form)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=size, labelcolor=INK)
    bar.set_label(label, fontsize=size + 1, color=INK, labelpad=6)
