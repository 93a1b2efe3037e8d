"""One HTML file that shows an inspection: it asks nobody for anything, and reads without scripts.

    write_report(Subject(run, "Ein Hund bellt."), Path("report.html"), title="runs/en-de")

Scripts add the number under the pointer on large heat maps. What is too much is sampled, with a note where that is.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib.resources import files
from pathlib import Path

from sightline.files import write_atomically
from sightline.inspection.views import Subject
from sightline.report.heat_map_html import Page
from sightline.report.report_parts import ReportParts, gather
from sightline.report.report_sections import (
    about_section,
    alignment_section,
    attribution_section,
    beam_section,
    experts_section,
    gates_section,
    heads_section,
    output_section,
    windows_section,
)
from sightline.report.report_walk import walk_section

SECTIONS: dict[str, Callable[[ReportParts, Page], str]] = {  # by title; what a model does not have is left out
    "Output": output_section,
    "Alignment": alignment_section,
    "Heads": heads_section,
    "Experts": experts_section,
    "Gates": gates_section,
    "Windows": windows_section,
    "Beam": beam_section,
    "Attribution": attribution_section,
    "Walk-through": walk_section,
}
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_report(subject: Subject, path: Path, *, title: str) -> None:
    """Gather what there is to show, and write it."""
    write_atomically(path, report(gather(subject, title)))


def report(parts: ReportParts) -> str:
    """The page."""
    page = Page()
    made = {title: section(parts, page) for title, section in SECTIONS.items()}
    shown = {title: body for title, body in made.items() if body}
    links = " ".join(f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title in shown)
    sections = "".join(
        f'<section id="{_anchor(title)}"><h2>{escape(title)}</h2>{body}</section>' for title, body in shown.items()
    )
    style, script = (files("sightline.report").joinpath(f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{_POLICY}"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(parts.title)}</title><style>{style}</style></head><body>"
        f'<a class="skip" href="#{_anchor(next(iter(shown)))}">To the output</a><h1>{escape(parts.title)}</h1>'
        f'{about_section(parts)}<nav aria-label="Sections">{links}</nav><main>{sections}</main>'
        f'<div id="readout" role="status" aria-live="polite"></div>{page.names()}<script>{script}</script>'
        "</body></html>\n"
    )


def _anchor(title: str) -> str:
    return title.lower()
