"""Figure of a word's occurrences: numbered points on a plane for each layer, and their contexts below."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sightline.plots.figures import GRID, INK, breadth, new_picture, shortened
from sightline.plots.matrices import Numbers
from sightline.terminal import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sightline.inspection.word_senses import Occurrences

_ACROSS = 3  # panels in a row; four of four
_PANEL = 3.5  # inches
_LINE = 0.21  # inches for a line of context
_CHARACTER = 0.076  # inches, approximately
_LONGEST = 64
_STYLE = {
    "axes.edgecolor": GRID,
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.bottom": False,
    "ytick.left": False,
}


def draw_senses(occurrences: Occurrences, path: Path, *, title: str | None = None) -> None:
    """Draw the occurrences to a .png, .svg or .pdf file; colours follow the last layer's first component."""
    planes = _planes(occurrences)
    contexts = [shortened(visible(context), _LONGEST) for context in occurrences.contexts]
    across = 4 if len(planes) == 4 else min(_ACROSS, len(planes))
    down = math.ceil(len(planes) / across)
    width = _PANEL * across
    columns = max(1, min(int(width / (_CHARACTER * (max(map(breadth, contexts)) + 7))), math.ceil(len(contexts) / 4)))
    listed = _LINE * math.ceil(len(contexts) / columns) + 0.3
    heading = title or f"“{occurrences.word}” in {len(contexts)} places"
    size = (width, _PANEL * down + listed + 0.5)
    with new_picture(path, _STYLE, margin=0.15, figsize=size) as figure:
        bottom = listed / figure.get_figheight()
        colours = _colours(planes)
        grid = figure.add_gridspec(down, across, bottom=bottom + 0.02, top=1 - 0.75 / figure.get_figheight())
        grid.update(left=0.03, right=0.97, wspace=0.12, hspace=0.2)
        for number, (name, (places, shares)) in enumerate(planes.items()):
            axes = figure.add_subplot(grid[number // across, number % across])
            _draw_plane(axes, name, places, shares, colours)
        figure.suptitle(heading, fontsize=13, x=0.03, y=1 - 0.12 / figure.get_figheight(), ha="left", va="top")
        _list(figure, contexts, colours, columns, bottom)


def principal_plane(vectors: NDArray[np.float32]) -> tuple[Numbers, Numbers]:
    """Principal components: (n, D) → coordinates (n, 2) and the share of the variance along each (2,).

    X − mean = U S Vᵀ; coordinates are the first two columns of U S, shares S² / Σ S² (Pearson 1901). Equal vectors are
    at the origin.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    least = 1e-9 * max(1.0, float(np.abs(vectors).max(initial=0.0)))  # smaller ones are rounding errors
    sizes = np.where(sizes > least * np.sqrt(vectors.size), sizes, 0.0)
    room = max(0, 2 - len(sizes))
    places = np.pad((left * sizes)[:, :2], ((0, 0), (0, room)))
    shares = np.pad(sizes[:2] ** 2, (0, room)) / max(float((sizes**2).sum()), np.finfo(np.float64).tiny)
    return places, shares


def align_axes(places: Numbers, model: Numbers) -> Numbers:
    """Flip axes to agree with `model`: the sign of a principal component is arbitrary."""
    signs = np.where((places * model).sum(axis=0) < 0, -1.0, 1.0)
    result: Numbers = places * signs
    return result


def _planes(occurrences: Occurrences) -> dict[str, tuple[Numbers, Numbers]]:
    """The plane of each layer, with the signs of the last."""
    planes = {name: principal_plane(vectors) for name, vectors in occurrences.layers.items()}
    last, _ = planes[list(planes)[-1]]
    return {name: (align_axes(places, last), shares) for name, (places, shares) in planes.items()}


def _colours(planes: dict[str, tuple[Numbers, Numbers]]) -> list[Any]:
    """A colour of cividis (made for colour-blind readers) for each place on the last layer's first component."""
    from matplotlib import colormaps

    first = planes[list(planes)[-1]][0][:, 0]
    spread = float(np.ptp(first)) or 1.0
    return [colormaps["cividis"](0.05 + 0.85 * (value - first.min()) / spread) for value in first]


def _draw_plane(axes: Axes, name: str, places: Numbers, shares: Numbers, colours: list[Any]) -> None:
    same = not places.any()
    for number, ((x, y), colour) in enumerate(zip(places, colours, strict=True), 1):
        over = 2 + number / 100  # a point covers the numbers of earlier ones
        axes.scatter([x], [y], s=120, color=[INK if same else colour], edgecolors="white", linewidths=0.8, zorder=over)
        if not same:
            ink = "white" if sum(colour[:3]) < 1.5 else INK
            axes.text(x, y, str(number), color=ink, ha="center", va="center", fontsize=7, zorder=over)
    variance = "all the same" if same else f"{shares[0]:.0%} and {shares[1]:.0%} of the variance"
    axes.set_title(f"{name}: {variance}", fontsize=9.5, loc="left")
    reach = 1.18 * (float(np.abs(places).max()) or 1.0)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_xticks([0.0], [""])
    axes.set_yticks([0.0], [""])
    axes.set_aspect("equal")


def _list(figure: Figure, contexts: list[str], colours: list[Any], columns: int, bottom: float) -> None:
    """List number, colour and context of each place in columns."""
    axes = figure.add_axes((0.03, 0.0, 0.94, bottom))
    axes.set_axis_off()
    rows = math.ceil(len(contexts) / columns)
    whole = 0.94 * figure.get_figwidth()  # inches
    axes.set_xlim(0, whole)
    axes.set_ylim(rows + 0.6, -0.4)
    for number, context in enumerate(contexts):
        column, row = divmod(number, rows)
        left = column * whole / columns
        axes.scatter([left + 0.07], [row], s=60, color=[colours[number]], edgecolors="white", clip_on=False)
        axes.text(left + 0.36, row, f"{number + 1}", ha="right", va="center", fontsize=9)
        axes.text(left + 0.44, row, context, ha="left", va="center", fontsize=9)
