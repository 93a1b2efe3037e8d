"""A comparison for the terminal: the tables, and a short selection of where systems differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len  # East Asian characters are two columns wide, marks none

from sightline.comparison.results import Comparison
from sightline.comparison.sentences import answers, footnotes, looked_at
from sightline.comparison.tables import (
    Table,
    differences_table,
    luck_table,
    main_table,
    narrow_tables,
    where_tables,
    word_table,
)
from sightline.comparison.where import Contrast
from sightline.evaluation.contrasts import ChangedSentence
from sightline.evaluation.word_differences import Segment, word_differences

if TYPE_CHECKING:
    from rich.console import Console

_SENTENCES = 2  # of those that improved, and of those that worsened
_WORDS = 5

Side = Literal["baseline", "system", "other"]


@dataclass(frozen=True)
class Line:
    """A line of text in pieces; what differs on the side of the baseline or the system is marked."""

    pieces: list[Segment]
    side: Side = "other"

    @staticmethod
    def plain(text: str) -> Line:
        return Line([Segment(text, "same")])


@dataclass(frozen=True)
class Block:
    """A heading, and a table or lines below it."""

    title: str
    table: Table | None
    lines: list[Line]


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print with colours in a terminal, and as plain aligned lines elsewhere."""
    if console is None and not sys.stdout.isatty():
        print(plain_text(comparison), end="")
        return
    from sightline.terminal import console as terminal_console

    _print_rich(comparison, console or terminal_console())


def plain_text(comparison: Comparison) -> str:
    """All of it as lines."""
    lines: list[str] = []
    for block in _blocks(comparison, width=None):
        lines += ["", block.title, ""] if lines else [block.title, ""]
        if block.table is not None:
            lines += _aligned(block.table)
        lines += ["".join(_wdiff(piece, line.side) for piece in line.pieces) for line in block.lines]
    return "\n".join(lines) + "\n"


# --- what is shown -----------------------------------------------------------------------------------------------


def _blocks(comparison: Comparison, *, width: int | None) -> Iterator[Block]:
    """All there is to show, in tables of at most that width where this can be had."""
    notes = [Line.plain(""), *(Line.plain(note) for note in footnotes(comparison))]
    whole = main_table(comparison)
    yield Block(whole.title, None, [Line.plain(answer) for answer in answers(comparison)])
    if _fits(whole, width):
        yield Block("Quality and cost", whole, notes)
    else:
        *qualities, cost = narrow_tables(comparison)
        for table in qualities:
            yield _block(table)
        yield Block(cost.title, cost, notes)
    yield _block(luck_table(comparison))
    yield _differences(comparison, width)
    if note := looked_at(comparison):
        yield Block("Where they differ", None, [Line.plain(note)])
    for table in where_tables(comparison):
        yield _narrowed(table, width)
    if comparison.where.contrasts:
        yield from _contrast(comparison, _shown_contrast(comparison))


def _block(table: Table) -> Block:
    return Block(table.title, table if table.rows else None, [Line.plain(note) for note in table.notes])


def _differences(comparison: Comparison, width: int | None) -> Block:
    """What differs in the recipes, as a table or, where that is too wide, key by key: every key is shown."""
    table = differences_table(comparison)
    if not table.rows or _fits(table, width):
        return _block(table)
    names = [column.title for column in table.columns[1:]]
    longest = max(map(cell_len, names))
    lines = []
    for key, *values in table.rows:
        lines.append(Line.plain(key))
        pairs = zip(names, values, strict=True)
        lines += [Line.plain(f"  {name}{' ' * (longest - cell_len(name))}  {value}") for name, value in pairs]
    return Block(table.title, None, [*lines, *map(Line.plain, table.notes)])


def _narrowed(table: Table, width: int | None) -> Block:
    return _block(table if not table.rows or _fits(table, width) else table.turned())


def _fits(table: Table, width: int | None) -> bool:
    # Rich puts three spaces between
    return width is None or max(map(cell_len, _aligned(table))) + len(table.columns) <= width


def _shown_contrast(comparison: Comparison) -> Contrast:
    """That of the best system whose outputs are not the baseline's."""
    contrasts = {each.system: each for each in comparison.where.contrasts}
    differing = [system for system in comparison.others if contrasts[system.name].differs]
    return contrasts[comparison.best(comparison.metrics[0], differing or comparison.others).name]


def _contrast(comparison: Comparison, contrast: Contrast) -> Iterator[Block]:
    found, metric = contrast.sentences, comparison.where.sentence_metric
    for what, changed in (("gained", found.improved), ("lost", found.worsened)):
        if changed:
            lines = [line for each in changed[:_SENTENCES] for line in _sentence(comparison, contrast, each)]
            yield Block(f"Where {contrast.system} {what} most on {comparison.baseline.name} ({metric})", None, lines)
    for ahead in (True, False):
        table = word_table(comparison, contrast, ahead=ahead, most=_WORDS)
        if table.rows:
            yield _block(table)
    if not contrast.differs:
        yield Block("Where they differ", None, [Line.plain("Nowhere: no sentence and no word is better or worse.")])
    elif len(comparison.others) > 1:
        told = "The page (--html FILE; a sweep writes comparison.html) has this for every system, n-grams too."
        yield Block("And the others?", None, [Line.plain(told)])


def _sentence(comparison: Comparison, contrast: Contrast, each: ChangedSentence) -> Iterator[Line]:
    before, after = word_differences(each.baseline, each.system)
    names = comparison.baseline.name, contrast.system
    width = max(map(cell_len, (*names, "reference")))

    def head(name: str) -> str:
        return f"  {name}{' ' * (width - cell_len(name))}  "

    yield Line.plain(f"sentence {each.number:,}: {each.baseline_score:.1f} → {each.system_score:.1f}")
    yield Line.plain(head("source") + each.source)
    for reference in each.references:
        yield Line.plain(head("reference") + reference)
    yield Line([Segment(head(names[0]), "same"), *before], "baseline")
    yield Line([Segment(head(names[1]), "same"), *after], "system")


# --- plain -------------------------------------------------------------------------------------------------------


def _aligned(table: Table) -> list[str]:
    heads = [column.title for column in table.columns]
    widths = [max(cell_len(text) for text in column) for column in zip(heads, *table.rows, strict=True)]

    def line(cells: list[str]) -> str:
        padded = (
            " " * (width - cell_len(text)) + text if column.number else text + " " * (width - cell_len(text))
            for text, width, column in zip(cells, widths, table.columns, strict=True)
        )
        return "  ".join(padded).rstrip()

    return [line(heads), *map(line, table.rows)]


def _wdiff(piece: Segment, side: Side) -> str:
    """Marked as `wdiff` does."""
    if piece.kind == "same" or side == "other":
        return piece.text
    return f"[-{piece.text}-]" if side == "baseline" else f"{{+{piece.text}+}}"


# --- rich --------------------------------------------------------------------------------------------------------


def _print_rich(comparison: Comparison, console: Console) -> None:
    from rich.text import Text

    for number, block in enumerate(_blocks(comparison, width=console.width)):
        console.print(Text(("\n" if number else "") + block.title, style="bold"))
        if block.table is not None:
            _print_table(block.table, console)
        for line in block.lines:
            text = Text(style="" if block.table is None else "dim")
            for piece in line.pieces:
                plain = piece.kind == "same" or line.side == "other"
                text.append(piece.text, style="" if plain else "red" if line.side == "baseline" else "green")
            console.print(text, soft_wrap=False)


def _print_table(table: Table, console: Console) -> None:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        shown.add_column(Text(column.title), justify="right" if column.number else "left", overflow="fold")
    for number, row in enumerate(table.rows):
        shown.add_row(*(Text(cell, style=_style(cell, (number, at) in table.best)) for at, cell in enumerate(row)))
    console.print(shown)


def _style(cell: str, best: bool) -> str:
    return "bold" if best else "green" if cell == "better" else "red" if cell == "worse" else ""
