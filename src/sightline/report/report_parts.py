"""What an HTML report tells, gathered: a trace, what is read from it, and what is asked of the run."""

from __future__ import annotations

from dataclasses import dataclass, field

from sightline.inspection.alignment import Alignment
from sightline.inspection.attention_views import Head, Loaded, alignment_of, trace_heads
from sightline.inspection.attributed import Attribution
from sightline.inspection.attribution import Labels, Question, attribute
from sightline.inspection.beam_record import BeamRecord, record_beam
from sightline.inspection.expert_view import Routing, routings
from sightline.inspection.token_view import TokenChoice, token_choices
from sightline.inspection.trace import Trace
from sightline.inspection.views import Subject
from sightline.inspection.walk_through import WalkThrough
from sightline.inspection.windows_view import Window, windows_of
from sightline.text.tokenizer import PAD, SPECIALS

_ATTRIBUTED = 20_000  # answers × tokens, up to which every answer is attributed: one backward pass each


@dataclass
class ReportParts:
    """All of it; what a model does not have is None or empty."""

    title: str
    trace: Trace
    walk: WalkThrough  # as near as is asked for
    choices: list[TokenChoice] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    alignment: Alignment | None = None
    beam: BeamRecord | None = None
    attribution: Attribution | None = None
    routings: list[Routing] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # what would have been too much, and how to get it


def gather(subject: Subject, title: str) -> ReportParts:
    """The parts of a report; `step`, `layer` and `head` of the subject narrow what has them."""
    trace, run = subject.trace, subject.run
    parts = ReportParts(
        title,
        trace,
        WalkThrough(trace).focus(step=subject.step, layer=subject.layer, head=subject.head),
        choices=token_choices(trace, subject.token),
        heads=trace_heads(trace, layer=subject.layer, head=subject.head),
        alignment=alignment_of(trace_heads(trace)),
        routings=routings(trace, layer=subject.layer),
        windows=windows_of(trace),
    )
    if run is None:
        return parts
    if run.recipe.task_spec.maps_text and run.recipe.decoding.sample is None:
        parts.beam = record_beam(run, subject.text)
    elif run.recipe.task_spec.maps_text:
        parts.left_out.append("Beam: this run draws its outputs (decoding.sample), so there is no search to show.")
    parts.attribution = _attributed(run, trace, parts.left_out)
    return parts


def _attributed(run: Loaded, trace: Trace, left_out: list[str]) -> Attribution | None:
    """Input × gradient of the very tokens that were traced."""
    question = _question(run, trace)
    pairs = len(question.places) * sum(question.sizes)
    if pairs > _ATTRIBUTED:
        left_out.append(
            f"Attribution is left out: {len(question.places)} answers over {sum(question.sizes)} tokens would take as "
            f"many backward passes. `sightline inspect RUN TEXT --attribute input-gradient` computes it."
        )
        return None
    labels = Labels.of(question, run.vocabulary, trace.about.get("text"))
    return attribute(run.model, question, labels, method="input-gradient")


def _question(run: Loaded, trace: Trace) -> Question:
    """The tokens of the trace, copied: those made in inference mode cannot be differentiated."""
    names = ("source.tokens", "target.tokens")
    source, given = (trace[name][0].clone() if name in trace else None for name in names)
    wanted = trace["wanted"].reshape(-1).clone()
    if run.recipe.task_spec.labels != "none":
        wanted = wanted + len(SPECIALS)
    elif source is None and run.recipe.task_spec.maps_text:  # one sequence: of the text itself nothing is asked
        wanted[: len(wanted) - len(trace.about["target_tokens"])] = PAD
    return Question(source, given, wanted)
