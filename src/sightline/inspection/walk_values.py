"""The numbers of a step in a terminal: shares of one as a grid of colours, others as a table of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from sightline.inspection.cell_arithmetic import number
from sightline.plots.terminal import TerminalGrid, cut_to_cells, right
from sightline.terminal import visible

_MATRICES, _ROWS, _COLUMNS = 4, 8, 8  # shown of a tensor; what is left out is counted
_LABEL = 24
_GRID = 40  # tokens across, up to which shares are drawn


def render_values(
    tensor: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None
) -> Iterator[RenderableType]:
    """A tensor as matrices of its last two axes."""
    if tensor.dim() == 0:
        yield Text(f"   {number(tensor)}")
        return
    flat = tensor.reshape(-1, *tensor.shape[-2:]) if tensor.dim() > 1 else tensor[None, None]
    if tensor.dim() == 2 and tensor.shape[0] == 1 and rows is not None:  # one number for each token
        columns, rows = rows, None
    whole = tensor.shape[:-2]
    for place, matrix in enumerate(flat[:_MATRICES]):
        if whole.numel() > 1:
            yield Text(f"   [{', '.join(map(str, np.unravel_index(place, whole)))}]", style="dim")
        for view in _views(matrix, rows, columns):
            yield Padding(view, (0, 0, 0, 3), expand=False)
    if len(flat) > _MATRICES:
        yield Text(f"   and {len(flat) - _MATRICES} more like these", style="dim")


def _views(matrix: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Iterator[RenderableType]:
    """The numbers, and where they are shares of one, colours."""
    rows = rows if rows is not None and len(rows) == matrix.shape[0] else None
    columns = columns if columns is not None and len(columns) == matrix.shape[1] else None
    shares = rows is not None and columns is not None and _shares(matrix) and len(columns) <= _GRID
    if not shares or matrix.shape[1] <= _COLUMNS:
        yield NumberTable(matrix, rows, columns)
    if shares and rows is not None and columns is not None:
        yield TerminalGrid(rows, columns, matrix.float().cpu().numpy())


def _shares(matrix: Tensor) -> bool:
    return bool(matrix.is_floating_point() and (matrix >= 0).all() and (matrix <= 1.001).all())


@dataclass(frozen=True)
class NumberTable:
    """The first rows and columns of a matrix as text, in blocks of as many columns as fit: no number is ever cut."""

    matrix: Tensor
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [[number(value) for value in row] for row in self.matrix[:_ROWS, :_COLUMNS]]
        names = [_label(name) for name in (self.rows or [])[:_ROWS]]
        heads = [_label(name) for name in (self.columns or [])[:_COLUMNS]]
        width = max((cell_len(cell) for row in [*cells, heads] for cell in row), default=1) + 1
        margin = max((cell_len(name) for name in names), default=0)
        across = max((options.max_width - margin - 3) // width, 1)
        count = min(self.matrix.shape[1], _COLUMNS)
        for start in range(0, count, across):
            stop = min(start + across, count)
            if heads:
                yield Text(" " * margin + "".join(right(head, width) for head in heads[start:stop]), style="bold")
            elif count > across:
                yield Text(f"{' ' * margin} columns {start} to {stop - 1}:", style="dim")
            more = "  …" if stop == count < self.matrix.shape[1] else ""
            for place, row in enumerate(cells):
                line = Text(
                    right(names[place] if names else "", margin), style="bold", no_wrap=True, overflow="ellipsis"
                )
                yield line.append("".join(right(cell, width) for cell in row[start:stop]) + more, style="not bold")
        left = [f"{self.matrix.shape[a] - most} more {what}" for a, most, what in _AXES if self.matrix.shape[a] > most]
        if left:
            yield Text("… " + " and ".join(left), style="dim")


_AXES = ((0, _ROWS, "rows"), (1, _COLUMNS, "columns"))


def _label(name: str) -> str:
    shown = visible(name)
    return cut_to_cells(shown, _LABEL)
