"""Figures of alignments and attributions: heat maps with tokens along their sides."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sightline.plots.figures import INK, LARGEST, breadth, new_picture, shortened
from sightline.plots.matrices import (
    NUMBERED_CELLS,
    PALE_TO_DEEP,
    RED_TO_BLUE,
    Numbers,
    colour_bar,
    coloured_cells,
    name_cells,
    set_cells_apart,
    write_in_cells,
)
from sightline.terminal import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sightline.inspection.alignment import Alignment
    from sightline.inspection.attribution import Attribution


_SMALLEST_WRITTEN = 0.05
_UPRIGHT, _UPRIGHT_ATTRIBUTED = 4, 3  # wider labels are rotated
_LONGEST_LABEL = 28
_GAP = 0.45  # inches between the two grids of an attribution


def draw_alignment(alignment: Alignment, path: Path | None = None, *, title: str | None = None) -> Figure:
    """Draw an alignment; also write it to `path` (.png, .svg or .pdf) if there is one."""
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
    negative = float(weights.min()) < 0  # possible with linear attention
    with new_picture(path, figsize=size) as figure:
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
    return figure


def _percent(weight: float) -> str:
    return str(round(weight * 100)) if abs(weight) >= _SMALLEST_WRITTEN else ""


def draw_attribution(attribution: Attribution, path: Path, *, title: str | None = None) -> None:
    """Draw an attribution to a .png, .svg or .pdf file."""
    grids = [
        (name, [_label(token) for token in tokens], values)
        for name, tokens, values in (
            ("source", attribution.source, attribution.from_source),
            ("decoder input", attribution.target, attribution.from_target),
        )
        if tokens
    ]
    if not grids or not attribution.outputs:
        raise ValueError(f"there is nothing to draw in {path.name}: no answers, or no tokens to attribute them to")
    outputs = [_label(token) for token in attribution.outputs]
    cell = 0.42
    columns = sum(len(tokens) for _, tokens, _ in grids)
    width = min(cell * columns + _GAP * (len(grids) - 1), LARGEST)
    height = min(cell * len(outputs), LARGEST)
    with new_picture(path, dpi=150, figsize=(width, height)) as figure:  # labels are in the margin
        _draw_grids(figure, grids, outputs, width)
        if title:
            wrapped = textwrap.fill(title, max(40, round(width * 11)))
            figure.axes[0].set_title(wrapped, fontsize=12, loc="left", pad=12)


def _draw_grids(
    figure: Figure, grids: Sequence[tuple[str, list[str], Numbers]], outputs: list[str], width: float
) -> None:
    peak = max(float(np.abs(values).max(initial=0.0)) for _, _, values in grids) or 1.0
    columns = sum(len(tokens) for _, tokens, _ in grids)
    room = 1 - _GAP / width * (len(grids) - 1)
    left, image = 0.0, None
    for number, (name, tokens, values) in enumerate(grids):
        share = room * len(tokens) / columns
        axes = figure.add_axes((left, 0.0, share, 1.0))
        image = coloured_cells(axes, values, RED_TO_BLUE, -peak, peak)
        set_cells_apart(axes, *values.shape)
        name_cells(axes, tokens, outputs if number == 0 else [], upright=_UPRIGHT_ATTRIBUTED)
        if len(grids) > 1:
            axes.set_xlabel(name, fontsize=10, color=INK, labelpad=8)
        if values.size <= NUMBERED_CELLS:
            write_in_cells(axes, image, [[_written(float(value), peak) for value in row] for row in values], size=7)
        left += share + _GAP / width
    assert image is not None
    place = figure.add_axes((1.0 + 0.2 / width, 0.0, 0.16 / width, 1.0))
    colour_bar(figure, image, place, "nats of log p: against | for", shares=False)


def _written(value: float, peak: float) -> str:
    """Digits follow the smallest number that is written, a twentieth of the peak."""
    if abs(value) < _SMALLEST_WRITTEN * peak:
        return ""
    digits = ".0f" if peak >= 100 else ".1f" if peak >= 2 else ".2g"
    return f"{value:{digits}}".replace("-", "−")


def _label(token: str) -> str:
    shown = "".join(each for each in visible(token) if unicodedata.category(each) != "Cf" or each == "\u200d")
    return shortened(shown, _LONGEST_LABEL)
