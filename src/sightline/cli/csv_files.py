"""`sightline predict RUN FILE.csv --column NAME`: the texts of one column, a line of output for each row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.cli.lines import named

if TYPE_CHECKING:
    from sightline.recipe import Recipe

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def is_csv(file: Path | None, form: str | None) -> bool:
    """Whether the input is CSV: as --format says, else by the name of the file."""
    if form is not None or (path := named(file)) is None:
        return form == "csv"
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return plain.suffix.lower() == ".csv"


def csv_texts(recipe: Recipe, file: Path | None, column: str | None) -> Iterator[str]:
    """The texts of a column, newlines in them as spaces; by default of the column learned from, or the only one."""
    from sightline.data.tables import csv_columns, read_csv
    from sightline.recipe.data import CsvSource

    if (path := named(file)) is None:
        raise ValueError("--format csv needs a file, whose columns have names; give one instead of standard input")
    learned = next((source for source in recipe.data.train if isinstance(source, CsvSource)), None)
    delimiter = "," if learned is None else learned.delimiter
    wanted: str | int
    if column is not None:
        wanted = int(column) if column.isdecimal() and column not in csv_columns(path, delimiter) else column
    elif learned is not None:
        wanted = learned.target if recipe.data.swap else learned.source
    elif len(columns := csv_columns(path, delimiter)) == 1:
        wanted = 1
    else:
        raise ValueError(
            f"{path} has the columns {', '.join(columns)}; say with --column which one holds the texts, or read its "
            f"lines as they are with --format text"
        )
    header = True if learned is None else learned.header
    cells = read_csv(path, [wanted], delimiter=delimiter, header=header)
    return (" ".join(text.split("\n")) for _, text in cells)
