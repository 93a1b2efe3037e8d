"""Print a comparison: its tables, and examples of differences."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len  # East Asian characters are two columns wide, combining marks none

from sightline.comparison.renderers import fits, plain_lines, rich_table
from sightline.comparison.results import ComparisonResult, Contrast
from sightline.comparison.summary import conclusions, footnotes, representatives_note
from sightline.comparison.tables import (
    Table,
    analysis_tables,
    differences_table,
    main_table,
    narrow_tables,
    significance_table,
    word_table,
)
from sightline.evaluation.contrasts import ChangedSentence
from sightline.evaluation.word_differences import Segment, word_differences

if TYPE_CHECKING:
    from rich.console import Console

_SENTENCES = 2  # improved and worsened ones each
_WORDS = 5

Side = Literal["baseline", "system", "other"]


@dataclass(frozen=True)
class Line:
    """A line in segments; differing words are marked by their side."""

    segments: list[Segment]
    side: Side = "other"

    @staticmethod
    def plain(text: str) -> Line:
        return Line([Segment(text, "same")])


@dataclass(frozen=True)
class Block:
    """A heading with a table, lines, or both."""

    title: str
    table: Table | None
    lines: list[Line]


def print_comparison(comparison: ComparisonResult, console: Console | None = None) -> None:
    """Print in colour to a terminal, as plain aligned lines elsewhere."""
    if console is None and not sys.stdout.isatty():
        print(plain_text(comparison), end="")
        return
    from rich.text import Text

    from sightline.terminal import console as terminal_console

    console = console or terminal_console()
    for number, block in enumerate(_blocks(comparison, width=console.width)):
        console.print(Text(("\n" if number else "") + block.title, style="bold"))
        if block.table is not None:
            console.print(rich_table(block.table))
        for line in block.lines:
            text = Text(style="" if block.table is None else "dim")
            for segment in line.segments:
                plain = segment.kind == "same" or line.side == "other"
                text.append(segment.text, style="" if plain else "red" if line.side == "baseline" else "green")
            console.print(text, soft_wrap=False)


def plain_text(comparison: ComparisonResult) -> str:
    """The comparison as lines; differing words are marked as by `wdiff`."""
    lines: list[str] = []
    for block in _blocks(comparison, width=None):
        lines += ["", block.title, ""] if lines else [block.title, ""]
        if block.table is not None:
            lines += plain_lines(block.table)
        lines += ["".join(_wdiff(segment, line.side) for segment in line.segments) for line in block.lines]
    return "\n".join(lines) + "\n"


def _wdiff(segment: Segment, side: Side) -> str:
    if segment.kind == "same" or side == "other":
        return segment.text
    return f"[-{segment.text}-]" if side == "baseline" else f"{{+{segment.text}+}}"


def _blocks(comparison: ComparisonResult, *, width: int | None) -> Iterator[Block]:
    """Everything to print, in tables that fit the width if possible."""
    notes = [Line.plain(""), *(Line.plain(note) for note in footnotes(comparison))]
    whole = main_table(comparison)
    yield Block(whole.title, None, [Line.plain(line) for line in conclusions(comparison)])
    if fits(whole, width):
        yield Block("Quality and cost", whole, notes)
    else:
        *qualities, cost = narrow_tables(comparison)
        for table in qualities:
            yield _block(table)
        yield Block(cost.title, cost, notes)
    yield _block(significance_table(comparison))
    yield _differences(comparison, width)
    if note := representatives_note(comparison):
        yield Block("Where they differ", None, [Line.plain(note)])
    for table in analysis_tables(comparison):
        yield _block(table if fits(table, width) else table.transposed())
    if comparison.where.contrasts:
        yield from _contrast(comparison, _shown_contrast(comparison))


def _block(table: Table) -> Block:
    return Block(table.title, table if table.rows else None, [Line.plain(note) for note in table.notes])


def _differences(comparison: ComparisonResult, width: int | None) -> Block:
    """The recipe differences as a table or, if that is too wide, key by key."""
    table = differences_table(comparison)
    if not table.rows or fits(table, width):
        return _block(table)
    names = [column.title for column in table.columns[1:]]
    longest = max(map(cell_len, names))
    lines = []
    for key, *values in table.rows:
        lines.append(Line.plain(key))
        pairs = zip(names, values, strict=True)
        lines += [Line.plain(f"  {name}{' ' * (longest - cell_len(name))}  {value}") for name, value in pairs]
    return Block(table.title, None, [*lines, *map(Line.plain, table.notes)])


def _shown_contrast(comparison: ComparisonResult) -> Contrast:
    """The contrast of the best system whose outputs differ from the baseline's."""
    contrasts = {each.system: each for each in comparison.where.contrasts}
    differing = [system for system in comparison.others if contrasts[system.name].differs]
    return contrasts[comparison.best(comparison.metrics[0], differing or comparison.others).name]


def _contrast(comparison: ComparisonResult, contrast: Contrast) -> Iterator[Block]:
    sentences, metric = contrast.sentences, comparison.where.sentence_metric
    for what, changed in (("gained", sentences.improved), ("lost", sentences.worsened)):
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
        hint = "The page (--html FILE; a sweep writes comparison.html) has this for every system, n-grams too."
        yield Block("Other systems", None, [Line.plain(hint)])


def _sentence(comparison: ComparisonResult, contrast: Contrast, each: ChangedSentence) -> Iterator[Line]:
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
