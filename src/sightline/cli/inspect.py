"""`sightline inspect`: what a model computes for a text, one sub-command for each view or measurement."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from sightline.cli.claims import claims
from sightline.cli.commands import group
from sightline.cli.inspect_examples import attention_example, lecture_example
from sightline.cli.inspect_options import (
    Device,
    Drawn,
    Figure,
    Hidden,
    InspectGroup,
    Json,
    Name,
    On,
    Target,
    check_files,
    emit,
    on_text,
    one_of,
    report_written,
    subject_of,
)
from sightline.cli.lines import report_unknown_target
from sightline.cli.options import RunFolder

if TYPE_CHECKING:
    from sightline.inspection.views import InspectionView, Subject


def about() -> None:
    """Look inside a model: every step from tokens to probabilities.

    sightline inspect RUN TEXT is the walkthrough. The output is decoded as usual; then one pass over text and output is
    recorded.

    Examples:
      sightline inspect attention-example
      sightline inspect lecture-example
      sightline inspect runs/dates "3. März 2015"
      sightline inspect heads runs/en-de "A dog runs." --layer 3 --figure heads.png
      sightline inspect report runs/en-de "A dog runs." --out report.html
      sightline inspect corpus runs/en-de --on test_2016 --sort rarest
    """


@on_text("target step layer head")
def walkthrough(
    subject: Subject,
    json_file: Json = None,
    html: Hidden = None,
    save: Hidden = None,
    numpy: Hidden = None,
    cell: Annotated[str | None, typer.Option(hidden=True)] = None,
    figure: Hidden = None,
) -> None:
    """Show every step in order, with formula, shape and numbers (the default).

    Examples:
      sightline inspect lecture-example
      sightline inspect walkthrough runs/dates "3. März 2015" --target 2015-03-04 --step 2
      sightline inspect walkthrough runs/en-de "A dog runs." --layer 0 --head 3
    """
    from sightline.inspection.views import walkthrough_view

    for path, write in ((html, _write_report), (save, _save), (numpy, _write_script)):
        if path is not None:
            write(subject, path)
    if cell is not None:
        print(_explain(subject, cell))
    if not (html or save or numpy or cell) or json_file is not None or figure is not None:
        emit(walkthrough_view(subject), json_file, figure)


@on_text("target layer json_file")
def steps(subject: Subject) -> InspectionView:
    """List every recorded tensor with its name, formula and shape.

    Examples:
      sightline inspect steps runs/dates "3. März 2015" --layer 0
    """
    from sightline.inspection.views import records_view

    return records_view(subject)


@on_text("target step json_file")
def tokens(subject: Subject) -> InspectionView:
    """Show the probability of every output token, and its likeliest alternatives.

    Examples:
      sightline inspect tokens runs/en-de "A dog runs." --json tokens.json
    """
    from sightline.inspection.views import tokens_view

    return tokens_view(subject)


@on_text("target layer head json_file figure")
def heads(subject: Subject) -> InspectionView:
    """Show every attention head with its entropy and what it attends to.

    Examples:
      sightline inspect heads runs/en-de "A dog runs." --layer 3 --figure heads.png
    """
    from sightline.inspection.views import heads_view

    return heads_view(subject)


@on_text("json_file figure")
def beam(subject: Subject) -> InspectionView:
    """Show the beam search step by step.

    Examples:
      sightline inspect beam runs/en-de "A dog runs." decoding.beam=3 --figure beam.png
    """
    from sightline.inspection.views import beam_view

    return beam_view(subject)


@on_text("target layer json_file")
def experts(subject: Subject) -> InspectionView:
    """Show which experts each token is routed to.

    Examples:
      sightline inspect experts runs/moe-transformer "A dog runs."
    """
    from sightline.inspection.views import experts_view

    return experts_view(subject)


@on_text("target layer head json_file")
def ablation(
    subject: Subject,
    ablated: Annotated[
        list[str] | None,
        typer.Option("--heads", metavar="NAME", help="Switch this head off (repeatable); default: each in turn."),
    ] = None,
    on: Annotated[str | None, typer.Option(metavar="NAME", help="Measure the effect on this test set, too.")] = None,
) -> InspectionView:
    """Switch attention heads off, and show what changes.

    Examples:
      sightline inspect ablation runs/en-de "A dog runs." --layer 3
      sightline inspect ablation runs/en-de "A dog runs." --heads decoder.3.cross.1 --on test_2016
    """
    from sightline.inspection.views import ablation_view

    return ablation_view(subject, ablated or (), on)


@on_text("target json_file figure", printed=True)
def attribution(
    subject: Subject,
    method: Annotated[
        str, typer.Option(metavar="METHOD", help="input-gradient, integrated-gradients, occlusion.")
    ] = "integrated-gradients",
) -> InspectionView:
    """Show which input tokens each output token depends on.

    Examples:
      sightline inspect attribution runs/en-de "A dog runs." --method occlusion --figure grid.png
    """
    from sightline.inspection.attribution import Method
    from sightline.inspection.views import attribution_view

    return attribution_view(subject, method=one_of(get_args(Method), "--method", method))


def cell(
    run: Name,
    words: Annotated[
        list[str], typer.Argument(metavar="TEXT NAME[INDEX]", help="The input, and a number such as loss[].")
    ],
    target: Target = None,
    device: Device = "cpu",
) -> None:
    """Explain the arithmetic of one number of a recorded tensor.

    Examples:
      sightline inspect cell lecture-example "decoder.0.cross.products[0,0,2,1]"
      sightline inspect cell runs/en-de "A dog runs." "decoder.layers.0.cross.scores[0,0,2,1]"
    """
    *text, name = words
    print(_explain(subject_of(run, text, target, device), name))


@on_text("target")
def numpy(
    subject: Subject,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")] = Path(
        "numpy-script"
    ),
) -> None:
    """Write a NumPy script that recomputes and checks every step.

    Examples:
      sightline inspect numpy runs/en-de "A dog runs." --out by-hand && python by-hand/script.py
    """
    _write_script(subject, out)


@on_text("target step layer head")
def report(
    subject: Subject,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = Path("report.html"),
) -> None:
    """Write all views to one HTML file.

    Examples:
      sightline inspect report runs/en-de "A dog runs." --out report.html
    """
    _write_report(subject, out)


@on_text("target")
def trace(
    subject: Subject,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")] = Path("trace"),
) -> None:
    """Save every recorded tensor, to be read by sightline.Trace.

    Examples:
      sightline inspect trace runs/en-de "A dog runs." --out trace
    """
    _save(subject, out)


# --- measurements of runs -----------------------------------------------------------------------------------------


def gradients(
    run: RunFolder,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The input; for a language model the text.")],
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="The output or labels; default: the run's own.")
    ] = None,
    weight: Annotated[
        str | None, typer.Option(metavar="NAME", help="Show this weight in full, before and after.")
    ] = None,
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="sgd, or recipe for the recipe's.")] = "sgd",
    lr: Annotated[
        float | None, typer.Option(metavar="RATE", help="Learning rate; default: 0.1, or the recipe's.")
    ] = None,
    json_file: Json = None,
    device: Device = "cpu",
) -> None:
    """Show the gradients of one update: loss, each weight's gradient, a step, the loss after it.

    The update is made on a copy; the run does not change. A tagger takes a label for each word, a classifier one.

    Examples:
      sightline inspect gradients runs/en-de "A dog runs." "Ein Hund rennt."
      sightline inspect gradients runs/en-de "A dog runs." "Ein Hund rennt." --weight output.weight --lr 0.5
      sightline inspect gradients runs/lm "A dog runs." --optimizer recipe
    """
    from sightline.inspection.update import update_view
    from sightline.run import Run
    from sightline.training.optimizers import single_step

    check_files(json_file)
    kind = one_of(("sgd", "recipe"), "--optimizer", optimizer)
    loaded = Run.load(run, device=device)
    report_unknown_target(loaded.vocabulary, target)
    build, name, rate = single_step(loaded.recipe.training, kind, lr)
    emit(update_view(loaded, source, target, build, weight=weight, optimizer=name, lr=rate), json_file)


def gradient_flow(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, drawn on one plot.")],
    on: On = "validation",
    json_file: Json = None,
    figure: Figure = None,
    device: Device = "cpu",
) -> None:
    """Measure how far gradients reach back in time: ‖∂L_t/∂h_k‖ against t − k.

    Each run is measured at initialization and after training.

    Examples:
      sightline inspect gradient-flow runs/elman runs/lstm --figure flow.png
    """
    from sightline.inspection.views import gradients_view
    from sightline.progress import shown
    from sightline.run import Run

    check_files(json_file, figure=figure)
    last = [run.resolve().name for run in runs]
    labels = [name if last.count(name) == 1 else str(run) for run, name in zip(runs, last, strict=True)]
    loaded = {label: Run.load(run, device=device) for label, run in zip(labels, runs, strict=True)}
    with shown() as progress:
        view = gradients_view(loaded, on, progress=progress)
    emit(view, json_file, figure, printed=True)


def layer_norms(run: RunFolder, figure: Drawn) -> None:
    """Draw the gradient norms of each layer that training.log_layers recorded.

    Examples:
      sightline inspect layer-norms runs/elman --figure norms.png
    """
    from sightline.plots.lines import draw_layer_norms, read_layer_norms

    draw_layer_norms(read_layer_norms(run), figure, title=f"{run.name}: gradient norms over training")
    report_written(figure)


def expert_shares(run: RunFolder, figure: Drawn) -> None:
    """Draw each expert's share of the tokens during training, and dropped tokens.

    Examples:
      sightline inspect expert-shares runs/moe-transformer --figure shares.png
    """
    from sightline.plots.experts import draw_expert_shares

    draw_expert_shares(run, figure)
    report_written(figure)


def corpus(
    run: RunFolder,
    on: On = "validation",
    sort: Annotated[str, typer.Option(metavar="ORDER", help="worst, longest or rarest first.")] = "worst",
    by_token: Annotated[bool, typer.Option("--tokens", help="List tokens instead of sentences.")] = False,
    quality: Annotated[bool, typer.Option("--quality", help="Decode too, and score by length.")] = False,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write every token there.")] = None,
    json_file: Json = None,
    figure: Figure = None,
    device: Device = "cpu",
) -> None:
    """List the losses of a test set by sentence or token, and by length.

    Examples:
      sightline inspect corpus runs/en-de --on test_2016 --sort rarest --tokens
    """
    from sightline.inspection.corpus import ORDERS
    from sightline.inspection.views import corpus_view
    from sightline.run import Run

    check_files(csv_file, json_file, figure=figure)
    order = one_of(ORDERS, "--sort", sort)
    view = corpus_view(Run.load(run, device=device), on, order=order, tokens=by_token, quality=quality)
    emit(view, json_file, figure, csv_file, printed=True)


def _write_report(subject: Subject, path: Path) -> None:
    from sightline.report.page import write_report

    check_files(path)
    write_report(subject, path, title=subject.name)
    report_written(path)


def _write_script(subject: Subject, folder: Path) -> None:
    from sightline.inspection.numpy_script import export_script

    print(f"wrote {export_script(subject.trace, folder)}; run it with python", file=sys.stderr)


def _save(subject: Subject, folder: Path) -> None:
    subject.trace.save(folder)
    report_written(folder)


def _explain(subject: Subject, cell: str) -> str:
    """The arithmetic of `name[0,0,2,1]`."""
    from sightline.inspection.walkthrough import Walkthrough

    parts = re.fullmatch(r"([^\[\]]+)\[([\d,\s−-]*)\]", cell)
    if parts is None:
        raise ValueError(f"--cell {cell}: write it as NAME[0,0,2,1], an index for each axis")
    index = tuple(int(part) for part in parts[2].replace("−", "-").split(",") if part.strip())
    try:
        return Walkthrough(subject.trace).explain(parts[1], index)
    except KeyError as error:
        raise ValueError(f"--cell {cell}: {error.args[0]}") from error


_COMMANDS = (
    walkthrough, steps, tokens, heads, beam, experts, ablation, attribution, cell, numpy, report, trace,
    gradients, gradient_flow, layer_norms, expert_shares, corpus, attention_example, lecture_example,
)  # fmt: skip
inspect = group("inspect", about, {each.__name__.replace("_", "-"): each for each in _COMMANDS}, InspectGroup)
inspect.add_typer(claims)
