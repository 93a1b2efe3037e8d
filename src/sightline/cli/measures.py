"""What `sightline inspect` measures of runs: gradient flow, layer norms, experts, attribution, losses by token."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from sightline.cli.lines import tell_unknown_target
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.data.collate import TrainingBatch
    from sightline.evaluation.breakdowns import LengthBucket
    from sightline.inspection.attribution import Attribution, Method
    from sightline.inspection.corpus import CorpusLosses, Counts, Order
    from sightline.inspection.gradients import GradientFlow as Flow
    from sightline.inspection.views import Subject
    from sightline.progress import Progress
    from sightline.run import Run


Choice = TypeVar("Choice", bound=str)

_SENTENCES = 64  # of a test set, whose gradients are looked at
_STEPS = 64  # of integrated gradients
_PANEL = "Measures"
GradientFlow = Annotated[
    bool,
    typer.Option(
        "--gradient-flow", help="‖∂L_t/∂h_k‖ against t − k, fresh and trained, on a test set.", rich_help_panel=_PANEL
    ),
]
Beside = Annotated[
    list[Path] | None, typer.Option(help="More runs on the same plot of --gradient-flow.", rich_help_panel=_PANEL)
]
LayerNorms = Annotated[
    bool,
    typer.Option(
        "--layer-norms", help="Draw the gradient norms that training.log_layers wrote.", rich_help_panel=_PANEL
    ),
]
ExpertShares = Annotated[
    bool,
    typer.Option(
        "--expert-shares",
        help="Draw what share of the tokens each expert had in training, and how many were dropped.",
        rich_help_panel=_PANEL,
    ),
]
Attribute = Annotated[
    str | None,
    typer.Option(
        help="Which tokens each answer rests on: input-gradient, integrated-gradients or occlusion.",
        rich_help_panel=_PANEL,
    ),
]
Corpus = Annotated[
    str | None, typer.Option(help="The losses of every token of this test set, as a table.", rich_help_panel=_PANEL)
]
Sort = Annotated[
    str | None,
    typer.Option(help="Of --corpus: worst (the default), longest or rarest first.", rich_help_panel=_PANEL),
]
Tokens = Annotated[
    bool, typer.Option("--tokens", help="Of --corpus: tokens instead of sentences.", rich_help_panel=_PANEL)
]
Quality = Annotated[
    bool, typer.Option("--quality", help="Of --corpus: decode it, and score by length too.", rich_help_panel=_PANEL)
]
Csv = Annotated[
    Path | None, typer.Option("--csv", help="Of --corpus: write every token there.", rich_help_panel=_PANEL)
]
Figure = Annotated[
    Path | None,
    typer.Option(help="Draw the measure, the heads or the beam there (.png, .svg or .pdf).", rich_help_panel=_PANEL),
]


# Which options each measure heeds; those of a view stand under none.
_HEEDED: dict[str | None, tuple[str, ...]] = {
    None: ("TEXT", "--target", "--corpus", "--figure", "--json"),
    "--gradient-flow": ("--beside", "--corpus", "--figure", "--json"),
    "--layer-norms": ("--figure",),
    "--expert-shares": ("--figure",),
    "--attribute": ("TEXT", "--target", "--figure", "--json"),
    "--corpus": ("--corpus", "--sort", "--tokens", "--quality", "--csv", "--figure", "--json"),
}


@dataclass(frozen=True)
class MeasureOptions:
    """Which measure is wanted, of what, and how."""

    text: str | None = None
    target: str | None = None
    gradient_flow: bool = False
    beside: Sequence[Path] = ()
    layer_norms: bool = False
    expert_shares: bool = False
    attribute: str | None = None
    corpus: str | None = None
    sort: str | None = None
    tokens: bool = False
    quality: bool = False
    csv_file: Path | None = None
    figure: Path | None = None
    json_file: Path | None = None
    device: str = "cpu"

    def measure(self, *, ablating: bool) -> str | None:
        """The option that names the measure; None: a view is wanted. (Heads switched off may have a corpus to act on.)

        Several measures at once are refused, and options that the one has no use for.
        """
        named = {
            "--gradient-flow": self.gradient_flow,
            "--layer-norms": self.layer_norms,
            "--expert-shares": self.expert_shares,
            "--attribute": self.attribute is not None,
            "switching heads off": ablating,
        }
        found = [option for option, wanted in named.items() if wanted]
        if len(found) > 1:
            raise ValueError(f"{found[0]} and {found[1]} do not go together; ask for one at a time")
        measure = None if ablating else found[0] if found else "--corpus" if self.corpus is not None else None
        self._check_heeded(measure)
        return measure

    def _check_heeded(self, measure: str | None) -> None:
        given = {
            "TEXT": self.text,
            "--target": self.target,
            "--beside": self.beside,
            "--corpus": self.corpus,
            "--sort": self.sort,
            "--tokens": self.tokens,
            "--quality": self.quality,
            "--csv": self.csv_file,
            "--figure": self.figure,
            "--json": self.json_file,
        }
        for option, value in given.items():
            if value is not None and value is not False and value != () and option not in _HEEDED[measure]:
                able = " and ".join(each for each, heeded in _HEEDED.items() if each and option in heeded)
                what = "a view" if measure is None else measure
                raise ValueError(f"{option} does not go with {what}; it is for {able}, so leave one of them out")


def show_measure(measure: str, run: Path, asked: MeasureOptions) -> None:
    """The measure that was asked for."""
    from sightline.run import Run

    figure, json_file = asked.figure, asked.json_file
    if measure == "--gradient-flow":
        on, runs = asked.corpus or "validation", [run, *asked.beside]
        show_gradient_flow(runs, on=on, figure=figure, json_file=json_file, device=asked.device)
    elif measure == "--layer-norms":
        show_layer_norms(run, _drawn(figure, measure, "norms.png"))
    elif measure == "--expert-shares":
        show_expert_shares(run, _drawn(figure, measure, "shares.png"))
    elif asked.attribute is not None:
        from sightline.inspection.attribution import Method

        method: Method = _one_of(get_args(Method), "--attribute", asked.attribute, "method")
        if asked.text is None:
            raise ValueError('--attribute looks at a text: sightline inspect RUN "text" --attribute occlusion')
        loaded = Run.load(run, device=asked.device)
        tell_unknown_target(loaded.vocabulary, asked.target)
        show_attribution(loaded, asked.text, asked.target, method=method, figure=figure, json_file=json_file)
    elif asked.corpus is not None:
        from sightline.cli.measures import show_corpus
        from sightline.inspection.corpus import ORDERS

        show_corpus(
            Run.load(run, device=asked.device),
            asked.corpus,
            order=_one_of(ORDERS, "--sort", asked.sort or "worst", "order"),
            tokens=asked.tokens,
            quality=asked.quality,
            csv_file=asked.csv_file,
            json_file=json_file,
            figure=figure,
        )


def _drawn(figure: Path | None, measure: str, example: str) -> Path:
    """Where a measure that is nothing but a picture is drawn."""
    if figure is None:
        raise ValueError(f"{measure} draws a picture; say where with --figure {example}")
    return figure


def _one_of(known: Sequence[Choice], option: str, name: str, what: str) -> Choice:
    """The choice of that name; refused where there is none."""
    for each in known:
        if each == name:
            return each
    raise ValueError(f"{option} {name}: there is no such {what}; there is {', '.join(known)}")


def measure_corpus(subject: Subject, on: str) -> None:
    """Let heads that are switched off be measured by the recipe's first metric on a test set, too."""
    from sightline.evaluation.metrics import METRICS
    from sightline.run import Run

    run = subject.loaded("a metric")
    assert isinstance(run, Run)
    test = run.test_set(on)
    subject.measure = lambda: run.evaluate(test).scores[0].value
    subject.metric = f"{METRICS[run.recipe.evaluation.metrics[0]].name} on {on}"


# --- gradient flow ---------------------------------------------------------------------------------------------------


def show_gradient_flow(
    runs: Sequence[Path], *, on: str, figure: Path | None, json_file: Path | None, device: str
) -> None:
    """‖∂L_t/∂h_k‖ against t − k of each run, at initialisation and after training."""
    from sightline.files import write_json
    from sightline.inspection.gradients import flow_lines
    from sightline.plots.figures import check_figure
    from sightline.plots.lines import draw_flows
    from sightline.progress import shown
    from sightline.run_folder import read_config

    if figure is not None:
        check_figure(figure)
    for run in runs:  # before any is measured
        read_config(run)
    labels = _names(runs)
    with shown() as progress:
        flows = [flow for run in runs for flow in measure_flows(run, labels[run], on, device, progress)]
    print(f"median of ‖∂L_t/∂h_k‖ on {on}, by the distance between t and k")
    print("\n".join(flow_lines(flows)))
    if json_file is not None:
        write_json(json_file, {"on": on, "sentences": _SENTENCES, "flows": [flow.to_dict() for flow in flows]})
        print(f"wrote {json_file}", file=sys.stderr)
    if figure is not None:
        draw_flows(flows, figure, title=f"How far the gradient reaches, on {on}")
        print(f"wrote {figure}", file=sys.stderr)


def measure_flows(folder: Path, label: str, on: str, device: str, progress: Progress) -> list[Flow]:
    """One run: the model its recipe describes with fresh weights, and as it was trained."""
    from sightline.inspection.gradients import gradient_flow
    from sightline.inspection.samples import sample_batches
    from sightline.models.build import build_model
    from sightline.run import Run

    run = _with_gradients(Run.load(folder, device=device))
    examples = list(run.test_examples(on))
    batches = sample_batches(run.recipe, run.vocabulary, examples, sentences=_SENTENCES, device=run.device)
    fresh = build_model(run.recipe, run.vocabulary).to(run.device)

    def told(when: str) -> Iterator[TrainingBatch]:
        for done, batch in enumerate(batches):
            progress(f"{label}, {when}", done, len(batches))
            yield batch

    return [
        gradient_flow(fresh, told("at initialisation"), label=label, when="initialisation"),
        gradient_flow(run.model, told("trained"), label=label),
    ]


def _with_gradients(run: Run) -> Run:
    from sightline.models.ngram import CountedModel

    if isinstance(run.model, CountedModel):
        raise ValueError(f"{run.folder} counts n-grams and has no gradients nor vectors to look at; give another run")
    return run


def show_layer_norms(run: Path, figure: Path) -> None:
    """The gradient norm of each layer over the training, drawn."""
    from sightline.plots.lines import draw_layer_norms, read_layer_norms

    draw_layer_norms(read_layer_norms(run), figure, title=f"{run.name}: gradient norms over training")
    print(f"wrote {figure}", file=sys.stderr)


def show_expert_shares(run: Path, figure: Path) -> None:
    """What share of the tokens each expert had over the training, drawn."""
    from sightline.plots.experts import draw_expert_shares

    draw_expert_shares(run, figure)
    print(f"wrote {figure}", file=sys.stderr)


def _names(runs: Sequence[Path]) -> dict[Path, str]:
    """The last part of each path, or all of it where two are alike."""
    last = [run.resolve().name for run in runs]
    return {run: name if last.count(name) == 1 else str(run) for run, name in zip(runs, last, strict=True)}


# --- attribution -----------------------------------------------------------------------------------------------------


def show_attribution(
    run: Run, text: str, target: str | None, *, method: Method, figure: Path | None, json_file: Path | None
) -> None:
    """Which tokens each answer to a text rests on; the answer is the model's own, if none is given."""
    from sightline.files import write_json
    from sightline.plots.alignment import draw_attribution
    from sightline.plots.figures import check_figure
    from sightline.terminal import console

    if figure is not None:
        check_figure(figure)
    found = _attribution(run, text, target, method)
    shown = found if run.recipe.task_spec.labels == "words" else found.words()
    screen = console()
    screen.print(f"{method}: share of each answer (down) that rests on each token (across)", markup=False)
    screen.print(shown.alignment().grid())
    if found.gaps is not None:
        gap = float(abs(found.gaps).max(initial=0.0))
        screen.print(
            f"completeness: at most {gap:.3f} nats are missing of an answer ({plural(_STEPS, 'step')})", markup=False
        )
    if json_file is not None:
        write_json(json_file, {"pieces": found.to_dict(), "words": found.words().to_dict()})
        print(f"wrote {json_file}", file=sys.stderr)
    if figure is not None:
        draw_attribution(shown, figure, title=f"{run.folder.name}: {method}")
        print(f"wrote {figure}", file=sys.stderr)


def _attribution(run: Run, text: str, target: str | None, method: Method) -> Attribution:
    """The same as data."""
    from sightline.inspection.attribution import AttributionInput, TokenNames, attribute, on_device
    from sightline.inspection.samples import example_batch

    continues = _with_gradients(run).recipe.task_spec.continues_text
    if target is None:
        target = text if continues else run.predict([text])[0]
    question = AttributionInput.of(example_batch(run.recipe, run.vocabulary, text, target))
    labels = TokenNames.of(question, run.vocabulary, text)
    asked = on_device(question, run.device)
    return attribute(run.model, asked, labels, method=method, steps=_STEPS)


_SHOWN = 20  # sentences or tokens of the table


def show_corpus(
    run: Run,
    on: str,
    *,
    order: Order,
    tokens: bool,
    quality: bool,
    csv_file: Path | None,
    json_file: Path | None,
    figure: Path | None,
) -> None:
    """The losses of a test set, sorted, and by length; with `quality` it is decoded and scored by length too."""
    from sightline.evaluation.metrics import METRICS
    from sightline.files import check_writable, write_atomically, write_json
    from sightline.inspection.corpus import length_table, sentence_table, token_table
    from sightline.plots.lines import draw_lengths
    from sightline.terminal import console

    if csv_file is not None:
        check_writable(csv_file)
    if figure is not None:
        _check_lengths(run, figure)
    if quality:
        _check_quality(run)
    view = corpus_view(run, on)
    screen = console()
    what = f"{plural(len(view.sentences), 'sentence')}, {view.loss:.3f} nats a token"
    screen.print(f"{on}: {what}; {order} first", markup=False, highlight=False)
    screen.print((token_table if tokens else sentence_table)(view, order, _SHOWN))
    if not run.recipe.task_spec.continues_text:  # whose text is cut into equal parts
        screen.print("loss by length", highlight=False)
        screen.print(length_table(view.by_length()))
    qualities = _quality(run, on) if quality else []
    metric = METRICS[run.recipe.evaluation.metrics[0]].name
    if qualities:
        screen.print(_quality_table(qualities, metric))
    if csv_file is not None:
        write_atomically(csv_file, view.to_csv(order))
        print(f"wrote {csv_file}", file=sys.stderr)
    if json_file is not None:
        lengths = [{"low": each.low, "high": each.high, "scores": each.scores} for each in qualities]
        record = {**view.to_dict(order), **({"metric": metric, "quality": lengths} if lengths else {})}
        write_json(json_file, record)
        print(f"wrote {json_file}", file=sys.stderr)
    if figure is not None:
        name = run.folder.name
        draw_lengths(view.by_length(), qualities, figure, name=name, metric=metric, title=f"{name} on {on}")
        print(f"wrote {figure}", file=sys.stderr)


def _check_quality(run: Run) -> None:
    """The same of outputs, and of a metric that looks at them."""
    from sightline.evaluation.metrics import needs_outputs

    spec, metric = run.recipe.task_spec, run.recipe.evaluation.metrics[0]
    if not spec.maps_text or not needs_outputs(metric):
        raise ValueError(f"--quality is of outputs that are texts, not of {spec} by {metric}; leave it out")


def _check_lengths(run: Run, figure: Path) -> None:
    """Before anything is measured: whether there are lengths to draw, and a file for it."""
    from sightline.plots.figures import check_figure

    check_figure(figure)
    if run.recipe.task_spec.continues_text:
        raise ValueError(f"--figure {figure} draws losses by length; a language model's text is cut into equal parts")


def corpus_view(run: Run, on: str) -> CorpusLosses:
    """The same as data."""
    import numpy as np

    from sightline.inspection.corpus import pair_losses, text_losses
    from sightline.text.tokenizer import END

    if run.recipe.data.noise is not None:
        raise ValueError(
            f"--corpus {on}: {run.folder} answers only where a text is spoilt (data.noise), so not every token has a "
            f"loss; `sightline evaluate` scores it"
        )
    counts = _training_counts(run)
    if not run.recipe.task_spec.continues_text:
        examples = list(run.test_examples(on))
        return pair_losses(run.model, run.recipe, run.vocabulary, examples, on=on, counts=counts, device=run.device)
    documents = run.vocabulary.target.encode_many([each.target for each in run.test_examples(on)])
    stream = np.concatenate([np.asarray([*ids, END]) for ids in documents])
    return text_losses(stream, run.text_losses(stream), run.vocabulary, on=on, counts=counts)


def _training_counts(run: Run) -> Counts | None:
    """How often each token stands in the training text, where that is at hand."""
    from sightline.data.preparation import prepare_data
    from sightline.data.text_files import DataError
    from sightline.inspection.corpus import token_counts

    try:
        prepared = prepare_data(run.recipe, vocabulary=run.vocabulary)
    except (DataError, OSError) as error:
        print(f"frequencies are not known, the training text is not at hand: {error}", file=sys.stderr)
        return None
    with closing(prepared):
        return token_counts(prepared.train(0), run.vocabulary.target.size)


def _quality(run: Run, on: str) -> list[LengthBucket]:
    """The recipe's first metric by the length of the references, decoded as the recipe says."""
    from sightline.evaluation.breakdowns import quality_by_length
    from sightline.evaluation.metrics import measure

    metric = run.recipe.evaluation.metrics[0]
    test = run.test_set(on)
    outputs = [guesses[0].text for guesses in run.predict_nbest(test.sources)]

    def scorer(some: list[str], references: list[list[str]]) -> float:
        section = run.recipe.evaluation
        return measure(metric, some, references, lowercase=section.lowercase, section=section).value

    return quality_by_length(test.references, {run.folder.name: outputs}, scorer)


def _quality_table(qualities: Sequence[LengthBucket], metric: str) -> Any:
    from rich.table import Table

    table = Table("words", "sentences", metric, title="quality by length", box=None)
    for bucket in qualities:
        table.add_row(bucket.label, str(bucket.sentences), f"{next(iter(bucket.scores.values())):.1f}")
    return table
