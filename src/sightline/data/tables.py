"""Tables: TSV with or without a header line, and CSV with quoting and named columns (RFC 4180, by Python's csv)."""

from __future__ import annotations

import csv
import difflib
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from sightline.data.text_lines import UNBOUNDED, Bound, DataError, LongLine, read_lines
from sightline.terminal import plural
from sightline.text.shown import short

Header = bool | Literal["auto"]
Row = tuple[int, str, str]  # the number of its line, and two of its cells

_LOOKED_AT = 200  # lines that are compared with the first
_NAMES = {  # of columns, in lower case
    *(
        "source",
        "target",
        "src",
        "tgt",
        "trg",
        "input",
        "output",
        "text",
        "texts",
        "sentence",
        "sentence1",
        "sentence2",
    ),
    *("label", "labels", "class", "category", "tag", "tags", "translation", "question", "answer", "query", "reference"),
    *("summary", "document", "article", "review", "title", "sentiment", "word", "words"),
}


class SkippedHeader(UserWarning):
    """The first line of a table names its columns, and was not read as an example."""


def is_header(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the cells of the first line name columns: all are usual names of such, and none comes again below."""
    plain = [cell.strip().strip("\"'#").lower() for cell in cells]
    if not rows or not all(name in _NAMES for name in plain):
        return False
    below = ({row[place].strip().lower() for row in rows if place < len(row)} for place in range(len(plain)))
    return not any(name in seen for name, seen in zip(plain, below, strict=False))


def read_tsv(path: Path, columns: tuple[int, int], header: Header, bound: Bound = UNBOUNDED) -> Iterator[Row]:
    """Two columns of tab-separated lines, without the header; `auto` skips what is evidently one, with a warning."""
    needed = max(columns)
    lines = read_lines(path, bound)
    first = list(islice(lines, 1 + _LOOKED_AT)) if header == "auto" else []
    if header == "auto":
        cut = [line.split("\t") for line in first if not isinstance(line, LongLine)]
        chosen = [[row[number - 1] for number in columns] for row in cut if len(row) >= needed]
        header = len(chosen) > 1 and len(cut[0]) >= needed and is_header(chosen[0], chosen[1:])
        if header:
            warnings.warn(
                SkippedHeader(
                    f"{path}, line 1 names the columns ({short(first[0])}) and is skipped; set header of the source to "
                    f"true, or to false if it is an example"
                ),
                stacklevel=2,
            )
    for number, line in enumerate(chain(first, lines), 1):
        if number == 1 and header:
            continue
        if isinstance(line, LongLine):
            yield number, line, line
            continue
        cells = line.split("\t")
        if len(cells) < needed:
            raise DataError(
                f"{path}, line {number}: {plural(len(cells), 'column')}, and columns: "
                f"{list(columns)} needs {needed} with tabs between them; mend the line ({short(line)}) or set columns"
            )
        yield number, cells[columns[0] - 1], cells[columns[1] - 1]


def read_csv(
    path: Path, wanted: Sequence[str | int], *, delimiter: str = ",", header: bool = True
) -> Iterator[tuple[Any, ...]]:
    """The number of the line and the wanted cells of each row; columns are named by the header, or counted from 1.

    A quoted cell may hold delimiters and newlines, and `""` for a quote. A row has as many cells as the first line.
    """
    rows = csv.reader((line + "\n" for line in read_lines(path)), delimiter=delimiter, strict=True)
    width, places = 0, list[int]()
    while True:
        start = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f'{path}, line {start}: not CSV ({error}); a cell with a quote is written "a ""quoted"" cell"'
            ) from error
        if not row:  # an empty line
            continue
        if not width:
            width, places = len(row), [_place(path, row, each, header) for each in wanted]
            if header:
                continue
        if len(row) != width:
            raise DataError(
                f"{path}, line {start}: {plural(len(row), 'cell')}, and the first line has {width}; put cells that "
                f"contain {delimiter!r} in quotes, or set delimiter"
            )
        yield start, *(row[place] for place in places)


def csv_columns(path: Path, delimiter: str = ",") -> list[str]:
    """The cells of the first line: the names of the columns."""
    first = next(csv.reader((line + "\n" for line in read_lines(path)), delimiter=delimiter), [])
    return [name.strip() for name in first]


def _place(path: Path, row: Sequence[str], column: str | int, header: bool) -> int:
    """Where a column is, counted from 0."""
    names = [name.strip() for name in row]
    if isinstance(column, str) and header:
        if column in names:
            if names.count(column) > 1:
                raise DataError(f"{path}: {names.count(column)} columns are named {column!r}; give a number from 1")
            return names.index(column)
        near = difflib.get_close_matches(column, names, n=1)
        guess = f"did you mean {near[0]!r}?" if near else f"its columns are {', '.join(map(repr, names))}"
        raise DataError(f"{path}: there is no column {column!r}; {guess}")
    if isinstance(column, str):
        raise DataError(
            f"{path}: column {column!r} is a name, and header: false says there are none; give a number from 1"
        )
    if not 1 <= column <= len(row):
        raise DataError(f"{path}: there is no column {column}, only {len(row)}; columns are counted from 1")
    return column - 1
