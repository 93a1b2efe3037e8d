"""Figure of all attention heads: a grid of small heat maps (layers × heads) for each kind of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.plots.figures import INK, LARGEST, breadth, heading_lines, new_picture, shortened
from sightline.plots.matrices import PALE_TO_DEEP, colour_bar, coloured_cells
from sightline.terminal import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from sightline.inspection.attention import Head

KINDS = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}

_CELL = 0.15  # inches, enough for a label of 7 points
_LEAST_CELL = 0.07  # inches, for labels of 4 points
_SMALLEST = 1.3  # inches of a panel
_TALLEST = 2 * LARGEST  # inches of all kinds together
_LONGEST_HEAD_LABEL = 16
_HEADING, _BELOW = 0.55, 0.55  # inches above a kind's tokens, and below its last panels
_GAP = 0.32  # inches between panels, including a title
_ROWS = {
    "encoder": "rows: query tokens; columns: key tokens",
    "decoder": "rows: query tokens (decoder input); columns: key tokens",
    "cross": "rows: predicted tokens; columns: source tokens",
}


@dataclass(frozen=True)
class _Group:
    """The heads of one kind, and sizes in inches."""

    heads: list[Head]
    wide: float  # of a panel
    high: float
    above: float  # height of the tokens above the first row

    @property
    def paths(self) -> list[str]:
        return list(dict.fromkeys(head.path for head in self.heads))

    @property
    def numbers(self) -> list[int]:
        return sorted({head.number for head in self.heads})

    @property
    def width(self) -> float:
        return len(self.numbers) * (self.wide + _GAP) - _GAP

    @property
    def height(self) -> float:
        return len(self.paths) * (self.high + _GAP) - _GAP


def draw_head_grid(heads: Sequence[Head], path: Path, *, title: str | None = None) -> None:
    """Draw the heads of a text to a .png, .svg or .pdf file."""
    if not heads:
        raise ValueError(f"{path} has no heads to show; select some")
    with new_picture(path) as figure:
        _draw_panels(figure, heads, title)


def _draw_panels(figure: Figure, heads: Sequence[Head], title: str | None) -> None:
    """Place panels by inches; saving the figure adds room for labels around them."""
    by_kind = [own for kind in KINDS if (own := [head for head in heads if head.kind == kind])]
    groups = [_group(own, _TALLEST / len(by_kind)) for own in by_kind]
    tops = list(accumulate((group.above + _HEADING + group.height + _BELOW for group in groups), initial=0.0))
    width, height = max(group.width for group in groups), tops[-1] - groups[0].above - _HEADING - _BELOW
    figure.set_size_inches(width, height)
    peak = max(1.0, *(float(abs(head.weights).max(initial=0.0)) for head in heads))
    image = None
    for group, top in zip(groups, tops, strict=False):
        start = height - top + groups[0].above - group.above  # top of the panels, from the bottom of the figure
        paths, numbers = group.paths, group.numbers
        for head in group.heads:
            row, column = paths.index(head.path), numbers.index(head.number)
            left, bottom = column * (group.wide + _GAP), start - group.high - row * (group.high + _GAP)
            axes = figure.add_axes((left / width, bottom / height, group.wide / width, group.high / height))
            image = _heat_map(axes, head, peak)
            leftmost = min(each.number for each in group.heads if each.path == head.path)
            _label(axes, head, across=row == 0, down=head.number == leftmost, size=(group.wide, group.high))
        heading = KINDS[group.heads[0].kind] + (": " + title if title and group is groups[0] else "")
        text = heading_lines(heading, max(40, round(width * 11)))
        text += f"\n{_ROWS[group.heads[0].kind]}{_unnamed(group)}"
        figure.text(0, (start + group.above) / height, text, ha="left", va="bottom", fontsize=10, fontweight="bold")
    assert image is not None
    bar = min(2.4, height)
    place = figure.add_axes((1 + 0.2 / width, 1 - bar / height, 0.13 / width, bar / height))
    colour_bar(figure, image, place, "attention", size=7)


def _group(heads: list[Head], tallest: float) -> _Group:
    paths, numbers = {head.path for head in heads}, {head.number for head in heads}
    wide = _panel_size(len(heads[0].keys), len(numbers), LARGEST)
    high = _panel_size(len(heads[0].queries), len(paths), tallest)
    return _Group(heads, wide, high, _above(heads[0], wide))


def _unnamed(group: _Group) -> str:
    """The numbers of labelled tokens, if not all are."""
    columns, rows = len(group.heads[0].keys), len(group.heads[0].queries)
    named = len(_chosen(columns, group.wide)), len(_chosen(rows, group.high))
    return "" if named == (columns, rows) else f" ({named[0]} of {columns} columns, {named[1]} of {rows} rows named)"


def _panel_size(tokens: int, count: int, most: float) -> float:
    """Inches of a panel: room for all labels, less if the panels would not fit."""
    return min(max(tokens * _CELL, _SMALLEST), most / count - _GAP)


def _heat_map(axes: Axes, head: Head, peak: float) -> AxesImage:
    image = coloured_cells(axes, abs(head.weights), PALE_TO_DEEP, 0.0, peak)
    axes.spines[:].set_color("#cbd2d9")
    axes.spines[:].set_linewidth(0.6)
    axes.tick_params(which="both", length=0)
    return image


def _label(axes: Axes, head: Head, *, across: bool, down: bool, size: tuple[float, float]) -> None:
    """Label a panel; only outer panels get tokens, since all panels of a kind share them."""
    sides = ((axes.xaxis, head.keys, across, size[0], 90), (axes.yaxis, head.queries, down, size[1], 0))
    axes.xaxis.tick_top()
    for axis, tokens, named, room, turned in sides:
        places = _chosen(len(tokens), room)
        labels = [_caption(tokens[place]) for place in places] if named else []
        points = min(7.0, room / max(len(tokens), 1) * 72 * 0.85)
        axis.set_ticks(places if named else [], labels=labels, fontsize=max(points, 4.0), color=INK, rotation=turned)
    axes.tick_params(axis="both", pad=2)
    measures = head.measures
    share = "" if measures.entropy_share != measures.entropy_share else f" · entropy {measures.entropy_share:.0%}"
    axes.set_xlabel(f"head {head.number}{share}", fontsize=7, color=INK, labelpad=3)
    if down:
        axes.set_ylabel(_layer(head.path), fontsize=8, color=INK, labelpad=6, fontweight="bold")


def _chosen(count: int, room: float) -> list[int]:
    """The places to label: all, unless the labels would be too small to read."""
    most = max(1, int(room / _LEAST_CELL + 1e-6))
    step = -(-count // most)
    return list(range(0, count, step))


def _layer(path: str) -> str:
    """`decoder.layers.3.cross` → `layer 3`; a path without a number stays."""
    numbers = [part for part in path.split(".") if part.isdigit()]
    return f"layer {numbers[-1]}" if numbers else path


def _above(head: Head, room: float) -> float:
    """Approximate height of the labels above the first row in inches."""
    places = _chosen(len(head.keys), room)
    longest = max((breadth(_caption(head.keys[place])) for place in places), default=0)
    return 0.2 + longest * 0.085


def _caption(token: str) -> str:
    return shortened(visible(token), _LONGEST_HEAD_LABEL)
