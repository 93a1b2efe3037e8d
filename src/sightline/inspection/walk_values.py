"""The numbers of a step in a terminal: shares of one as a grid of colours, others as a table of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from sightline.inspection.alignment import Alignment, visible
from sightline.inspection.cell_arithmetic import number
from sightline.inspection.terminal_grid import TerminalGrid, right

_MATRICES, _ROWS, _COLUMNS = 4, 8, 8  # shown of a tensor; what is left out is counted
_LABEL = 12
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
        yield _numbers(matrix, rows, columns)
    if shares and rows is not None and columns is not None:
        yield TerminalGrid(Alignment(list(columns), list(rows), matrix.float().cpu().numpy()))


def _shares(matrix: Tensor) -> bool:
    return bool(matrix.is_floating_point() and (matrix >= 0).all() and (matrix <= 1.001).all())


def _numbers(matrix: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Text:
    kept = matrix[:_ROWS, :_COLUMNS]
    cells = [[number(value) for value in row] for row in kept]
    names = [_label(name) for name in (rows or [])[:_ROWS]]
    heads = [_label(name) for name in (columns or [])[:_COLUMNS]]
    width = max((cell_len(cell) for row in [*cells, heads] for cell in row), default=1) + 1
    margin = max((cell_len(name) for name in names), default=0)
    text = Text(no_wrap=True)
    if heads:
        text.append(" " * margin + "".join(right(head, width) for head in heads) + "\n", style="bold")
    for place, row in enumerate(cells):
        text.append(right(names[place] if names else "", margin), style="bold")
        text.append("".join(right(cell, width) for cell in row))
        text.append("  …\n" if matrix.shape[1] > _COLUMNS else "\n")
    left = [f"{matrix.shape[axis] - most} more {what}" for axis, most, what in _AXES if matrix.shape[axis] > most]
    if left:
        text.append("… " + " and ".join(left), style="dim")
    text.rstrip()
    return text


_AXES = ((0, _ROWS, "rows"), (1, _COLUMNS, "columns"))


def _label(name: str) -> str:
    shown = visible(name)
    return shown if len(shown) <= _LABEL else shown[: _LABEL - 1] + "…"
