"""Print a comparison: its tables, and examples of differences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len  # East Asian characters are two columns wide, combining marks none

from sightline.comparison import tables
from sightline.comparison.published import PublishedTable
from sightline.comparison.renderers import fits, plain_lines, rich_table
from sightline.comparison.results import ComparisonResult, Contrast
from sightline.comparison.summary import conclusions, footnotes, representatives_note
from sightline.evaluation.contrasts import ChangedSentence
from sightline.evaluation.word_differences import Segment, word_differences

if TYPE_CHECKING:
    from rich.console import Console

_SENTENCES = 2  # improved and worsened ones each
_WORDS = 5


@dataclass(frozen=True)
class Marked:
    """A line whose differing words are marked as those of the baseline or of the system."""

    segments: list[Segment]
    side: Literal["baseline", "system"]


@dataclass(frozen=True)
class Block:
    """A heading with a table, lines, or both."""

    title: str
    table: tables.Table | None
    lines: Sequence[str | Marked]


def print_comparison(comparison: ComparisonResult, console: Console | None = None) -> None:
    """Print in colour to a terminal, as plain aligned lines elsewhere."""
    _print(lambda width: _blocks(comparison, width=width), console)


def print_published(published: PublishedTable, console: Console | None = None) -> None:
    """Print a published table alone."""
    _print(lambda _: map(_block, tables.published_tables(published)), console)


def _print(blocks: Callable[[int | None], Iterable[Block]], console: Console | None) -> None:
    if console is None and not sys.stdout.isatty():
        print(_plain(blocks(None)), end="")
        return
    from rich.text import Text

    from sightline.terminal import console as terminal_console

    console = console or terminal_console()
    for number, block in enumerate(blocks(console.width)):
        console.print(Text(("\n" if number else "") + block.title, style="bold"))
        if block.table is not None:
            console.print(rich_table(block.table))
        for line in block.lines:
            text = Text(line if isinstance(line, str) else "", style="" if block.table is None else "dim")
            if isinstance(line, Marked):
                colour = "red" if line.side == "baseline" else "green"
                for segment in line.segments:
                    text.append(segment.text, style="" if segment.kind == "same" else colour)
            console.print(text, soft_wrap=False)


def plain_text(comparison: ComparisonResult) -> str:
    """The comparison as lines; differing words are marked as by `wdiff`."""
    return _plain(_blocks(comparison, width=None))


def _plain(blocks: Iterable[Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        lines += ["", block.title, ""] if lines else [block.title, ""]
        if block.table is not None:
            lines += plain_lines(block.table)
        lines += [line if isinstance(line, str) else _wdiff(line) for line in block.lines]
    return "\n".join(lines) + "\n"


def _wdiff(line: Marked) -> str:
    before, after = ("[-", "-]") if line.side == "baseline" else ("{+", "+}")
    return "".join(text if kind == "same" else f"{before}{text}{after}" for text, kind in line.segments)


def _blocks(comparison: ComparisonResult, *, width: int | None) -> Iterator[Block]:
    """Everything to print, in tables that fit the width if possible."""
    notes = ["", *footnotes(comparison)]
    whole = tables.main_table(comparison)
    yield Block(whole.title, None, conclusions(comparison))
    if fits(whole, width):
        yield Block("Quality and cost", whole, notes)
    else:
        *qualities, cost = tables.narrow_tables(comparison)
        for table in qualities:
            yield _block(table)
        yield Block(cost.title, cost, notes)
    if comparison.published is not None:
        for table in tables.published_tables(comparison.published, comparison):
            yield _block(table)
    yield _block(tables.significance_table(comparison))
    yield _differences(comparison, width)
    if note := representatives_note(comparison):
        yield Block("Where they differ", None, [note])
    for table in tables.analysis_tables(comparison):
        yield _block(table if fits(table, width) else table.transposed())
    if comparison.where.contrasts:
        yield from _contrast(comparison, _shown_contrast(comparison))


def _block(table: tables.Table) -> Block:
    return Block(table.title, table if table.rows else None, table.notes)


def _differences(comparison: ComparisonResult, width: int | None) -> Block:
    """The recipe differences as a table or, if that is too wide, key by key."""
    table = tables.differences_table(comparison)
    if not table.rows or fits(table, width):
        return _block(table)
    names = _aligned([column.title for column in table.columns[1:]])
    lines = []
    for key, *values in table.rows:
        lines += [key, *(f"{name}{value}" for name, value in zip(names, values, strict=True))]
    return Block(table.title, None, [*lines, *table.notes])


def _aligned(heads: Sequence[str]) -> list[str]:
    """Indent and pad to a common width in terminal columns."""
    width = max(map(cell_len, heads))
    return [f"  {head}{' ' * (width - cell_len(head))}  " for head in heads]


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
        table = tables.word_table(comparison, contrast, ahead=ahead, most=_WORDS)
        if table.rows:
            yield _block(table)
    if not contrast.differs:
        yield Block("Where they differ", None, ["Nowhere: no sentence and no word is better or worse."])
    elif len(comparison.others) > 1:
        hint = "The page (--html FILE; a sweep writes comparison.html) has this for every system, n-grams too."
        yield Block("Other systems", None, [hint])


def _sentence(comparison: ComparisonResult, contrast: Contrast, each: ChangedSentence) -> Iterator[str | Marked]:
    before, after = word_differences(each.baseline, each.system)
    source, reference, *names = _aligned(["source", "reference", comparison.baseline.name, contrast.system])
    yield f"sentence {each.number:,}: {each.baseline_score:.1f} → {each.system_score:.1f}"
    yield source + each.source
    yield from (reference + text for text in each.references)
    yield Marked([Segment(names[0], "same"), *before], "baseline")
    yield Marked([Segment(names[1], "same"), *after], "system")
