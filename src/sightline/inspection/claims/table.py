"""The result of a claim: titled tables with notes, for a terminal and for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sightline.inspection.views import InspectionView

Cell = str | int | float | None


@dataclass(frozen=True)
class ClaimTable:
    """A table with a title; None is an empty cell."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    fixed: bool = False  # four decimals even of small numbers: shares and weights

    def to_dict(self) -> dict[str, Any]:
        """For JSON: one object for each row."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows}

    def grid(self) -> Table:
        """For a terminal; columns of words are on the left, of numbers on the right."""
        grid = Table(box=None, pad_edge=False)
        for number, column in enumerate(self.columns):
            words = any(isinstance(row[number], str) for row in self.rows)
            grid.add_column(Text(column), justify="left" if words else "right")
        for row in self.rows:
            grid.add_row(*(Text(_written(cell, self.fixed)) for cell in row))
        return grid


@dataclass(frozen=True)
class Claim:
    """What a claim says, and the numbers that show it."""

    claim: str
    tables: Sequence[ClaimTable]
    notes: Sequence[str] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)  # for JSON, beside the tables
    draw: Callable[[Path], None] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        tables = [table.to_dict() for table in self.tables]
        return {"claim": self.claim, "tables": tables, "notes": list(self.notes), **self.numbers}

    def view(self) -> InspectionView:
        """For `sightline inspect`."""
        parts: list[Any] = [Text(self.claim, style="bold")]
        for table in self.tables:
            parts += [Text(""), Text(table.title), table.grid()]
        parts += [Text(""), *(Text(note) for note in self.notes)] if self.notes else []
        return InspectionView(Group(*parts), self.to_dict, self.draw)


def matrix_table(title: str, matrix: Any, rows: Sequence[str], columns: Sequence[str]) -> ClaimTable:
    """A matrix (R, C) with labels."""
    values = [[float(value) for value in row] for row in matrix]
    fixed = max((abs(value) for row in values for value in row), default=0.0) >= 0.01
    return ClaimTable(title, ["", *columns], [[name, *row] for name, row in zip(rows, values, strict=True)], fixed)


def _written(cell: Cell, fixed: bool = False) -> str:
    """A number with four digits; −∞ and powers of ten as people write them."""
    if cell is None:
        return ""
    if not isinstance(cell, float):
        return f"{cell:,}" if isinstance(cell, int) else cell
    if cell in (float("inf"), float("-inf")):
        return "∞" if cell > 0 else "−∞"
    power = cell != 0 and not fixed and not 1e-3 <= abs(cell) < 1e5
    return (f"{cell:.2e}" if power else f"{cell:,.4g}" if abs(cell) >= 1000 else f"{cell:.4f}").replace("-", "−")
