"""`sightline inspect`: a run and a text, and what the model did, in numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli import measures
from sightline.cli.lines import tell_unknown_target
from sightline.cli.options import Device

if TYPE_CHECKING:
    from sightline.inspection.trace import Trace
    from sightline.inspection.views import Subject

_VIEWS = "walk, steps, tokens, heads, beam, ablate, experts"  # inspection/views.py has them; imported late


def inspect(
    run: Annotated[str, typer.Argument(help="A run folder, or `lecture-example`, which is built in.")],
    text: Annotated[
        str | None, typer.Argument(help="What the model reads; of a language model, the beginning.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="An output to force, instead of the run's own.")] = None,
    view: Annotated[str, typer.Option(help=f"What to show: {_VIEWS}.")] = "walk",
    step: Annotated[int | None, typer.Option(help="Only this token of the output; all are counted from 0.")] = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this attention head.")] = None,
    cell: Annotated[
        str | None, typer.Option(help="The arithmetic of one number, e.g. `decoder.0.cross.scores[0,0,2,1]`.")
    ] = None,
    ablate: Annotated[
        list[str] | None,
        typer.Option(help="Switch heads off, e.g. decoder.3.cross.7; with --corpus, what it does to a metric too."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report there: one HTML file with all of it.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save the trace (JSON + safetensors) to a new folder.")] = None,
    numpy: Annotated[
        Path | None, typer.Option(help="Write a NumPy script that recomputes every step to a new folder.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write what the view shows there, as numbers.")
    ] = None,
    device: Device = "cpu",
    gradient_flow: measures.GradientFlow = False,
    beside: measures.Beside = None,
    layer_norms: measures.LayerNorms = False,
    expert_shares: measures.ExpertShares = False,
    attribute: measures.Attribute = None,
    corpus: measures.Corpus = None,
    sort: measures.Sort = None,
    tokens: measures.Tokens = False,
    quality: measures.Quality = False,
    csv_file: measures.Csv = None,
    figure: measures.Figure = None,
) -> None:
    """Look inside: every step from tokens to probabilities, with formulas, shapes and numbers.

    The run's output is decoded as always, then one pass over text and output is recorded.

    Examples:

    - `sightline inspect lecture-example`
    - `sightline inspect runs/dates "3. März 2015"`
    - `sightline inspect runs/dates "3. März 2015" --view tokens`
    - `sightline inspect runs/dates "3. März 2015" --target 2015-03-04 --step 2`
    - `sightline inspect runs/en-de "A dog runs." --layer 0 --head 3`
    - `sightline inspect runs/en-de "A dog runs." --html report.html`
    - `sightline inspect runs/en-de "A dog runs." --view heads --layer 3`
    - `sightline inspect runs/en-de "A dog runs." --view beam --figure beam.png`
    - `sightline inspect runs/en-de "A dog runs." --view tokens --json tokens.json`
    - `sightline inspect runs/en-de "A dog runs." --view ablate --layer 3`
    - `sightline inspect runs/en-de "A dog runs." --ablate decoder.3.cross.1 --corpus test_2016`
    - `sightline inspect runs/experts "A dog runs." --view experts`
    - `sightline inspect runs/en-de "A dog runs." --cell "decoder.layers.0.cross.scores[0,0,2,1]"`
    - `sightline inspect runs/en-de "A dog runs." --numpy by-hand && python by-hand/script.py`
    - `sightline inspect runs/experts --expert-shares --figure shares.png`
    - `sightline inspect runs/elman --gradient-flow --beside runs/lstm --figure flow.png`
    - `sightline inspect runs/en-de "A dog runs." --attribute occlusion --figure grid.png`
    - `sightline inspect runs/en-de --corpus test_2016 --sort rarest --tokens`
    """
    asked = measures.MeasureOptions(
        text=text,
        target=target,
        gradient_flow=gradient_flow,
        beside=beside or (),
        layer_norms=layer_norms,
        expert_shares=expert_shares,
        attribute=attribute,
        corpus=corpus,
        sort=sort,
        tokens=tokens,
        quality=quality,
        csv_file=csv_file,
        figure=figure,
        json_file=json_file,
        device=device,
    )
    files = Files(html, save, numpy, json_file, figure)
    files.check()
    measure = asked.measure(ablating=bool(ablate) or view == "ablate")
    if measure is not None:
        if run == "lecture-example":
            raise ValueError("lecture-example has one text and no training to measure; give a run folder")
        looked = None if view == "walk" else view
        _check_unused(view=looked, html=html, step=step, layer=layer, head=head, cell=cell, save=save, numpy=numpy)
        measures.show_measure(measure, Path(run), asked)
        return
    _check_seen(view, ablate, cell, files)
    subject = _subject(run, text, target, device)
    subject.step, subject.layer, subject.head, subject.heads = step, layer, head, ablate or ()
    if corpus is not None:
        measures.measure_corpus(subject, corpus)
    _look(subject, "ablate" if ablate else view, run, files, cell)


def _check_unused(**options: object) -> None:
    """A measure has no use for what narrows or writes down a walk-through."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"--{name} {value} is for a view of a text; it does not go with a measure, so ask for one")


def _check_seen(view: str, ablate: list[str] | None, cell: str | None, wanted: Files) -> None:
    """Refuse a view that would not be shown."""
    if view == "walk":  # nobody need have asked for it
        return
    if ablate and view != "ablate":
        raise ValueError(
            f"--view {view} is not shown beside --ablate, which is a view of its own; leave one of them out"
        )
    if (wanted.any or cell) and not wanted.of_view:
        raise ValueError(
            f"--view {view} is not shown where --cell, --html, --save or --numpy is asked for; leave one of them out, "
            f"or write down what the view shows with --json or --figure"
        )


@dataclass(frozen=True)
class Files:
    """What is to be written."""

    html: Path | None = None
    save: Path | None = None
    numpy: Path | None = None
    json: Path | None = None
    figure: Path | None = None

    @property
    def any(self) -> bool:
        return any(path is not None for path in (self.html, self.save, self.numpy, self.json, self.figure))

    @property
    def of_view(self) -> bool:
        """Whether one of them holds what the view shows."""
        return self.json is not None or self.figure is not None

    def check(self) -> None:
        """Before anything is computed: whether they can be written."""
        from sightline.files import check_writable
        from sightline.plots.figures import check_figure

        for path in filter(None, (self.html, self.json)):
            check_writable(path)
        if self.figure is not None:
            check_figure(self.figure)


def _look(subject: Subject, view: str, title: str, wanted: Files, cell: str | None) -> None:
    """Write what is to be written, or print the view."""
    from sightline.files import write_json
    from sightline.inspection.views import check_view, look

    check_view(view, subject)
    if wanted.html is not None:
        from sightline.report.page import write_report

        write_report(subject, wanted.html, title=title)
        print(f"wrote {wanted.html}", file=sys.stderr)
    if wanted.save is not None:
        subject.trace.save(wanted.save)
        print(f"wrote {wanted.save}", file=sys.stderr)
    if wanted.numpy is not None:
        from sightline.inspection.numpy_script import export_script

        print(f"wrote {export_script(subject.trace, wanted.numpy)}; run it with python", file=sys.stderr)
    if wanted.of_view:
        viewed = look(view, subject)
        if wanted.json is not None:
            write_json(wanted.json, viewed.record(), indent=None)
            print(f"wrote {wanted.json}", file=sys.stderr)
        if wanted.figure is not None:
            viewed.picture(wanted.figure)
            print(f"wrote {wanted.figure}", file=sys.stderr)
    if cell is not None:
        print(_explained(subject.trace, cell))
    elif not wanted.any:
        from sightline.terminal import console

        console().print(look(view, subject).shown)


def _subject(run: str, text: str | None, target: str | None, device: str) -> Subject:
    from sightline.inspection.lecture_example import NAME, lecture_trace
    from sightline.inspection.views import Subject

    if run == NAME:
        if text is not None or target is not None:
            raise ValueError(f"{NAME} has a text and a target of its own; leave yours out, or give a run folder")
        return Subject(given=lecture_trace())
    if text is None:
        raise ValueError('give a text to look at: sightline inspect RUN "text"')
    from sightline.run import Run

    loaded = Run.load(Path(run), device=device)
    tell_unknown_target(loaded.vocabulary, target)
    return Subject(loaded, text, target)


def _explained(trace: Trace, cell: str) -> str:
    """`name[0,0,2,1]` → its arithmetic."""
    import re

    from sightline.inspection.walkthrough import Walkthrough

    found = re.fullmatch(r"([^\[\]]+)\[([\d,\s−-]*)\]", cell)
    if found is None:
        raise ValueError(f"--cell {cell}: write it as NAME[0,0,2,1], an index for each axis")
    place = tuple(int(part) for part in found[2].replace("−", "-").split(",") if part.strip())
    try:
        return Walkthrough(trace).explain(found[1], place)
    except KeyError as error:
        raise ValueError(f"--cell {cell}: {error.args[0]}") from error
