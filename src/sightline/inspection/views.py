"""The views of `sightline inspect`: each is a renderable for the terminal, data for JSON and sometimes a figure.

view = heads_view(Subject(run, "Ein Hund bellt.", layer=3))
rich.print(view.shown); view.record(); view.picture(Path("heads.png"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table
from rich.text import Text

from sightline.inspection.attention import LoadedRun
from sightline.inspection.trace import Trace, layer_of, to_json
from sightline.inspection.walkthrough import Walkthrough, check_layer, first_output, headline
from sightline.terminal import plural, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sightline.data.collate import TrainingBatch
    from sightline.inspection.attribution import Method
    from sightline.inspection.corpus import Order
    from sightline.progress import Progress

_WIDEST = 78  # columns that a title may widen a table to
_SAMPLED = 20_000  # numbers of a tensor in JSON; larger tensors are sampled


@dataclass(frozen=True)
class InspectionView:
    """A view for a terminal, for JSON and, if available, as a figure and a CSV file."""

    shown: RenderableType
    record: Callable[[], Any]  # for JSON
    draw: Callable[[Path], None] | None = None
    to_csv: Callable[[], str] | None = None

    def picture(self, path: Path) -> None:
        """Draw the figure in the format of the path's suffix."""
        if self.draw is None:
            raise ValueError(f"--figure {path}: this view has no picture; heads, beam and report have")
        self.draw(path)


@dataclass
class Subject:
    """A run and a text, or a recorded trace, to inspect; optionally one step, layer or head."""

    run: LoadedRun | None = None
    text: str = ""
    target: str | None = None
    step: int | None = None
    layer: int | None = None
    head: int | None = None
    name: str = ""  # of the run, for titles
    recorded: Trace | None = field(default=None, repr=False)  # instead of a run and a text

    @cached_property
    def trace(self) -> Trace:
        """The trace, recorded on first use."""
        return self.recorded if self.recorded is not None else self.loaded("a trace").trace(self.text, self.target)

    def loaded(self, what: str) -> LoadedRun:
        """The run; an error if there is only a trace."""
        if self.run is None:
            raise ValueError(f"{what} needs a run folder, and this is an example without one; name a run")
        return self.run

    def token(self, number: int) -> str:
        """The name of a token of the output vocabulary."""
        labels = self.trace.about.get("labels")
        if labels is not None:
            return str(labels[number])
        pieces = self.loaded("a vocabulary").vocabulary.target.pieces([number])
        return pieces[0] if pieces else str(number)


def walkthrough_view(subject: Subject) -> InspectionView:
    """Every recorded operation with formula, inputs and numbers."""
    walk = Walkthrough(subject.trace).focus(step=subject.step, layer=subject.layer, head=subject.head)

    def record() -> dict[str, Any]:
        if (subject.step, subject.layer, subject.head) == (None, None, None):
            return trace_record(subject.trace)
        shown = [replace(each.record, tensor=each.tensor, axes=each.axes) for each in walk.records()]
        return trace_record(Trace(shown, {}, subject.trace.about))

    return InspectionView(walk, record)


def records_view(subject: Subject) -> InspectionView:
    """A table of all records: name, formula, shape, range."""
    trace = subject.trace
    if subject.layer is not None:
        check_layer(trace, subject.layer)
        trace = Trace([record for record in trace if record.layer == subject.layer], {}, trace.about)
    return InspectionView(trace, lambda: trace_record(trace))


def tokens_view(subject: Subject) -> InspectionView:
    """The probability of each output token, and its alternatives."""
    choices = token_choices(subject.trace, subject.token)
    if subject.step is not None:
        choices = [choice for choice in choices if choice.place == subject.step]
        if not choices:
            raise ValueError(f"--step {subject.step}: the output has no such token; without --step all are shown")
    return InspectionView(token_table(subject.trace, choices), lambda: [asdict(choice) for choice in choices])


def heads_view(subject: Subject) -> InspectionView:
    """Every attention head and its measures."""
    from sightline.inspection.attention import heads_table, trace_heads

    heads = trace_heads(subject.trace, layer=subject.layer, head=subject.head)
    if not heads:
        raise ValueError(_no_head(subject, [each.name for each in trace_heads(subject.trace)]))

    def draw(path: Path) -> None:
        from sightline.plots.heads import draw_head_grid

        draw_head_grid(heads, path, title=subject.text or None)

    return InspectionView(heads_table(heads), lambda: [head.to_dict() for head in heads], draw)


def _no_head(subject: Subject, names: Sequence[str]) -> str:
    """The error for a selection without heads."""
    if not names:
        return "there is no head to show: this model has no attention"
    narrowed = {"--layer": subject.layer, "--head": subject.head}
    options = " ".join(f"{option} {value}" for option, value in narrowed.items() if value is not None)
    known = f"there is {names[0]}" if len(names) == 1 else f"there are {names[0]} … {names[-1]}"
    return f"{options}: there is no such head; {known}"


def beam_view(subject: Subject) -> InspectionView:
    """A beam search step by step."""
    from sightline.inspection.beam import record_beam

    record = record_beam(subject.loaded("a search"), subject.text)

    def draw(path: Path) -> None:
        from sightline.plots.beam import draw_beam

        draw_beam(record, path, title=subject.text)

    return InspectionView(record.tree(), record.to_dict, draw)


def ablation_view(subject: Subject, heads: Sequence[str] = (), on: str | None = None) -> InspectionView:
    """The effect of switching off `heads` together, or each head in turn; with `on` also on a test set's metric."""
    from sightline.evaluation.metrics import METRICS
    from sightline.inspection.ablation import ablate, ablate_each, effects_table
    from sightline.inspection.attention import head_names

    run, texts = subject.loaded("switching heads off"), [subject.text]
    targets = None if subject.target is None else [subject.target]
    measure: Callable[[], float] | None = None
    metric = "metric"
    if on is not None:
        test = run.test_set(on)
        measure = lambda: float(run.evaluate(test).scores[0].value)  # noqa: E731
        metric = f"{METRICS[run.recipe.evaluation.metrics[0]].name} on {on}"
    if heads:
        effects = [ablate(run, heads, texts, targets, measure=measure)]
    else:
        names = [
            name
            for name in head_names(run.model)
            if (subject.layer is None or layer_of(name) == subject.layer)
            and (subject.head is None or name.endswith(f".{subject.head}"))
        ]
        if not names:
            raise ValueError(_no_head(subject, head_names(run.model)))
        effects = ablate_each(run, texts, targets, heads=names, measure=measure)
    title = "what changes without each head: negative values mean that it was needed"
    table = effects_table(effects, metric=metric, title=title)
    return InspectionView(table, lambda: {"metric": metric, "effects": [effect.to_dict() for effect in effects]})


def experts_view(subject: Subject) -> InspectionView:
    """The experts of each token."""
    from sightline.inspection.attention import routing_table, routings

    layers = routings(subject.trace, layer=subject.layer)
    if not layers:
        known = ", ".join(each.path for each in routings(subject.trace))
        if known:
            raise ValueError(f"--layer {subject.layer}: there are no experts in that layer; there are in {known}")
        raise ValueError("there are no experts to show: the model has none (model.….experts)")
    return InspectionView(routing_table(layers), lambda: [routing.to_dict() for routing in layers])


def attribution_view(subject: Subject, *, method: Method = "integrated-gradients", steps: int = 64) -> InspectionView:
    """The attribution of each output token to the input tokens."""
    from rich.console import Group

    from sightline.inspection.attribution import AttributionInput, TokenNames, attribute
    from sightline.inspection.samples import example_batch

    run, text, target = subject.loaded("attribution"), subject.text, subject.target
    check_differentiable(run)
    if target is None:
        target = text if run.recipe.task_spec.continues_text else run.predict([text])[0]
    example = AttributionInput.of(example_batch(run.recipe, run.vocabulary, text, target))
    names = TokenNames.of(example, run.vocabulary, text)
    pieces = attribute(run.model, example.to(run.device), names, method=method, steps=steps)
    shown = pieces if run.recipe.task_spec.labels == "words" else pieces.words()
    parts: list[Any] = [
        Text(f"{method}: share of each output (down) that rests on each token (across)"),
        shown.alignment().grid(),
    ]
    if pieces.gaps is not None:
        gap = float(abs(pieces.gaps).max(initial=0.0))
        parts.append(Text(f"completeness: at most {gap:.3f} nats are missing of an output ({plural(steps, 'step')})"))

    def draw(path: Path) -> None:
        from sightline.plots.alignment import draw_attribution

        draw_attribution(shown, path, title=f"{run.folder.name}: {method}")

    return InspectionView(Group(*parts), lambda: {"pieces": pieces.to_dict(), "words": pieces.words().to_dict()}, draw)


def gradients_view(
    runs: Mapping[str, LoadedRun], on: str, *, sentences: int = 64, progress: Progress | None = None
) -> InspectionView:
    """‖∂L_t/∂h_k‖ against t − k on a test set, for each run (by label) at initialization and after training."""
    from sightline.inspection.gradients import flow_lines, gradient_flow
    from sightline.inspection.samples import sample_batches
    from sightline.models.build import build_model

    flows = []
    for label, run in runs.items():
        check_differentiable(run)
        examples = list(run.test_examples(on))
        batches = sample_batches(run.recipe, run.vocabulary, examples, sentences=sentences, device=run.device)
        models = {"initialisation": build_model(run.recipe, run.vocabulary).to(run.device), "trained": run.model}
        for when, model in models.items():
            counted = _with_progress(batches, f"{label}, {when}", progress)
            flows.append(gradient_flow(model, counted, label=label, when=when))

    def draw(path: Path) -> None:
        from sightline.plots.lines import draw_flows

        draw_flows(flows, path, title=f"How far the gradient reaches, on {on}")

    lines = [f"median of ‖∂L_t/∂h_k‖ on {on}, by the distance between t and k", *flow_lines(flows)]
    record = {"on": on, "sentences": sentences, "flows": [flow.to_dict() for flow in flows]}
    return InspectionView(Text("\n".join(lines), no_wrap=True), lambda: record, draw)


def _with_progress(batches: Sequence[TrainingBatch], stage: str, progress: Progress | None) -> Iterator[TrainingBatch]:
    for done, batch in enumerate(batches):
        if progress is not None:
            progress(stage, done, len(batches))
        yield batch


def corpus_view(
    run: LoadedRun, on: str, *, order: Order = "worst", tokens: bool = False, quality: bool = False
) -> InspectionView:
    """The losses of a test set, sorted and by length; with `quality` also its decoded quality by length."""
    from rich.console import Group

    from sightline.evaluation.metrics import METRICS, needs_outputs
    from sightline.inspection.corpus import (
        corpus_losses,
        length_table,
        quality_by_length,
        quality_table,
        sentence_table,
        token_table,
    )

    name = run.recipe.evaluation.metrics[0]
    metric = METRICS[name]
    spec, rows = run.recipe.task_spec, 20
    if quality and not (spec.maps_text and needs_outputs(name)):
        raise ValueError(f"--quality is of outputs that are texts, not of {spec} by {name}; leave it out")
    losses = corpus_losses(run, on)
    parts: list[Any] = [
        Text(f"{on}: {plural(len(losses.sentences), 'sentence')}, {losses.loss:.3f} nats a token; {order} first"),
        (token_table if tokens else sentence_table)(losses, order, rows),
    ]
    if not spec.continues_text:  # whose text is cut into equal parts
        parts += [Text("loss by length"), length_table(losses.by_length())]
    qualities = quality_by_length(run, on) if quality else []
    if qualities:
        parts.append(quality_table(qualities, metric.name))

    def record() -> dict[str, Any]:
        lengths = [{"low": each.low, "high": each.high, "scores": each.scores} for each in qualities]
        return {**losses.to_dict(order), **({"metric": metric.name, "quality": lengths} if lengths else {})}

    def draw(path: Path) -> None:
        from sightline.plots.lines import draw_lengths

        if spec.continues_text:
            raise ValueError(f"--figure {path} draws losses by length; a language model's text is cut into equal parts")
        folder = run.folder.name
        draw_lengths(losses.by_length(), qualities, path, name=folder, metric=metric.name, title=f"{folder} on {on}")

    return InspectionView(Group(*parts), record, draw, lambda: losses.to_csv(order))


def check_differentiable(run: LoadedRun) -> None:
    """Refuse a model without gradients."""
    from sightline.models.ngram import CountedModel

    if isinstance(run.model, CountedModel):
        raise ValueError(f"{run.folder} counts n-grams and has neither gradients nor vectors; give another run")


def trace_record(trace: Trace) -> dict[str, Any]:
    """A trace for JSON; large tensors are sampled, with a note."""
    records = [
        {
            "name": record.key,
            "formula": record.formula,
            "latex": record.latex,
            "inputs": list(record.inputs),
            "shape": list(record.shape),
            "note": record.note,
            "values": to_json(record.tensor.tolist()),
        }
        for record in trace.sampled(_SAMPLED)
    ]
    return {"about": trace.about, "steps": records}


# --- tokens -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenChoice:
    """One output token: its probability, and the most likely tokens at its position."""

    place: int
    token: str
    probability: float
    loss: float
    likeliest: tuple[tuple[str, float], ...]


def token_choices(trace: Trace, name: Callable[[int], str], count: int = 5) -> list[TokenChoice]:
    """Every predicted token; `name` maps ids to tokens. Places count from the first output token, or label."""
    probabilities = trace["probabilities"].reshape(-1, trace["probabilities"].shape[-1])  # (T, V)
    labels, losses = trace["labels"].flatten(), trace["losses"].flatten()
    choices, first = [], first_output(trace)
    for place in trace.about.get("places", range(len(labels))):
        row, token, loss = probabilities[place], int(labels[place]), float(losses[place])
        best = torch.topk(row, min(count, len(row)))
        likeliest = tuple((name(k), p) for p, k in zip(best.values.tolist(), best.indices.tolist(), strict=True))
        choices.append(TokenChoice(place - first, name(token), float(row[token]), loss, likeliest))
    return choices


def token_table(trace: Trace, choices: Sequence[TokenChoice]) -> Table:
    """A terminal table of predicted tokens."""
    title = Text(headline(trace))
    width = min(title.cell_len, _WIDEST)  # rich would wrap the title at the table's width
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, min_width=width)
    for column in ("", "token", "p", "−log p", "likeliest"):
        table.add_column(column, justify="left" if column in ("token", "likeliest") else "right")
    for each in choices:
        best = "  ".join(f"{visible(token)} {share:.3f}" for token, share in each.likeliest)
        first = each.likeliest[0][0] == each.token
        token = Text(visible(each.token), style="" if first else "bold yellow")
        table.add_row(str(each.place), token, f"{each.probability:.4f}", f"{each.loss:.3f}", Text(best))
    return table
