"""Write a comparison to files: an HTML page, Markdown, LaTeX, CSV, JSON and a figure.

The page is self-contained, without scripts, for light and dark displays. Texts are escaped and set in the direction of
their own script.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path

from sightline.comparison import tables
from sightline.comparison.published import PublishedTable
from sightline.comparison.renderers import (
    csv_table,
    html_table,
    html_text,
    latex_note,
    latex_table,
    markdown_table,
    markdown_text,
)
from sightline.comparison.results import ComparisonResult, Contrast
from sightline.comparison.summary import conclusions, footnotes, representatives_note
from sightline.evaluation.contrasts import ChangedSentence
from sightline.evaluation.word_differences import Segment, word_differences
from sightline.files import write_atomically
from sightline.plots import comparison as figures
from sightline.plots.figures import can_draw
from sightline.registry import version

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
OnFailure = Callable[[str, Exception], None]  # called with the title of a figure that could not be drawn


def markdown(comparison: ComparisonResult) -> str:
    """Conclusions, main table, notes, tests and recipe differences."""
    table = tables.main_table(comparison)
    parts = [f"## {markdown_text(table.title)}", *(markdown_text(line) for line in conclusions(comparison))]
    parts += [markdown_table(table), "\n".join(f"- {markdown_text(note)}" for note in footnotes(comparison))]
    others = [*_published(comparison), tables.significance_table(comparison), tables.differences_table(comparison)]
    return "\n\n".join([*parts, *map(_markdown_section, others)]) + "\n"


def _markdown_section(table: tables.Table) -> str:
    parts = [f"### {markdown_text(table.title)}", *([markdown_table(table)] if table.rows else [])]
    return "\n\n".join([*parts, *(markdown_text(note) for note in table.notes)])


def _published(comparison: ComparisonResult) -> list[tables.Table]:
    """The tables of published numbers; empty unless the comparison shows one."""
    return [] if comparison.published is None else tables.published_tables(comparison.published, comparison)


def latex(comparison: ComparisonResult) -> str:
    """The main table with its notes, for \\input."""
    head = "% Made by sightline compare; no packages needed. Names outside Latin script need XeLaTeX or LuaLaTeX."
    parts = [_latex_section(tables.main_table(comparison), footnotes(comparison))]
    parts += [_latex_section(table, [table.title, *table.notes]) for table in _published(comparison)]
    return "\n".join([head, *parts])


def _latex_section(table: tables.Table, notes: Sequence[str]) -> str:
    below = " \\\\\n".join(latex_note(note) for note in notes)
    return "\n".join([latex_table(table), "", r"\par\smallskip", rf"{{\footnotesize\raggedright {below}\par}}", ""])


def csv_text(comparison: ComparisonResult) -> str:
    """A line for each system with every number in full precision."""
    return csv_table(tables.numbers_table(comparison))


# --- the HTML page -----------------------------------------------------------------------------------------------


def html_page(comparison: ComparisonResult, on_failure: OnFailure | None = None) -> str:
    """The HTML page. `on_failure` is called for a figure that cannot be drawn; without it the exception propagates."""
    names = " · ".join(system.name for system in comparison.systems[:4])
    more = f" and {len(comparison.systems) - 4} more" if len(comparison.systems) > 4 else ""
    title = f"{names}{more} on {comparison.test.name}"
    answer = "".join(f'<p class="answer">{escape(line)}</p>' for line in conclusions(comparison))
    sections = [
        _section("answer", "Which is better?", answer),
        _section(
            "table", "Quality and cost", html_table(tables.main_table(comparison)) + _notes(footnotes(comparison))
        ),
        *(_table_section(f"published-{number}", table) for number, table in enumerate(_published(comparison), 1)),
        _table_section("significance", tables.significance_table(comparison)),
        _table_section("recipes", tables.differences_table(comparison)),
        _section("curves", "Learning curves", _figure(comparison, "curves", "Learning curves", on_failure)),
        _section("costs", "Quality against cost", _figure(comparison, "costs", "Quality against cost", on_failure)),
        _section("where", "Where they differ", _analysis(comparison)),
        _table_section("runs", tables.runs_table(comparison)),
    ]
    return _page(title, sections)


def _page(title: str, sections: Sequence[str]) -> str:
    """A page of sections."""
    style = (resources.files("sightline.comparison") / "page.css").read_text(encoding="utf-8")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}</title><style>{style}</style>"
    )
    body = f"<main><h1>{escape(title)}</h1>{''.join(sections)}"
    body += f"<footer>Made by sightline compare, version {escape(version())}.</footer></main>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _section(name: str, title: str, content: str) -> str:
    return f'\n<section id="{name}"><h2>{escape(title)}</h2>{content}</section>'


def _table_section(name: str, table: tables.Table) -> str:
    return _section(name, table.title, (html_table(table) if table.rows else "") + _notes(table.notes))


def _titled(table: tables.Table) -> str:
    return f"<h3>{escape(table.title)}</h3>{html_table(table) if table.rows else ''}{_notes(table.notes)}"


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""


def _figure(comparison: ComparisonResult, part: str, title: str, on_failure: OnFailure | None) -> str:
    """A figure in a light and a dark version."""
    if not can_draw():
        return "<p>Figures need matplotlib: <code>pip install 'sightline[viz]'</code></p>"
    try:
        light, dark = (
            base64.b64encode(figures.draw(comparison, "svg", parts=(part,), theme=theme)).decode()
            for theme in (figures.LIGHT, figures.DARK)
        )
    except Exception as error:  # keep the tables
        if on_failure is None:
            raise
        on_failure(title, error)
        return f"<p>This figure could not be drawn: {escape(str(error))}</p>"
    kind = "data:image/svg+xml;base64,"
    return (
        f'<div class="scroll"><picture><source media="(prefers-color-scheme: dark)" srcset="{kind}{dark}">'
        f'<img alt="{escape(title)}" src="{kind}{light}"></picture></div>'
    )


def _analysis(comparison: ComparisonResult) -> str:
    if comparison.of_text:
        return "<p>Language models are scored on the text itself: there are no outputs that could differ.</p>"
    if not comparison.has_outputs:
        return "<p>No metric here needs outputs, so nothing was decoded that could differ.</p>"
    note = representatives_note(comparison)
    parts = [_notes([note])] if note else []
    parts += [_titled(table) for table in tables.analysis_tables(comparison)]
    parts += [
        _contrast(comparison, contrast, unfolded=len(comparison.others) == 1) for contrast in comparison.where.contrasts
    ]
    return "".join(parts)


def _contrast(comparison: ComparisonResult, contrast: Contrast, *, unfolded: bool) -> str:
    baseline = comparison.baseline.name
    parts: list[str] = []
    for what, changed in (("gained", contrast.sentences.improved), ("lost", contrast.sentences.worsened)):
        if changed:
            title = f"Sentences where {contrast.system} {what} most ({comparison.where.sentence_metric})"
            shown = "".join(_sentence(each, baseline, contrast.system) for each in changed)
            parts.append(f"<h3>{escape(title)}</h3>{shown}")
    for make in (tables.ngram_table, tables.word_table):
        pair = [make(comparison, contrast, ahead=ahead) for ahead in (True, False)]
        shown = "".join(f"<div>{_titled(table)}</div>" for table in pair if table.rows)
        parts.append(f'<div class="pair">{shown}</div>' if shown else "")
    content = "".join(parts) or "<p>The outputs do not differ.</p>"
    title = escape(f"{contrast.system} against {baseline}")
    return f"<details{' open' if unfolded else ''}><summary>{title}</summary>{content}</details>"


def _sentence(each: ChangedSentence, baseline: str, system: str) -> str:
    before, after = word_differences(each.baseline, each.system)
    rows = [("source", escape(each.source)), *(("reference", escape(reference)) for reference in each.references)]
    rows += [(f"{baseline} ({each.baseline_score:.1f})", _marked(before, "del"))]
    rows += [(f"{system} ({each.system_score:.1f})", _marked(after, "ins"))]
    shown = "".join(f'<tr><th scope="row">{html_text(name)}</th><td dir="auto">{text}</td></tr>' for name, text in rows)
    return f'<table class="sentence"><caption>sentence {each.number:,}</caption><tbody>{shown}</tbody></table>'


def _marked(segments: Iterable[Segment], tag: str) -> str:
    return "".join(
        escape(text) if kind == "same" else f'<{tag} class="{kind}">{escape(text)}</{tag}>' for text, kind in segments
    )


# --- files -------------------------------------------------------------------------------------------------------


def write_published(published: PublishedTable, files: Mapping[str, Path]) -> list[Path]:
    """Write a published table alone to files: html, markdown, latex, csv or json."""
    shown = tables.published_tables(published)
    sections = (_table_section(f"published-{number}", table) for number, table in enumerate(shown, 1))
    texts: dict[str, Callable[[], str]] = {
        "html": lambda: _page(shown[0].title, list(sections)),
        "markdown": lambda: "\n\n".join(map(_markdown_section, shown)) + "\n",
        "latex": lambda: "\n".join(_latex_section(each, [each.title, *each.notes]) for each in shown),
        "csv": lambda: csv_table(tables.published_numbers(published)),
        "json": lambda: json.dumps({"published": asdict(published)}, indent=1, ensure_ascii=False) + "\n",
    }
    if wrong := [form for form in files if form not in texts]:
        raise ValueError(f"--{wrong[0]} draws runs, and --published alone has none; leave it out, or name runs")
    for form, path in files.items():
        write_atomically(path, texts[form]())
    return list(files.values())


WRITERS: dict[str, Callable[[ComparisonResult], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": csv_text,
    "json": ComparisonResult.to_json,
}
_SUFFIXES = {"html": "html", "markdown": "md", "latex": "tex", "csv": "csv", "json": "json"}


class ExportError(ValueError):
    """A file could not be written or a figure not drawn; all others were."""


class Export:
    """Writes a comparison to files; `finish` raises the failures after all other files are written."""

    def __init__(self, comparison: ComparisonResult) -> None:
        self.comparison = comparison
        self.written: list[Path] = []
        self.failures: list[tuple[str, Exception]] = []

    def write(self, form: str, path: Path) -> None:
        """Write `html`, `figure` or one of `WRITERS`."""
        try:
            if form == "figure":
                figures.write_figure(self.comparison, path)
            elif form == "html":
                write_atomically(path, html_page(self.comparison, partial(self._not_drawn, path)))
            else:
                write_atomically(path, WRITERS[form](self.comparison))
        except Exception as error:  # still write the other files
            self.failures.append((str(path), error))
        else:
            self.written.append(path)

    def finish(self) -> None:
        """Raise `ExportError` if anything failed."""
        if self.failures:
            failed = "; ".join(f"{place}: {_reason(error)}" for place, error in self.failures)
            rest = ", ".join(map(str, self.written)) or "no other file"
            raise ExportError(f"not all could be written or drawn ({failed}); written: {rest}") from self.failures[0][1]

    def _not_drawn(self, path: Path, title: str, error: Exception) -> None:
        self.failures.append((f"{title} in {path}", error))


def _reason(error: Exception) -> str:
    """The message of an error, without the name of a temporary file."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def write_comparison(comparison: ComparisonResult, folder: str | Path) -> list[Path]:
    """Write comparison.html, .md, .tex, .csv, .json and, if matplotlib is installed, .png into a folder."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    export = Export(comparison)
    for form, suffix in _SUFFIXES.items():
        export.write(form, place / f"comparison.{suffix}")
    if can_draw():
        export.write("figure", place / "comparison.png")
    export.finish()
    return export.written
