"""What `sightline inspect --view` shows: each view gives what a terminal prints and what JSON keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.inspection.attention import LoadedRun
from sightline.inspection.trace import Trace

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sightline.inspection.ablation import Measure

_SAMPLED = 20_000  # numbers of a tensor in JSON; of larger ones a sample, with a note


@dataclass(frozen=True)
class InspectionView:
    """The same thing for a terminal, for JSON and, where there is one, as a picture."""

    shown: RenderableType
    record: Callable[[], Any]  # when it is asked for
    draw: Callable[[Path], None] | None = None

    def picture(self, path: Path) -> None:
        """Draw it; its suffix chooses the format."""
        if self.draw is None:
            raise ValueError(f"--figure {path}: this view has no picture; --view heads and --view beam have, or --html")
        self.draw(path)


@dataclass
class Subject:
    """What is looked at: a run and a text, or a trace that is there already; and how near."""

    run: LoadedRun | None = None
    text: str = ""
    target: str | None = None
    step: int | None = None
    layer: int | None = None
    head: int | None = None
    heads: Sequence[str] = ()  # to switch off; none: each in turn
    measure: Measure | None = None  # a corpus metric, of heads that are switched off
    metric: str = "metric"  # and its name
    given: Trace | None = field(default=None, repr=False)

    @cached_property
    def trace(self) -> Trace:
        """Recorded when it is first asked for."""
        return self.given if self.given is not None else self.loaded("a trace").trace(self.text, self.target)

    def loaded(self, what: str) -> LoadedRun:
        """The run; where there is none, nobody can be asked for `what`."""
        if self.run is None:
            raise ValueError(f"{what} needs a run folder, and this is an example with a trace alone; name a run")
        return self.run

    def token(self, number: int) -> str:
        """The name of a column of the probabilities."""
        labels = self.trace.about.get("labels")
        if labels is not None:
            return str(labels[number])
        pieces = self.loaded("a vocabulary").vocabulary.target.pieces([number])
        return pieces[0] if pieces else str(number)


def _walk(subject: Subject) -> InspectionView:
    from sightline.inspection.walk_through import WalkThrough

    walk = WalkThrough(subject.trace).focus(step=subject.step, layer=subject.layer, head=subject.head)

    def record() -> dict[str, Any]:
        if (subject.step, subject.layer, subject.head) == (None, None, None):
            return trace_record(subject.trace)
        shown = [replace(each.step, tensor=each.tensor) for each in walk.steps()]
        return trace_record(Trace(shown, {}, subject.trace.about))

    return InspectionView(walk, record)


def _steps(subject: Subject) -> InspectionView:
    from sightline.inspection.trace import layer_of
    from sightline.inspection.walk_through import check_layer

    trace = subject.trace
    if subject.layer is not None:
        check_layer(trace, subject.layer)
        trace = Trace([step for step in trace if layer_of(step.name) == subject.layer], {}, trace.about)
    return InspectionView(trace, lambda: trace_record(trace))


def _tokens(subject: Subject) -> InspectionView:
    from sightline.inspection.token_view import token_choices, token_table

    choices = token_choices(subject.trace, subject.token)
    if subject.step is not None:
        choices = [choice for choice in choices if choice.place == subject.step]
        if not choices:
            raise ValueError(f"--step {subject.step}: the output has no such token; --view tokens shows all")
    return InspectionView(token_table(subject.trace, choices), lambda: [asdict(choice) for choice in choices])


def _heads(subject: Subject) -> InspectionView:
    from sightline.inspection.attention import heads_table, trace_heads

    heads = trace_heads(subject.trace, layer=subject.layer, head=subject.head)
    if not heads:
        raise ValueError(_no_head(subject, [each.name for each in trace_heads(subject.trace)]))

    def draw(path: Path) -> None:
        from sightline.plots.heads import draw_head_grid

        draw_head_grid(heads, path, title=subject.text or None)

    return InspectionView(heads_table(heads), lambda: [head.to_dict() for head in heads], draw)


def _no_head(subject: Subject, names: Sequence[str]) -> str:
    """What is wrong where no head is left to look at."""
    if not names:
        return "there is no head to look at: nothing in this model attends"
    narrowed = {"--layer": subject.layer, "--head": subject.head}
    asked = " ".join(f"{option} {value}" for option, value in narrowed.items() if value is not None)
    there = f"there is {names[0]}" if len(names) == 1 else f"there are {names[0]} … {names[-1]}"
    return f"{asked}: there is no such head; {there}"


def _beam(subject: Subject) -> InspectionView:
    from sightline.inspection.beam import record_beam

    record = record_beam(subject.loaded("a search"), subject.text)

    def draw(path: Path) -> None:
        from sightline.plots.beam import draw_beam

        draw_beam(record, path, title=subject.text)

    return InspectionView(record.tree(), record.to_dict, draw)


def _ablate(subject: Subject) -> InspectionView:
    from sightline.inspection.ablation import ablate, ablate_each, effects_table
    from sightline.inspection.attention import head_names
    from sightline.inspection.trace import layer_of

    run, texts = subject.loaded("switching heads off"), [subject.text]
    targets = None if subject.target is None else [subject.target]
    if subject.heads:
        effects = [ablate(run, subject.heads, texts, targets, measure=subject.measure)]
    else:
        names = [
            name
            for name in head_names(run.model)
            if (subject.layer is None or layer_of(name) == subject.layer)
            and (subject.head is None or name.endswith(f".{subject.head}"))
        ]
        if not names:
            raise ValueError(_no_head(subject, head_names(run.model)))
        effects = ablate_each(run, texts, targets, heads=names, measure=subject.measure)
    title = "what changes without a head: below zero, it was needed"
    shown = effects_table(effects, metric=subject.metric, title=title)
    return InspectionView(
        shown, lambda: {"metric": subject.metric, "effects": [effect.to_dict() for effect in effects]}
    )


def _experts(subject: Subject) -> InspectionView:
    from sightline.inspection.attention import routing_table, routings

    found = routings(subject.trace, layer=subject.layer)
    if not found:
        there = ", ".join(each.path for each in routings(subject.trace))
        if there:
            raise ValueError(f"--layer {subject.layer}: there are no experts in that layer; there are in {there}")
        raise ValueError("there are no experts to look at: the model has none (model.….experts)")
    return InspectionView(routing_table(found), lambda: [routing.to_dict() for routing in found])


VIEWS: dict[str, Callable[[Subject], InspectionView]] = {
    "walk": _walk,
    "steps": _steps,
    "tokens": _tokens,
    "heads": _heads,
    "beam": _beam,
    "ablate": _ablate,
    "experts": _experts,
}


NARROWED: dict[str, tuple[str, ...]] = {  # by which of step, layer and head
    "walk": ("step", "layer", "head"),
    "steps": ("layer",),
    "tokens": ("step",),
    "heads": ("layer", "head"),
    "beam": (),
    "ablate": ("layer", "head"),
    "experts": ("layer",),
}


def check_view(view: str, subject: Subject) -> None:
    """An error for a name that no view has and for what cannot narrow it, before anything is computed."""
    if view not in VIEWS:
        raise ValueError(f"--view {view}: there is no such view; there is {', '.join(VIEWS)}")
    if view == "beam" and subject.target is not None:
        raise ValueError(f"--target {subject.target}: --view beam shows a search, which needs none; leave it out")
    for option in ("step", "layer", "head"):
        value = getattr(subject, option)
        if value is not None and option not in NARROWED[view]:
            able = ", ".join(each for each, options in NARROWED.items() if option in options)
            raise ValueError(f"--{option} {value} does not narrow --view {view}; it narrows {able}")


def look(view: str, subject: Subject) -> InspectionView:
    """A view by its name."""
    check_view(view, subject)
    return VIEWS[view](subject)


def trace_record(trace: Trace) -> dict[str, Any]:
    """A trace for JSON: formulas and numbers, of large tensors a sample that says so."""
    from sightline.inspection.trace_files import plain

    steps = [
        {
            "name": step.key,
            "formula": step.formula,
            "latex": step.latex,
            "inputs": list(step.inputs),
            "shape": list(step.shape),
            "note": step.note,
            "values": plain(step.tensor.tolist()),
        }
        for step in trace.sampled(_SAMPLED)
    ]
    return {"about": trace.about, "steps": steps}
