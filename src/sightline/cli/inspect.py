"""`sightline inspect`: what a model computes for a text, one sub-command for each view or measurement."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from sightline.cli.commands import Group, group
from sightline.cli.lines import report_unknown_target
from sightline.cli.options import RunFolder, change_run, split_overrides

if TYPE_CHECKING:
    from sightline.inspection.trace import Trace
    from sightline.inspection.views import InspectionView, Subject
    from sightline.run import Run

Choice = TypeVar("Choice", bound=str)

Name = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or lecture-example (built in).")]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT [KEY=VALUE]", help="The input; then recipe keys to change."),
]
Target = Annotated[str | None, typer.Option(metavar="TEXT", help="Force this output instead of the model's own.")]
Step = Annotated[int | None, typer.Option(metavar="N", help="Only this output token, from 0.")]
Layer = Annotated[int | None, typer.Option(metavar="N", help="Only this layer, from 0.")]
Head = Annotated[int | None, typer.Option(metavar="N", help="Only this attention head, from 0.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers there.")]
Figure = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it there (.png, .svg or .pdf).")]
Drawn = Annotated[Path, typer.Option(metavar="FILE", help="Draw it there (.png, .svg or .pdf).")]
On = Annotated[str, typer.Option(metavar="NAME", help="A test set of the recipe, or validation.", show_default=False)]
OnCpu = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.", show_default=False)]


class InspectGroup(Group):
    """`inspect RUN TEXT` is `inspect walkthrough RUN TEXT`; flags of earlier versions choose the sub-command."""

    default = "walkthrough"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace flags of earlier versions, unless a sub-command is named."""
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = _without_flags([part for word in args for part in _split(word)], list(self.commands))
        return super().parse_args(ctx, args)


_VIEWS = {"walk": "walkthrough", "ablate": "ablation"}  # the rest have kept their names
# Flag of an earlier version: the sub-command, and what its flags are now (None: left out).
_FLAGS: dict[str, tuple[str, dict[str, str | None]]] = {
    "--ablate": ("ablation", {"--ablate": "--heads", "--corpus": "--on"}),
    "--attribute": ("attribution", {"--attribute": "--method"}),
    "--gradient-flow": ("gradients", {"--gradient-flow": None, "--beside": None, "--corpus": "--on"}),
    "--layer-norms": ("layer-norms", {"--layer-norms": None}),
    "--expert-shares": ("expert-shares", {"--expert-shares": None}),
    "--corpus": ("corpus", {"--corpus": "--on"}),
}


def _split(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    return [name, value] if equals and name in {*_FLAGS, "--view", "--beside"} else [word]


def _without_flags(args: list[str], commands: Sequence[str]) -> list[str]:
    command, renamed = InspectGroup.default, dict[str, str | None]()
    if "--view" in args[:-1]:
        at = args.index("--view")
        command = _VIEWS.get(args[at + 1], args[at + 1])
        if command not in commands:
            raise ValueError(f"--view {command}: there is no such view; use sightline inspect {'|'.join(commands)}")
        args = [*args[:at], *args[at + 2 :]]
    chosen = next((flag for flag in _FLAGS if flag in args), None)
    if command == "ablation":
        renamed = _FLAGS["--ablate"][1]
    elif chosen is not None:
        command, renamed = _FLAGS[chosen]
    if command == InspectGroup.default:
        return args
    words = [renamed.get(word, word) for word in args]
    kept = [word for word in words if word is not None]
    print(f"sightline: this spelling is deprecated; write sightline inspect {command} RUN …", file=sys.stderr)
    return [command, *kept]


def about() -> None:
    """Look inside a model: every step from tokens to probabilities.

    sightline inspect RUN TEXT is the walkthrough. The output is decoded as usual; then one pass over text and output is
    recorded.

    Examples:
      sightline inspect lecture-example
      sightline inspect runs/dates "3. März 2015"
      sightline inspect heads runs/en-de "A dog runs." --layer 3 --figure heads.png
      sightline inspect report runs/en-de "A dog runs." --out report.html
      sightline inspect corpus runs/en-de --on test_2016 --sort rarest
    """


# --- views of one text --------------------------------------------------------------------------------------------


def walkthrough(
    run: Name,
    words: Words = None,
    target: Target = None,
    step: Step = None,
    layer: Layer = None,
    head: Head = None,
    json_file: Json = None,
    html: Annotated[Path | None, typer.Option(hidden=True)] = None,
    save: Annotated[Path | None, typer.Option(hidden=True)] = None,
    numpy: Annotated[Path | None, typer.Option(hidden=True)] = None,
    cell: Annotated[str | None, typer.Option(hidden=True)] = None,
    figure: Annotated[Path | None, typer.Option(hidden=True)] = None,
    device: OnCpu = "cpu",
) -> None:
    """Show every step in order, with formula, shape and numbers (the default).

    Examples:
      sightline inspect lecture-example
      sightline inspect walkthrough runs/dates "3. März 2015" --target 2015-03-04 --step 2
      sightline inspect walkthrough runs/en-de "A dog runs." --layer 0 --head 3
    """
    from sightline.inspection.views import walkthrough_view

    _check_files(json_file, html, figure=figure)
    subject = _subject(run, words, target, device, step=step, layer=layer, head=head)
    if html is not None:
        _write_report(subject, html, run)
    if save is not None:
        _save(subject, save)
    if numpy is not None:
        _write_script(subject, numpy)
    if cell is not None:
        print(_explained(subject.trace, cell))
    if not (html or save or numpy or cell) or json_file is not None or figure is not None:
        _emit(walkthrough_view(subject), json_file, figure)


def steps(
    run: Name,
    words: Words = None,
    target: Target = None,
    layer: Layer = None,
    json_file: Json = None,
    device: OnCpu = "cpu",
) -> None:
    """List every recorded tensor with its name, formula and shape.

    Examples:
      sightline inspect steps runs/dates "3. März 2015" --layer 0
    """
    from sightline.inspection.views import records_view

    _check_files(json_file)
    _emit(records_view(_subject(run, words, target, device, layer=layer)), json_file)


def tokens(
    run: Name,
    words: Words = None,
    target: Target = None,
    step: Step = None,
    json_file: Json = None,
    device: OnCpu = "cpu",
) -> None:
    """Show the probability of every output token, and its likeliest alternatives.

    Examples:
      sightline inspect tokens runs/en-de "A dog runs." --json tokens.json
    """
    from sightline.inspection.views import tokens_view

    _check_files(json_file)
    _emit(tokens_view(_subject(run, words, target, device, step=step)), json_file)


def heads(
    run: Name,
    words: Words = None,
    target: Target = None,
    layer: Layer = None,
    head: Head = None,
    json_file: Json = None,
    figure: Figure = None,
    device: OnCpu = "cpu",
) -> None:
    """Show every attention head with its entropy and what it attends to.

    Examples:
      sightline inspect heads runs/en-de "A dog runs." --layer 3 --figure heads.png
    """
    from sightline.inspection.views import heads_view

    _check_files(json_file, figure=figure)
    _emit(heads_view(_subject(run, words, target, device, layer=layer, head=head)), json_file, figure)


def beam(run: Name, words: Words = None, json_file: Json = None, figure: Figure = None, device: OnCpu = "cpu") -> None:
    """Show the beam search step by step.

    Examples:
      sightline inspect beam runs/en-de "A dog runs." decoding.beam=3 --figure beam.png
    """
    from sightline.inspection.views import beam_view

    _check_files(json_file, figure=figure)
    _emit(beam_view(_subject(run, words, None, device)), json_file, figure)


def experts(
    run: Name,
    words: Words = None,
    target: Target = None,
    layer: Layer = None,
    json_file: Json = None,
    device: OnCpu = "cpu",
) -> None:
    """Show which experts each token is routed to.

    Examples:
      sightline inspect experts runs/moe-transformer "A dog runs."
    """
    from sightline.inspection.views import experts_view

    _check_files(json_file)
    _emit(experts_view(_subject(run, words, target, device, layer=layer)), json_file)


def ablation(
    run: Name,
    words: Words = None,
    target: Target = None,
    ablated: Annotated[
        list[str] | None,
        typer.Option("--heads", metavar="NAME", help="Switch this head off (repeatable); default: each in turn."),
    ] = None,
    on: Annotated[str | None, typer.Option(metavar="NAME", help="Measure the effect on this test set, too.")] = None,
    layer: Layer = None,
    head: Head = None,
    json_file: Json = None,
    device: OnCpu = "cpu",
) -> None:
    """Switch attention heads off, and show what changes.

    Examples:
      sightline inspect ablation runs/en-de "A dog runs." --layer 3
      sightline inspect ablation runs/en-de "A dog runs." --heads decoder.3.cross.1 --on test_2016
    """
    from sightline.inspection.views import ablation_view

    _check_files(json_file)
    subject = _subject(run, words, target, device, layer=layer, head=head)
    subject.heads = ablated or ()
    if on is not None:
        _measure_on(subject, on)
    _emit(ablation_view(subject), json_file)


def _measure_on(subject: Subject, on: str) -> None:
    """Measure the effect of heads by the recipe's first metric on a test set, too."""
    from sightline.evaluation.metrics import METRICS
    from sightline.run import Run

    run = subject.loaded("a metric")
    assert isinstance(run, Run)
    test = run.test_set(on)
    subject.measure = lambda: run.evaluate(test).scores[0].value
    subject.metric = f"{METRICS[run.recipe.evaluation.metrics[0]].name} on {on}"


def attribution(
    run: Name,
    words: Words = None,
    method: Annotated[
        str,
        typer.Option(metavar="METHOD", help="input-gradient, integrated-gradients, occlusion."),
    ] = "integrated-gradients",
    target: Target = None,
    json_file: Json = None,
    figure: Figure = None,
    device: OnCpu = "cpu",
) -> None:
    """Show which input tokens each output token depends on.

    Examples:
      sightline inspect attribution runs/en-de "A dog runs." --method occlusion --figure grid.png
    """
    from sightline.inspection.attribution import Method
    from sightline.inspection.views import attribution_view

    _check_files(json_file, figure=figure)
    chosen: Method = _one_of(get_args(Method), "--method", method)
    loaded, text = _run_and_text(run, words, target, device)
    _emit(attribution_view(loaded, text, target, method=chosen), json_file, figure, printed=True)


def cell(
    run: Name,
    words: Annotated[
        list[str], typer.Argument(metavar="TEXT NAME[INDEX]", help="The input, and a number such as loss[].")
    ],
    target: Target = None,
    device: OnCpu = "cpu",
) -> None:
    """Explain the arithmetic of one number of a recorded tensor.

    Examples:
      sightline inspect cell lecture-example "decoder.0.cross.products[0,0,2,1]"
      sightline inspect cell runs/en-de "A dog runs." "decoder.layers.0.cross.scores[0,0,2,1]"
    """
    *text, name = words
    print(_explained(_subject(run, text, target, device).trace, name))


def numpy(
    run: Name,
    words: Words = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")] = Path(
        "numpy-script"
    ),
    target: Target = None,
    device: OnCpu = "cpu",
) -> None:
    """Write a NumPy script that recomputes and checks every step.

    Examples:
      sightline inspect numpy runs/en-de "A dog runs." --out by-hand && python by-hand/script.py
    """
    _write_script(_subject(run, words, target, device), out)


def report(
    run: Name,
    words: Words = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = Path("report.html"),
    target: Target = None,
    step: Step = None,
    layer: Layer = None,
    head: Head = None,
    device: OnCpu = "cpu",
) -> None:
    """Write all views to one HTML file.

    Examples:
      sightline inspect report runs/en-de "A dog runs." --out report.html
    """
    _write_report(_subject(run, words, target, device, step=step, layer=layer, head=head), out, run)


def trace(
    run: Name,
    words: Words = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")] = Path("trace"),
    target: Target = None,
    device: OnCpu = "cpu",
) -> None:
    """Save every recorded tensor, to be read by sightline.Trace.

    Examples:
      sightline inspect trace runs/en-de "A dog runs." --out trace
    """
    _save(_subject(run, words, target, device), out)


# --- measurements of runs -----------------------------------------------------------------------------------------


def gradients(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, drawn on one plot.")],
    on: On = "validation",
    json_file: Json = None,
    figure: Figure = None,
    device: OnCpu = "cpu",
) -> None:
    """Measure how far gradients reach back in time: ‖∂L_t/∂h_k‖ against t − k.

    Each run is measured at initialization and after training.

    Examples:
      sightline inspect gradients runs/elman runs/lstm --figure flow.png
    """
    from sightline.inspection.views import gradients_view
    from sightline.progress import shown
    from sightline.run import Run

    _check_files(json_file, figure=figure)
    last = [run.resolve().name for run in runs]
    labels = [name if last.count(name) == 1 else str(run) for run, name in zip(runs, last, strict=True)]
    loaded = {label: Run.load(run, device=device) for label, run in zip(labels, runs, strict=True)}
    with shown() as progress:
        view = gradients_view(loaded, on, progress=progress)
    _emit(view, json_file, figure, printed=True)


def layer_norms(run: RunFolder, figure: Drawn) -> None:
    """Draw the gradient norms of each layer that training.log_layers recorded.

    Examples:
      sightline inspect layer-norms runs/elman --figure norms.png
    """
    from sightline.plots.lines import draw_layer_norms, read_layer_norms

    draw_layer_norms(read_layer_norms(run), figure, title=f"{run.name}: gradient norms over training")
    print(f"wrote {figure}", file=sys.stderr)


def expert_shares(run: RunFolder, figure: Drawn) -> None:
    """Draw each expert's share of the tokens during training, and dropped tokens.

    Examples:
      sightline inspect expert-shares runs/moe-transformer --figure shares.png
    """
    from sightline.plots.experts import draw_expert_shares

    draw_expert_shares(run, figure)
    print(f"wrote {figure}", file=sys.stderr)


def corpus(
    run: RunFolder,
    on: On = "validation",
    sort: Annotated[str, typer.Option(metavar="ORDER", help="worst, longest or rarest first.")] = "worst",
    by_token: Annotated[bool, typer.Option("--tokens", help="List tokens instead of sentences.")] = False,
    quality: Annotated[bool, typer.Option("--quality", help="Decode too, and score by length.")] = False,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write every token there.")] = None,
    json_file: Json = None,
    figure: Figure = None,
    device: OnCpu = "cpu",
) -> None:
    """List the losses of a test set by sentence or token, and by length.

    Examples:
      sightline inspect corpus runs/en-de --on test_2016 --sort rarest --tokens
    """
    from sightline.inspection.corpus import ORDERS
    from sightline.inspection.views import corpus_view
    from sightline.run import Run

    _check_files(csv_file, json_file, figure=figure)
    order = _one_of(ORDERS, "--sort", sort)
    view = corpus_view(Run.load(run, device=device), on, order=order, tokens=by_token, quality=quality)
    _emit(view, json_file, figure, csv_file, printed=True)


inspect = group(
    "inspect",
    about,
    {
        "walkthrough": walkthrough,
        "steps": steps,
        "tokens": tokens,
        "heads": heads,
        "beam": beam,
        "experts": experts,
        "ablation": ablation,
        "attribution": attribution,
        "cell": cell,
        "numpy": numpy,
        "report": report,
        "trace": trace,
        "gradients": gradients,
        "layer-norms": layer_norms,
        "expert-shares": expert_shares,
        "corpus": corpus,
    },
    InspectGroup,
)


# --- what they share ----------------------------------------------------------------------------------------------


def _run_and_text(run: str, words: Sequence[str] | None, target: str | None, device: str) -> tuple[Run, str]:
    """The run with overrides, and the text to look at."""
    from sightline.run import Run

    texts, overrides = _texts(words)
    if not texts:
        raise ValueError('give a text to look at: sightline inspect RUN "text"')
    loaded, _ = change_run(Run.load(Path(run), device=device), overrides)
    report_unknown_target(loaded.vocabulary, target)
    return loaded, texts[0]


def _texts(words: Sequence[str] | None) -> tuple[list[str], list[str]]:
    texts, overrides = split_overrides(words or ())
    if texts[1:]:
        raise ValueError(f"unexpected argument {texts[1]!r}: give one text, in quotes, and overrides as key=value")
    return texts, overrides


def _subject(
    run: str,
    words: Sequence[str] | None,
    target: str | None,
    device: str,
    *,
    step: int | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Subject:
    from sightline.inspection.lecture_example import NAME, lecture_trace
    from sightline.inspection.views import Subject

    if run == NAME:
        if _texts(words) != ([], []) or target is not None:
            raise ValueError(f"{NAME} has a text and a target of its own; leave yours out, or give a run folder")
        return Subject(step=step, layer=layer, head=head, given=lecture_trace())
    loaded, text = _run_and_text(run, words, target, device)
    return Subject(loaded, text, target, step=step, layer=layer, head=head)


def _one_of(known: Sequence[Choice], option: str, name: str) -> Choice:
    """The choice of that name."""
    for each in known:
        if each == name:
            return each
    raise ValueError(f"{option} {name}: use {', '.join(known)}")


def _check_files(*files: Path | None, figure: Path | None = None) -> None:
    """Refuse files that cannot be written, before anything is computed."""
    from sightline.files import check_writable
    from sightline.plots.figures import check_figure

    for path in filter(None, files):
        check_writable(path)
    if figure is not None:
        check_figure(figure)


def _emit(
    view: InspectionView,
    json_file: Path | None,
    figure: Path | None = None,
    csv_file: Path | None = None,
    *,
    printed: bool = False,
) -> None:
    """Write a view to files; print it where there are none, or always."""
    from sightline.files import write_atomically, write_json
    from sightline.terminal import console

    if printed or (json_file is None and figure is None):
        console().print(view.shown)
    if csv_file is not None and view.to_csv is not None:
        write_atomically(csv_file, view.to_csv())
        print(f"wrote {csv_file}", file=sys.stderr)
    if json_file is not None:
        write_json(json_file, view.record(), indent=None)
        print(f"wrote {json_file}", file=sys.stderr)
    if figure is not None:
        view.picture(figure)
        print(f"wrote {figure}", file=sys.stderr)


def _write_report(subject: Subject, path: Path, title: str) -> None:
    from sightline.files import check_writable
    from sightline.report.page import write_report

    check_writable(path)
    write_report(subject, path, title=title)
    print(f"wrote {path}", file=sys.stderr)


def _write_script(subject: Subject, folder: Path) -> None:
    from sightline.inspection.numpy_script import export_script

    print(f"wrote {export_script(subject.trace, folder)}; run it with python", file=sys.stderr)


def _save(subject: Subject, folder: Path) -> None:
    subject.trace.save(folder)
    print(f"wrote {folder}", file=sys.stderr)


def _explained(trace: Trace, cell: str) -> str:
    """`name[0,0,2,1]` → its arithmetic."""
    from sightline.inspection.walkthrough import Walkthrough

    found = re.fullmatch(r"([^\[\]]+)\[([\d,\s−-]*)\]", cell)
    if found is None:
        raise ValueError(f"--cell {cell}: write it as NAME[0,0,2,1], an index for each axis")
    place = tuple(int(part) for part in found[2].replace("−", "-").split(",") if part.strip())
    try:
        return Walkthrough(trace).explain(found[1], place)
    except KeyError as error:
        raise ValueError(f"--cell {cell}: {error.args[0]}") from error
