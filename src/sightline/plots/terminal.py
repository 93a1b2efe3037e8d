"""Alignments as grids of coloured cells in a terminal, and matrices as tables of numbers.

Column labels are written side by side if they fit, else downwards; wider grids are split into blocks below each other.
Without colours the cells are shades (` ·░▒▓█`), and without Unicode plain marks.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.text import Text

from sightline.plots.figures import graphemes, shortened
from sightline.terminal import visible

# Slate to yellow, after viridis; no colour equals a black or white background.
_PALETTE = ((72, 76, 98), (62, 98, 146), (38, 138, 150), (56, 176, 122), (146, 211, 78), (253, 231, 37))
_SHADES = "·░▒▓█"
_ASCII_SHADES = ".:+*#"
_FAINTEST = 0.03
_LONGEST_ROW_LABEL = 24
_LONGEST_COLUMN_LABEL = 14


@dataclass(frozen=True)
class TerminalGrid:
    """A heat map that fits the width and the colours of the console."""

    rows: Sequence[str]
    columns: Sequence[str]
    weights: NDArray[Any]  # (rows, columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = console.color_system is not None and not console.no_color
        shades = _ASCII_SHADES if options.ascii_only else _SHADES
        labels = [shortened(visible(token), _LONGEST_ROW_LABEL) for token in self.rows]
        columns = [visible(token) for token in self.columns]
        margin = max((cell_len(label) for label in labels), default=0) + 1
        peak = float(np.abs(self.weights).max(initial=0.0))
        weights = self.weights / peak if peak > 1.001 else self.weights  # linear attention may exceed 1
        for start, stop, across, widths in _blocks(columns, options.max_width - margin):
            for line in _header(columns[start:stop], widths, across):
                yield Text(" " * margin + line, style="bold", no_wrap=True)
            for label, row in zip(labels, weights[:, start:stop], strict=True):
                text = Text(no_wrap=True)
                text.append(right(label, margin - 1) + " ", style="bold")
                for weight, width in zip(row, widths, strict=True):
                    text.append_text(_cell(float(weight), width, shades, coloured))
                yield text
            if stop < len(columns):
                yield Text("")
        yield _legend(margin, shades, coloured)


def _blocks(labels: list[str], room: int) -> Iterator[tuple[int, int, bool, list[int]]]:
    """Split the columns into blocks that fit: (start, stop, labels side by side, width of each column)."""
    across = [max(cell_len(label), 2) + 1 for label in labels]
    if sum(across) <= room:
        yield 0, len(labels), True, across
        return
    narrow = all(cell_len(label) <= 2 for label in labels)
    width = next((each for each in (3, 2) if each * len(labels) <= room), 2)
    fitting = max(room // width, 1)
    for start in range(0, len(labels), fitting):
        stop = min(start + fitting, len(labels))
        yield start, stop, narrow, [width] * (stop - start)


def _header(labels: list[str], widths: list[int], across: bool) -> Iterator[str]:
    """The lines of column labels: one, or one for each character of the longest label."""
    if across:
        yield "".join(_centred(label, width) for label, width in zip(labels, widths, strict=True)).rstrip()
        return
    letters = [_cut(graphemes(label)) for label in labels]
    height = max((len(each) for each in letters), default=0)
    for line in range(height):
        above = ([""] * (height - len(each)) + each for each in letters)
        yield "".join(_centred(each[line], width) for each, width in zip(above, widths, strict=True)).rstrip()


def _cut(letters: list[str]) -> list[str]:
    return letters if len(letters) <= _LONGEST_COLUMN_LABEL else [*letters[: _LONGEST_COLUMN_LABEL - 1], "…"]


def _cell(weight: float, width: int, shades: str, coloured: bool) -> Text:
    if weight < _FAINTEST:
        return Text(_centred(shades[0], width), style="dim")
    if coloured:
        return Text(" " * width, style=Style(bgcolor=_colour(weight)))
    shade = shades[min(1 + int(weight * (len(shades) - 1)), len(shades) - 1)]
    return Text(shade * (width - 1) + " " if width > 2 else shade * width)


def _colour(weight: float) -> str:
    place = min(max(weight, 0.0), 1.0) * (len(_PALETTE) - 1)
    below = min(int(place), len(_PALETTE) - 2)
    share = place - below
    red, green, blue = (
        round(low + share * (high - low)) for low, high in zip(_PALETTE[below], _PALETTE[below + 1], strict=True)
    )
    return f"#{red:02x}{green:02x}{blue:02x}"


def _legend(margin: int, shades: str, coloured: bool) -> Text:
    legend = Text(" " * margin + "0 ", style="dim", no_wrap=True)
    for step in range(1, 11):
        legend.append_text(_cell(step / 10 - 0.05, 2, shades, coloured))
    return legend.append(" 1", style="dim")


def plain_text(shown: RenderableType, width: int) -> str:
    """The output of a console of this width, without colours."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(shown)
    return out.getvalue()


def _shield(label: str) -> str:
    """Mark right-to-left text so that a terminal does not reorder the columns around it."""
    return label + "\u200e" if any(unicodedata.bidirectional(each) in ("R", "AL") for each in label) else label


def right(label: str, width: int) -> str:
    """Right-align to a width."""
    return " " * (width - cell_len(label)) + _shield(label)


def _centred(label: str, width: int) -> str:
    spare = max(width - cell_len(label), 0)
    return " " * (spare // 2) + _shield(label) + " " * (spare - spare // 2)


@dataclass(frozen=True)
class NumberTable:
    """The first rows and columns of a matrix, in blocks of columns that fit; numbers are never cut."""

    values: NDArray[Any]  # (rows, columns)
    rows: Sequence[str] | None
    columns: Sequence[str] | None
    number: Callable[[Any], str]
    rows_shown: ClassVar[int] = 8
    columns_shown: ClassVar[int] = 8

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [[self.number(value) for value in row[: self.columns_shown]] for row in self.values[: self.rows_shown]]
        names, heads = (
            [shortened(visible(name), _LONGEST_ROW_LABEL) for name in (labels or [])[:most]]
            for labels, most in ((self.rows, self.rows_shown), (self.columns, self.columns_shown))
        )
        width = max((cell_len(cell) for row in [*cells, heads] for cell in row), default=1) + 1
        margin = max((cell_len(name) for name in names), default=0)
        across = max((options.max_width - margin - 3) // width, 1)
        height, count = self.values.shape
        shown = count if count <= self.columns_shown else min(self.columns_shown, across)
        for start in range(0, shown, across):
            stop = min(start + across, shown)
            if heads:
                yield Text(" " * margin + "".join(right(head, width) for head in heads[start:stop]), style="bold")
            elif shown > across:
                columns = f"columns {start} to {stop - 1}" if stop - start > 1 else f"column {start}"
                yield Text(f"{' ' * margin} {columns}:", style="dim")
            more = "  …" if stop == shown < count else ""
            for place, row in enumerate(cells):
                line = Text(
                    right(names[place] if names else "", margin), style="bold", no_wrap=True, overflow="ellipsis"
                )
                yield line.append("".join(right(cell, width) for cell in row[start:stop]) + more, style="not bold")
        left_out = ((height, self.rows_shown, "rows"), (count, shown, "columns"))
        left = [f"{size - most} more {what}" for size, most, what in left_out if size > most]
        if left:
            yield Text("… " + " and ".join(left), style="dim")
