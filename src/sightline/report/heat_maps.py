"""Heat maps in a page: small ones as tables of numbers, larger ones as images that show the number under the pointer.

An image is a PNG with one pixel per number; its numbers are in data attributes for the page's script. Tables, images,
labels and scales need no script.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape

from rich.cells import cell_len

from sightline.plots.matrices import HeatMap, palette
from sightline.terminal import visible

_TABLE = 240  # most numbers of a matrix shown as a table
_TABLES = 30_000  # most numbers in all tables of a page; images are smaller
_WIDE = 14  # most columns of a table
_LONGEST_LABEL = 18
_ROOM, _LETTER = 640, 15  # pixels of an image, and of a label


@dataclass
class Page:
    """The state of a page: lists of labels, which are written once, and the size of its tables."""

    sides: dict[tuple[str, ...], int] = field(default_factory=dict)
    in_tables: int = 0

    def side(self, names: Sequence[str]) -> int:
        """The index of a list of names."""
        return self.sides.setdefault(tuple(names), len(self.sides))

    def heat_map(self, shown: HeatMap, *, labels: bool = True, most: int = _ROOM) -> str:
        """A table or an image with its scale."""
        small = shown.values.size <= _TABLE and shown.values.shape[1] <= _WIDE
        if small and labels and self.in_tables + shown.values.size <= _TABLES:
            self.in_tables += shown.values.size
            return table(shown) + scale_bar(shown)
        return self._picture(shown, labels, most) + (scale_bar(shown) if labels else "")

    def _picture(self, shown: HeatMap, labels: bool, most: int) -> str:
        height, width = shown.values.shape
        cell = max(1.0, min(22.0, most / max(width, height, 1)))
        across, down = max(round(cell * width), 12), max(round(cell * height), 12)
        source = base64.b64encode(shown.png()).decode("ascii")
        data = (
            f'data-size="{height},{width}" data-range="{shown.scale.low!r},{shown.scale.high!r}" '
            f'data-sides="{self.side(shown.rows)},{self.side(shown.columns)}" '
            f'data-values="{shown.scale.encoded(shown.values)}"'
        )
        image = (
            f'<div class="map" tabindex="0" role="img" aria-label="{escape(shown.label)}: {height} rows, {width} '
            f'columns; arrow keys read the numbers" style="aspect-ratio:{across}/{down};width:{across}px" {data}>'
            f'<img alt="" decoding="async" src="data:image/png;base64,{source}"></div>'
        )
        if not labels:
            return image
        top, left = _along(shown.columns, across, "left"), _along(shown.rows, down, "top")
        return (
            f'<div class="scroll"><div class="framed"><div class="top" style="height:{_length(shown.columns):.1f}em">'
            f'{top}</div><div class="left" style="width:{_length(shown.rows):.1f}em">{left}</div>{image}</div></div>'
        )

    def names(self) -> str:
        """All lists of names, for the script."""
        import json

        sides = json.dumps([[*map(visible, names)] for names in self.sides], ensure_ascii=False).replace("<", "\\u003c")
        return f'<script type="application/json" id="sides">{sides}</script>'


def table(shown: HeatMap) -> str:
    """A table with coloured cells."""
    colours, levels = palette(shown.scale.signed), shown.scale.levels(shown.values)
    head = "".join(f'<th scope="col">{name(each)}</th>' for each in shown.columns)
    rows, columns = ([escape(visible(each)) for each in names] for names in (shown.rows, shown.columns))
    lines = []
    for place, (row, of_row) in enumerate(zip(shown.values.tolist(), levels.tolist(), strict=True)):
        cells = []
        for column, (value, level) in enumerate(zip(row, of_row, strict=True)):
            title = f"{rows[place]} · {columns[column]}: {exact(value)}"
            ink = ' class="dark"' if _dark(colours[level]) else ""
            background = "#{:02x}{:02x}{:02x}".format(*colours[level])
            cells.append(f'<td{ink} style="background:{background}" title="{title}">{short(value)}</td>')
        lines.append(f'<tr><th scope="row">{name(shown.rows[place])}</th>{"".join(cells)}</tr>')
    caption = f'<caption class="unseen">{escape(shown.label)}</caption>'
    return (
        f'<div class="scroll" tabindex="0"><table class="heat">{caption}<thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def scale_bar(shown: HeatMap) -> str:
    """The colour scale."""
    import numpy as np

    kind = "signed" if shown.scale.signed else "plain"
    masked = '<span class="masked"></span> −∞, masked' if np.isneginf(shown.values).any() else ""
    broken = '<span class="broken"></span> not a number' if np.isnan(shown.values).any() else ""
    middle = "<span>0</span>" if shown.scale.signed else ""
    return (
        f'<p class="scale"><span>{short(shown.scale.low)}</span><span class="bar {kind}">{middle}</span>'
        f"<span>{short(shown.scale.high)}</span> {masked}{broken}</p>"
    )


@lru_cache(4_096)
def name(token: str) -> str:
    """A token as a label of either writing direction."""
    shown = visible(token)
    if len(shown) <= _LONGEST_LABEL:
        return f'<bdi dir="auto">{escape(shown)}</bdi>'
    return f'<bdi dir="auto" title="{escape(shown)}">{escape(shown[: _LONGEST_LABEL - 1])}…</bdi>'


def short(value: float) -> str:
    """Three digits and a minus sign."""
    return _number(value, 3)


def exact(value: float) -> str:
    """Six digits."""
    return _number(value, 6)


def _number(value: float, digits: int) -> str:
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value)).replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def _along(names: Sequence[str], room: int, edge: str) -> str:
    """Evenly spaced labels along a side."""
    step = max(1, -(-len(names) * _LETTER // max(room, 1)))
    parts = [
        f'<span style="{edge}:{100 * (place + 0.5) / len(names):.2f}%">{name(names[place])}</span>'
        for place in range(0, len(names), step)
    ]
    return "".join(parts)


def _length(names: Sequence[str]) -> float:
    """The width of the longest label in ems; East Asian characters are twice as wide."""
    shown = (visible(each)[:_LONGEST_LABEL] for each in names)
    return 1.0 + min(max((cell_len(each) for each in shown), default=1), _LONGEST_LABEL + 2) * 0.62


def _dark(colour: tuple[int, int, int]) -> bool:
    red, green, blue = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140
