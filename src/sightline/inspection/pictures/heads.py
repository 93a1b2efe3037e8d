"""All heads of one kind of attention in one picture: layers downwards, heads across, each a small heat map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.inspection.alignment import visible
from sightline.inspection.attention_views import KINDS, Head
from sightline.inspection.heat_map import PALE_TO_DEEP
from sightline.inspection.pictures.captions import breadth, heading_lines, shortened
from sightline.inspection.pictures.coloured_cells import colour_bar, coloured_cells
from sightline.inspection.pictures.figure_files import INK, LARGEST, new_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_CELL = 0.15  # inches of a cell where there is room, enough for a label of 7 points
_SMALLEST, _WIDEST = 1.3, 4.2  # inches of a panel
_MOST_LABELS = 48  # along a side of a panel; of more, evenly chosen ones are written
_LONGEST_LABEL = 16
_GAP = 0.32  # inches between panels, with room for a title


def draw_head_grid(heads: Sequence[Head], path: Path, *, title: str | None = None) -> None:
    """Draw heads of one kind (of one text) into memory, then write the file; its suffix chooses the format."""
    kinds = list(dict.fromkeys(head.kind for head in heads))
    if len(kinds) != 1:
        found = " and ".join(kinds) or "nothing"
        raise ValueError(f"{path} would have to show {found}; choose the heads of one kind: {', '.join(KINDS)}")
    words = "".join(map(visible, [*heads[0].queries, *heads[0].keys])) + (title or "")
    with new_picture(path, words + "…→↓") as figure:
        _panels(figure, heads, title)


def _panels(figure: Figure, heads: Sequence[Head], title: str | None) -> None:
    """Panels at places in inches; what stands outside them is made room for when the figure is saved."""
    paths = list(dict.fromkeys(head.path for head in heads))
    numbers = sorted({head.number for head in heads})
    wide, high = _panel_size(len(heads[0].keys), len(numbers)), _panel_size(len(heads[0].queries), len(paths))
    total = (len(numbers) * (wide + _GAP) - _GAP, len(paths) * (high + _GAP) - _GAP)
    figure.set_size_inches(*total)
    image = None
    peak = max(1.0, *(float(abs(head.weights).max(initial=0.0)) for head in heads))
    for head in heads:
        row, column = paths.index(head.path), numbers.index(head.number)
        left, bottom = column * (wide + _GAP), total[1] - high - row * (high + _GAP)
        axes = figure.add_axes((left / total[0], bottom / total[1], wide / total[0], high / total[1]))
        image = _heat_map(axes, head, peak)
        first = row == 0, head.number == min(each.number for each in heads if each.path == head.path)
        _label(axes, head, across=first[0], down=first[1], size=(wide, high))
    assert image is not None
    _colour_bar(figure, image, total)
    heading = KINDS[heads[0].kind] + (": " + title if title else "")
    above = _above(heads[0], wide)
    text = heading_lines(heading, max(40, round(total[0] * 11)))
    columns, rows = len(heads[0].keys), len(heads[0].queries)
    named = len(_chosen(columns, wide)), len(_chosen(rows, high))
    if named != (columns, rows):
        text += f"\n({named[0]} of {columns} columns and {named[1]} of {rows} rows are named)"
    figure.text(0, 1 + above / total[1], text, ha="left", va="bottom", fontsize=11, fontweight="bold")


def _panel_size(tokens: int, count: int) -> float:
    size = min(max(tokens * _CELL, _SMALLEST), _WIDEST)
    return min(size, LARGEST / count - _GAP)


def _heat_map(axes: Axes, head: Head, peak: float) -> AxesImage:
    image = coloured_cells(axes, abs(head.weights), PALE_TO_DEEP, 0.0, peak)
    axes.spines[:].set_color("#cbd2d9")
    axes.spines[:].set_linewidth(0.6)
    axes.tick_params(which="both", length=0)
    return image


def _label(axes: Axes, head: Head, *, across: bool, down: bool, size: tuple[float, float]) -> None:
    """Tokens at the outer panels alone: all panels of a picture have the same."""
    sides = ((axes.xaxis, head.keys, across, size[0], 90), (axes.yaxis, head.queries, down, size[1], 0))
    axes.xaxis.tick_top()
    for axis, tokens, wanted, room, turned in sides:
        places = _chosen(len(tokens), room)
        labels = [_caption(tokens[place]) for place in places] if wanted else []
        axis.set_ticks(places if wanted else [], labels=labels, fontsize=7, color=INK, rotation=turned)
    axes.tick_params(axis="both", pad=2)
    found = head.measures
    share = "" if found.entropy_share != found.entropy_share else f" · entropy {found.entropy_share:.0%}"
    axes.set_xlabel(f"head {head.number}{share}", fontsize=7, color=INK, labelpad=3)
    if down:
        axes.set_ylabel(_layer(head.path), fontsize=8, color=INK, labelpad=6, fontweight="bold")


def _chosen(count: int, room: float) -> list[int]:
    """The places whose tokens are written: all, or every second, third … where letters would overlap."""
    most = max(1, min(_MOST_LABELS, int(room / 0.105)))
    step = -(-count // most)
    return list(range(0, count, step))


def _layer(path: str) -> str:
    """`decoder.layers.3.cross` → `layer 3`, as names count; an attention that is the only one, by its name."""
    numbers = [part for part in path.split(".") if part.isdigit()]
    return f"layer {numbers[-1]}" if numbers else path


def _above(head: Head, room: float) -> float:
    """Inches the labels over the first row take, near enough."""
    places = _chosen(len(head.keys), room)
    longest = max((breadth(_caption(head.keys[place])) for place in places), default=0)
    return 0.2 + longest * 0.085


def _colour_bar(figure: Figure, image: AxesImage, total: tuple[float, float]) -> None:
    across, tall = 0.13 / total[0], min(2.4, total[1]) / total[1]
    place = figure.add_axes((1 + 0.2 / total[0], 1 - tall, across, tall))
    colour_bar(figure, image, place, "attention (columns: looked at; rows: looking)", size=7)


def _caption(token: str) -> str:
    return shortened(visible(token), _LONGEST_LABEL)
