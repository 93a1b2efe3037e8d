"""Heat maps in a page: small ones as tables of numbers, larger ones as images that show the number under the pointer.

A picture is a PNG of one pixel a number, with its numbers beside it for the page's script. Without scripts the picture,
its labels and its scale are there; a table's numbers can be read anyway.
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

_TABLE = 240  # numbers, up to which a matrix is a table
_TABLES = 30_000  # numbers in tables in all; then pictures, which are smaller
_WIDE = 14  # columns of a table
_LONGEST_LABEL = 18
_ROOM, _LETTER = 640, 15  # pixels: what a picture may take, and what a label needs


@dataclass
class Page:
    """What heat maps share: the names along their sides are written once."""

    sides: dict[tuple[str, ...], int] = field(default_factory=dict)
    in_tables: int = 0

    def side(self, names: Sequence[str]) -> int:
        """The number of a list of names."""
        return self.sides.setdefault(tuple(names), len(self.sides))

    def heat_map(self, shown: HeatMap, *, labels: bool = True, most: int = _ROOM) -> str:
        """A table or a picture with its scale."""
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
        """All sides, for the script."""
        import json

        sides = json.dumps([[*map(visible, names)] for names in self.sides], ensure_ascii=False).replace("<", "\\u003c")
        return f'<script type="application/json" id="sides">{sides}</script>'


def table(shown: HeatMap) -> str:
    """Every number in a cell of its colour; names in the heads."""
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
    """What the colours mean."""
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
    """A token as a label, whichever way it is written."""
    shown = visible(token)
    if len(shown) <= _LONGEST_LABEL:
        return f'<bdi dir="auto">{escape(shown)}</bdi>'
    return f'<bdi dir="auto" title="{escape(shown)}">{escape(shown[: _LONGEST_LABEL - 1])}…</bdi>'


def short(value: float) -> str:
    """Three digits, with a real minus."""
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
    """Labels along a side: as many as there is room for, evenly chosen."""
    step = max(1, -(-len(names) * _LETTER // max(room, 1)))
    parts = [
        f'<span style="{edge}:{100 * (place + 0.5) / len(names):.2f}%">{name(names[place])}</span>'
        for place in range(0, len(names), step)
    ]
    return "".join(parts)


def _length(names: Sequence[str]) -> float:
    """Room for the longest label, in ems: signs of East Asia are twice as wide."""
    shown = (visible(each)[:_LONGEST_LABEL] for each in names)
    return 1.0 + min(max((cell_len(each) for each in shown), default=1), _LONGEST_LABEL + 2) * 0.62


def _dark(colour: tuple[int, int, int]) -> bool:
    red, green, blue = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140
