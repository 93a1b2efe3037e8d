"""A comparison as one HTML page that needs nothing else: no network, no scripts, light and dark, any script of writing.

What comes from outside (names, texts, recipes) is escaped, and set in the direction of its own script.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib import resources

from sightline.comparison import figures
from sightline.comparison.results import Comparison
from sightline.comparison.sentences import answers, footnotes, looked_at
from sightline.comparison.tables import (
    Column,
    Table,
    differences_table,
    luck_table,
    main_table,
    ngram_table,
    runs_table,
    where_tables,
    word_table,
)
from sightline.comparison.where import Contrast
from sightline.evaluation.contrasts import ChangedSentence
from sightline.evaluation.word_differences import Segment, word_differences
from sightline.plots.figures import can_draw
from sightline.registry import version

# Nothing may be loaded from anywhere, and nothing may run: the browser is told so too.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


Failed = Callable[[str, Exception], None]  # what could not be drawn, and why


def page(comparison: Comparison, failed: Failed | None = None) -> str:
    """The whole page. Where a picture cannot be drawn it says so, if there is somebody to tell; else it fails."""
    names = " · ".join(system.name for system in comparison.systems[:4])
    more = f" and {len(comparison.systems) - 4} more" if len(comparison.systems) > 4 else ""
    title = f"{names}{more} on {comparison.test.name}"
    style = (resources.files("sightline.comparison") / "page.css").read_text(encoding="utf-8")
    sections = [
        _section("answer", "Which is better?", _answer(comparison)),
        _section("table", "Quality and cost", _table(main_table(comparison)) + _notes(footnotes(comparison))),
        _table_section("luck", luck_table(comparison)),
        _table_section("recipes", differences_table(comparison)),
        _section("curves", "How they learned", _picture(comparison, "curves", "Learning curves", failed)),
        _section("costs", "Quality against cost", _picture(comparison, "costs", "Quality against cost", failed)),
        _section("where", "Where they differ", _where(comparison)),
        _table_section("runs", runs_table(comparison)),
    ]
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


def _table_section(name: str, table: Table) -> str:
    return _section(name, table.title, (_table(table) if table.rows else "") + _notes(table.notes))


def _answer(comparison: Comparison) -> str:
    return "".join(f'<p class="answer">{escape(line)}</p>' for line in answers(comparison))


# --- tables ------------------------------------------------------------------------------------------------------


def _table(table: Table) -> str:
    heads = "".join(f"<th{_side(column)}>{_text(column.title)}</th>" for column in table.columns)
    rows = []
    for number, row in enumerate(table.rows):
        cells = (
            _cell(text, column, (number, place) in table.best)
            for place, (text, column) in enumerate(zip(row, table.columns, strict=True))
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _titled(table: Table) -> str:
    inner = _table(table) if table.rows else ""
    return f"<h3>{escape(table.title)}</h3>{inner}{_notes(table.notes)}"


def _cell(text: str, column: Column, best: bool) -> str:
    shown = _number(text) if column.number else _text(text)
    return f"<td{_side(column)}>{f'<strong>{shown}</strong>' if best else shown}</td>"


def _side(column: Column) -> str:
    return ' class="number"' if column.number else ""


def _number(text: str) -> str:
    shown = re.sub(r"·10\^(\d+)", r"·10<sup>\1</sup>", escape(text))
    return re.sub(r"(\[[^\]]*\])", r"<small>\1</small>", shown)


def _text(text: str) -> str:
    return f'<bdi dir="auto">{escape(text)}</bdi>'


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""


# --- pictures ----------------------------------------------------------------------------------------------------


def _picture(comparison: Comparison, part: str, title: str, failed: Failed | None) -> str:
    if not can_draw():
        return "<p>Pictures need matplotlib: <code>pip install 'sightline[viz]'</code></p>"
    try:
        return _drawn(comparison, part, title)
    except Exception as error:  # whatever a drawing trips over, the tables are worth having
        if failed is None:
            raise
        failed(title, error)
        return f"<p>This picture could not be drawn: {escape(str(error))}</p>"


def _drawn(comparison: Comparison, part: str, title: str) -> str:
    """Twice, for light and for dark paper; the browser takes the one that fits."""
    light, dark = (
        base64.b64encode(figures.draw(comparison, "svg", parts=(part,), on=paper)).decode()
        for paper in (figures.LIGHT, figures.DARK)
    )
    kind = "data:image/svg+xml;base64,"
    return (
        f'<div class="scroll"><picture><source media="(prefers-color-scheme: dark)" srcset="{kind}{dark}">'
        f'<img alt="{escape(title)}" src="{kind}{light}"></picture></div>'
    )


# --- where they differ -------------------------------------------------------------------------------------------


def _where(comparison: Comparison) -> str:
    if comparison.of_text:
        return "<p>Language models are measured by the text itself: they wrote nothing that could differ.</p>"
    if not comparison.writes:
        return "<p>No metric here looks at outputs, so nothing was decoded that could differ.</p>"
    note = looked_at(comparison)
    parts = [_notes([note])] if note else []
    parts += [_titled(table) for table in where_tables(comparison)]
    parts += [
        _contrast(comparison, contrast, unfolded=len(comparison.others) == 1) for contrast in comparison.where.contrasts
    ]
    return "".join(parts)


def _contrast(comparison: Comparison, contrast: Contrast, *, unfolded: bool) -> str:
    baseline = comparison.baseline.name
    found = contrast.sentences
    parts: list[str] = []
    for what, changed in (("gained", found.improved), ("lost", found.worsened)):
        if changed:
            title = f"Sentences where {contrast.system} {what} most ({comparison.where.sentence_metric})"
            shown = "".join(_sentence(each, baseline, contrast.system) for each in changed)
            parts.append(f"<h3>{escape(title)}</h3>{shown}")
    for make in (ngram_table, word_table):
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
    shown = "".join(f'<tr><th scope="row">{_text(name)}</th><td dir="auto">{text}</td></tr>' for name, text in rows)
    return f'<table class="sentence"><caption>sentence {each.number:,}</caption><tbody>{shown}</tbody></table>'


def _marked(segments: Iterable[Segment], tag: str) -> str:
    return "".join(
        escape(text) if kind == "same" else f'<{tag} class="{kind}">{escape(text)}</{tag}>' for text, kind in segments
    )
