"""A comparison as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sightline.comparison.results import Comparison, System
from sightline.comparison.sentences import answers, footnotes
from sightline.comparison.tables import Column, Table, differences_table, luck_table, main_table
from sightline.files import csv_text as csv_rows
from sightline.files import write_atomically

# --- Markdown ----------------------------------------------------------------------------------------------------


def markdown(comparison: Comparison) -> str:
    """The table, its notes, every test and what differs in the recipes, for GitHub and the like."""
    table, others = main_table(comparison), [luck_table(comparison), differences_table(comparison)]
    parts = [f"## {_marked(table.title)}", *(_marked(line) for line in answers(comparison))]
    parts += [markdown_table(table), "\n".join(f"- {_marked(note)}" for note in footnotes(comparison))]
    for each in others:
        parts.append(f"### {_marked(each.title)}")
        if each.rows:
            parts.append(markdown_table(each))
        parts += [_marked(note) for note in each.notes]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """One table; the best values are bold."""

    def cell(text: str, column: Column, best: bool) -> str:
        shown = text.replace("*", "\\*") if column.number else _marked(text)
        return f"**{shown}**" if best else shown

    lines = ["| " + " | ".join(_marked(column.title) for column in table.columns) + " |"]
    lines.append("|" + "|".join("---:" if column.number else "---" for column in table.columns) + "|")
    for number, row in enumerate(table.rows):
        cells = (
            cell(text, column, (number, place) in table.best)
            for place, (text, column) in enumerate(zip(row, table.columns, strict=True))
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _marked(text: str) -> str:
    """Text that means nothing to Markdown."""
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


def latex(comparison: Comparison) -> str:
    """The table as a plain tabular that needs no package: \\input it. The notes stand below it."""
    table = main_table(comparison)
    layout = "".join("r" if column.number else "l" for column in table.columns)
    lines = ["% Made by sightline compare; no packages needed. Names outside Latin script want XeLaTeX or LuaLaTeX."]
    lines += [rf"\begin{{tabular}}{{{layout}}}", r"\hline"]
    lines += [" & ".join(escaped(column.title) for column in table.columns) + r" \\", r"\hline"]
    for number, row in enumerate(table.rows):
        cells = []
        for place, (text, column) in enumerate(zip(row, table.columns, strict=True)):
            shown = _number(text) if column.number else escaped(text)
            cells.append(rf"\textbf{{{shown}}}" if (number, place) in table.best else shown)
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\hline", r"\end{tabular}", ""]
    notes = " \\\\\n".join(_breakable(escaped(note)) for note in footnotes(comparison))
    lines += [r"\par\smallskip", rf"{{\footnotesize\raggedright {notes}\par}}", ""]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    plain = "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
    return plain.replace("--", "-{}-")  # two hyphens are no dash


def _breakable(text: str) -> str:
    """Signatures are one long word; they may break after each part."""
    return text.replace(r"\textbar{}", r"\textbar{}\hspace{0pt}")


def _number(text: str) -> str:
    shown = escaped(text).replace("{*}", r"$^{*}$").replace("{[}", "[")
    shown = re.sub(r"(?<!\w)-(?=\d)", "$-$", shown)
    return re.sub(r"\$\\cdot\$10\\textasciicircum\{\}(\d+)", r"$\\cdot10^{\1}$", shown)


# --- CSV and JSON ------------------------------------------------------------------------------------------------


def csv_text(comparison: Comparison) -> str:
    """A line for each system, every number in full; what is not known is empty."""
    rows = [_numbers(comparison, system) for system in comparison.systems]
    return csv_rows(list(rows[0]), rows)


def _numbers(comparison: Comparison, system: System) -> dict[str, Any]:
    row: dict[str, Any] = {"system": system.name, "runs": system.runs, "test": comparison.test.name}
    for metric in comparison.metrics:
        quality, verdict = system.qualities.get(metric), system.verdicts.get(metric)
        row |= {metric: quality and quality.value, f"{metric}_deviation": quality and quality.deviation}
        row |= {f"{metric}_low": quality and quality.low, f"{metric}_high": quality and quality.high}
        tests = {
            "difference": verdict and verdict.difference,
            "p": verdict and verdict.p,
            "significant": verdict and verdict.significant,
            "p_randomization": verdict and verdict.randomization.p,
            "p_randomization_with_ties": verdict and verdict.randomization.p_with_ties,
            "p_bootstrap": verdict and verdict.bootstrap.p,
            "p_mcnemar": verdict and verdict.mcnemar and verdict.mcnemar.p,
            "p_seeds": verdict and verdict.seeds and verdict.seeds.p,
        }
        row |= {f"{metric}_{name}": value for name, value in tests.items()}
        row[f"{metric}_signature"] = quality and quality.signature
    cost = system.cost
    row |= {"parameters": system.parameters, "training_tokens": cost.tokens, "training_flops": cost.flops}
    row |= {"training_seconds": cost.seconds, "sentences_per_second": system.sentences_per_second}
    return row | {"peak_memory": cost.peak_memory}


def json_text(comparison: Comparison) -> str:
    """Everything, every number in full."""
    return json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


# --- files -------------------------------------------------------------------------------------------------------


WRITERS: dict[str, Callable[[Comparison], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": csv_text,
    "json": json_text,
}
_SUFFIXES = {"html": "html", "markdown": "md", "latex": "tex", "csv": "csv", "json": "json"}


class ExportError(ValueError):
    """Something could not be written or drawn; everything else was."""


class Export:
    """Writes a comparison to files. What fails is remembered while the rest is written, and told in the end."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.written: list[Path] = []
        self.failures: list[tuple[str, Exception]] = []

    def write(self, form: str, path: Path) -> None:
        """One of `html` and `WRITERS`, or `figure`."""
        try:
            if form == "figure":
                from sightline.comparison.figures import write_figure

                write_figure(self.comparison, path)
            elif form == "html":
                from sightline.comparison.page import page

                write_atomically(path, page(self.comparison, partial(self._not_drawn, path)))
            else:
                write_atomically(path, WRITERS[form](self.comparison))
        except Exception as error:  # a drawing that fails, or a full disk, must not lose the other files
            self.failures.append((str(path), error))
        else:
            self.written.append(path)

    def finish(self) -> None:
        """Say what failed, if anything did."""
        if self.failures:
            told = "; ".join(f"{place}: {_why(error)}" for place, error in self.failures)
            rest = ", ".join(str(path) for path in self.written) or "nothing else was asked for"
            raise ExportError(f"not all could be written or drawn ({told}); written: {rest}") from self.failures[0][1]

    def _not_drawn(self, path: Path, title: str, error: Exception) -> None:
        self.failures.append((f"{title} in {path}", error))


def _why(error: Exception) -> str:
    """What went wrong, without the temporary name that a file had."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def write_comparison(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write comparison.html, .md, .tex, .csv, .json and, where matplotlib is installed, .png into a folder.

    A picture that cannot be drawn is an error once all the rest is written.
    """
    from sightline.plots.figures import can_draw

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    export = Export(comparison)
    for form, suffix in _SUFFIXES.items():
        export.write(form, place / f"comparison.{suffix}")
    if can_draw():
        export.write("figure", place / "comparison.png")
    export.finish()
    return export.written
