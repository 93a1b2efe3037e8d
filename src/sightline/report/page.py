"""An inspection as one self-contained HTML file that can be read without scripts.

    write_report(Subject(run, "Ein Hund bellt."), Path("report.html"), title="runs/en-de")

Scripts add the number under the pointer on large heat maps. Large tensors are sampled, with a note.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path

from sightline.files import write_atomically
from sightline.inspection.alignment import Alignment, alignment_of
from sightline.inspection.attention import (
    ExpertRouting,
    Head,
    LoadedRun,
    ReceptiveField,
    receptive_fields,
    routings,
    trace_heads,
)
from sightline.inspection.attribution import Attribution, AttributionInput, TokenNames, attribute
from sightline.inspection.beam import BeamRecord, record_beam
from sightline.inspection.trace import Trace
from sightline.inspection.views import Subject, TokenChoice, token_choices
from sightline.inspection.walkthrough import Walkthrough
from sightline.report.heat_maps import Page
from sightline.report.sections import (
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
from sightline.report.walkthrough import walk_section
from sightline.text.tokenizer import PAD, SPECIALS

SECTIONS: dict[str, Callable[[ReportParts, Page], str]] = {  # by title; empty sections are omitted
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
    """Write the report of a subject."""
    write_atomically(path, report(gather(subject, title)))


def report(parts: ReportParts) -> str:
    """The HTML of a report."""
    page = Page()
    bodies = {title: section(parts, page) for title, section in SECTIONS.items()}
    shown = {title: body for title, body in bodies.items() if body}
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


_ATTRIBUTED = 20_000  # most outputs × tokens for attribution, which needs a backward pass per output


@dataclass
class ReportParts:
    """The data of a report; None or empty if the model has none."""

    title: str
    trace: Trace
    walk: Walkthrough
    choices: list[TokenChoice] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    alignment: Alignment | None = None
    beam: BeamRecord | None = None
    attribution: Attribution | None = None
    routings: list[ExpertRouting] = field(default_factory=list)
    windows: list[ReceptiveField] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # omitted parts, and how to get them


def gather(subject: Subject, title: str) -> ReportParts:
    """Compute the parts of a report, narrowed to the subject's step, layer and head."""
    trace, run = subject.trace, subject.run
    parts = ReportParts(
        title,
        trace,
        Walkthrough(trace).focus(step=subject.step, layer=subject.layer, head=subject.head),
        choices=token_choices(trace, subject.token),
        heads=trace_heads(trace, layer=subject.layer, head=subject.head),
        alignment=alignment_of(trace_heads(trace)),
        routings=routings(trace, layer=subject.layer),
        windows=receptive_fields(trace),
    )
    if run is None:
        return parts
    if run.recipe.task_spec.maps_text and run.recipe.decoding.sample is None:
        parts.beam = record_beam(run, subject.text)
    elif run.recipe.task_spec.maps_text:
        parts.left_out.append("Beam: this run draws its outputs (decoding.sample), so there is no search to show.")
    parts.attribution = _attributed(run, trace, parts.left_out)
    return parts


def _attributed(run: LoadedRun, trace: Trace, left_out: list[str]) -> Attribution | None:
    """Input × gradient of the traced tokens."""
    example = _attribution_input(run, trace)
    pairs = len(example.places) * sum(example.sizes)
    if pairs > _ATTRIBUTED:
        left_out.append(
            f"Attribution is left out: {len(example.places)} answers over {sum(example.sizes)} tokens would take as "
            f"many backward passes. `sightline inspect attribution RUN TEXT --method input-gradient` computes it."
        )
        return None
    labels = TokenNames.of(example, run.vocabulary, trace.about.get("text"))
    return attribute(run.model, example, labels, method="input-gradient")


def _attribution_input(run: LoadedRun, trace: Trace) -> AttributionInput:
    """The tokens of the trace, copied: inference tensors cannot be differentiated."""
    names = ("source.tokens", "target.tokens")
    source, decoder_input = (trace[name][0].clone() if name in trace else None for name in names)
    labels = trace["labels"].reshape(-1).clone()
    if run.recipe.task_spec.labels != "none":
        labels = labels + len(SPECIALS)
    elif source is None and run.recipe.task_spec.maps_text:  # one sequence: the text has no loss
        labels[: len(labels) - len(trace.about["target_tokens"])] = PAD
    return AttributionInput(source, decoder_input, labels)
