"""Renderers of tables: plain text, terminal (rich), Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from rich.cells import cell_len  # East Asian characters are two columns wide, combining marks none

from sightline.comparison.tables import Column, Table
from sightline.files import csv_text

if TYPE_CHECKING:
    from rich.table import Table as RichTable

# --- terminal ----------------------------------------------------------------------------------------------------


def plain_lines(table: Table) -> list[str]:
    """Aligned lines, starting with the heads."""
    heads = [column.title for column in table.columns]
    widths = [max(cell_len(text) for text in column) for column in zip(heads, *table.rows, strict=True)]

    def line(cells: list[str]) -> str:
        padded = (
            " " * (width - cell_len(text)) + text if column.number else text + " " * (width - cell_len(text))
            for text, width, column in zip(cells, widths, table.columns, strict=True)
        )
        return "  ".join(padded).rstrip()

    return [line(heads), *map(line, table.rows)]


def fits(table: Table, width: int | None) -> bool:
    """Return True if the terminal table, with three spaces between columns, is at most `width` columns wide."""
    return width is None or max(map(cell_len, plain_lines(table))) + len(table.columns) <= width


def rich_table(table: Table) -> RichTable:
    """A table for the terminal, in colour."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    def style(cell: str, best: bool) -> str:
        return "bold" if best else "green" if cell == "better" else "red" if cell == "worse" else ""

    rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        rich.add_column(Text(column.title), justify="right" if column.number else "left", overflow="fold")
    for row in table.cells():
        rich.add_row(*(Text(text, style=style(text, best)) for text, _, best in row))
    return rich


# --- Markdown ----------------------------------------------------------------------------------------------------


def markdown_table(table: Table) -> str:
    """A Markdown table; the best values are bold."""

    def cell(text: str, column: Column, best: bool) -> str:
        shown = text.replace("*", "\\*") if column.number else markdown_text(text)
        return f"**{shown}**" if best else shown

    lines = ["| " + " | ".join(markdown_text(column.title) for column in table.columns) + " |"]
    lines.append("|" + "|".join("---:" if column.number else "---" for column in table.columns) + "|")
    lines += ["| " + " | ".join(cell(*each) for each in row) + " |" for row in table.cells()]
    return "\n".join(lines)


def markdown_text(text: str) -> str:
    """Text with Markdown's characters escaped."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))


# --- LaTeX -------------------------------------------------------------------------------------------------------

_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "–": r"\textendash{}",
    "−": "$-$",
    "[": "{[}",  # after a line break a bracket or a star would be an argument
    "*": "{*}",
}


def latex_table(table: Table) -> str:
    """A tabular that needs no package; the best values are bold."""

    def cell(text: str, column: Column, best: bool) -> str:
        shown = _latex_number(text) if column.number else latex_text(text)
        return rf"\textbf{{{shown}}}" if best else shown

    layout = "".join("r" if column.number else "l" for column in table.columns)
    lines = [rf"\begin{{tabular}}{{{layout}}}", r"\hline"]
    lines += [" & ".join(latex_text(column.title) for column in table.columns) + r" \\", r"\hline"]
    lines += [" & ".join(cell(*each) for each in row) + r" \\" for row in table.cells()]
    return "\n".join([*lines, r"\hline", r"\end{tabular}"])


def latex_text(text: str) -> str:
    """Text with LaTeX's characters escaped."""
    plain = "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
    return plain.replace("--", "-{}-")  # not a dash


def latex_note(text: str) -> str:
    """Escaped text in which long signatures may break after each part."""
    return latex_text(text).replace(r"\textbar{}", r"\textbar{}\hspace{0pt}")


def _latex_number(text: str) -> str:
    shown = latex_text(text).replace("{*}", r"$^{*}$").replace("{[}", "[")
    shown = re.sub(r"(?<!\w)-(?=\d)", "$-$", shown)
    return re.sub(r"\$\\cdot\$10\\textasciicircum\{\}(\d+)", r"$\\cdot10^{\1}$", shown)


# --- CSV and HTML ------------------------------------------------------------------------------------------------


def csv_table(table: Table) -> str:
    """Comma-separated values in full precision; None is empty."""
    heads = [column.title for column in table.columns]
    return csv_text(heads, [dict(zip(heads, row, strict=True)) for row in table.rows])


def html_table(table: Table) -> str:
    """An HTML table that scrolls sideways; the best values are <strong>."""

    def cell(text: str, column: Column, best: bool) -> str:
        shown = _html_number(text) if column.number else html_text(text)
        return f"<td{_html_class(column)}>{f'<strong>{shown}</strong>' if best else shown}</td>"

    heads = "".join(f"<th{_html_class(column)}>{html_text(column.title)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(cell(*each) for each in row)}</tr>" for row in table.cells())
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def html_text(text: str) -> str:
    """Escaped text in the direction of its own script."""
    return f'<bdi dir="auto">{escape(text)}</bdi>'


def _html_class(column: Column) -> str:
    return ' class="number"' if column.number else ""


def _html_number(text: str) -> str:
    shown = re.sub(r"·10\^(\d+)", r"·10<sup>\1</sup>", escape(text))
    return re.sub(r"(\[[^\]]*\])", r"<small>\1</small>", shown)
