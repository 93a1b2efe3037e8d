"""`sightline inspect`: a run and a text, and what the model did, in numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli import measures

if TYPE_CHECKING:
    from sightline.inspection.trace import Trace
    from sightline.run import Run

_SAMPLED = 20_000  # numbers of a tensor in the JSON; of larger ones a sample, with a note


@dataclass(frozen=True)
class Focus:
    """What a view is to look at."""

    step: int | None = None
    layer: int | None = None
    head: int | None = None


def _walk(run: Run | None, trace: Trace, focus: Focus) -> Any:
    from sightline.inspection.walk_through import WalkThrough

    return WalkThrough(trace).focus(step=focus.step, layer=focus.layer, head=focus.head)


def _steps(run: Run | None, trace: Trace, focus: Focus) -> Any:
    return trace if focus.layer is None else _layer_of(trace, focus.layer)


def _layer_of(trace: Trace, layer: int) -> Trace:
    from sightline.inspection.trace import Trace

    return Trace([step for step in trace if f"layers.{layer}." in step.name], {}, trace.about)


def _tokens(run: Run | None, trace: Trace, focus: Focus) -> Any:
    from sightline.inspection.token_view import token_table

    labels = trace.about.get("labels")

    def name(token: int) -> str:
        if labels is not None:
            return str(labels[token])
        assert run is not None
        pieces = run.vocabulary.target.pieces([token])
        return pieces[0] if pieces else str(token)

    return token_table(trace, name)


View = Callable[["Run | None", "Trace", Focus], Any]  # what it returns is printed
VIEWS: dict[str, View] = {"walk": _walk, "steps": _steps, "tokens": _tokens}


def inspect(
    run: Annotated[str, typer.Argument(help="A run folder, or `lecture-example`, which is built in.")],
    text: Annotated[
        str | None, typer.Argument(help="What the model reads; of a language model, the beginning.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="An output to force, instead of the run's own.")] = None,
    view: Annotated[str, typer.Option(help=f"What to show: {', '.join(VIEWS)}.")] = "walk",
    step: Annotated[int | None, typer.Option(help="Only this token of the output; all are counted from 0.")] = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this attention head.")] = None,
    cell: Annotated[
        str | None, typer.Option(help="The arithmetic of one number, e.g. `decoder.0.cross.scores[0,0,2,1]`.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Save the trace (JSON + safetensors) to a new folder.")] = None,
    numpy: Annotated[
        Path | None, typer.Option(help="Write a NumPy script that recomputes every step to a new folder.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write steps, formulas and numbers there.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    gradient_flow: measures.GradientFlow = False,
    beside: measures.Beside = None,
    layer_norms: measures.LayerNorms = False,
    attribute: measures.Attribute = None,
    corpus: measures.Corpus = None,
    sort: measures.Sort = "worst",
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
    - `sightline inspect runs/en-de "A dog runs." --cell "decoder.layers.0.cross.scores[0,0,2,1]"`
    - `sightline inspect runs/en-de "A dog runs." --numpy by-hand && python by-hand/script.py`
    - `sightline inspect runs/elman --gradient-flow --beside runs/lstm --figure flow.png`
    - `sightline inspect runs/en-de "A dog runs." --attribute occlusion --figure grid.png`
    - `sightline inspect runs/en-de --corpus test_2016 --sort rarest --tokens`
    """
    asked = measures.Asked(
        gradient_flow,
        beside or (),
        layer_norms,
        attribute,
        corpus,
        sort,
        tokens,
        quality,
        csv_file,
        figure,
        json_file,
        device,
    )
    if asked.anything:
        measures.show_measures(Path(run), text, target, asked)
        return
    if view not in VIEWS:
        raise ValueError(f"--view {view}: there is no such view; there is {', '.join(VIEWS)}")
    loaded, trace = _traced(run, text, target, device)
    if save is not None:
        trace.save(save)
        print(f"wrote {save}", file=sys.stderr)
    if numpy is not None:
        from sightline.inspection.numpy_script import export_script

        print(f"wrote {export_script(trace, numpy)}; run it with python", file=sys.stderr)
    if json_file is not None:
        _write_json(trace, json_file)
    if cell is not None:
        print(_explained(trace, cell))
    elif save is None and numpy is None and json_file is None:
        from rich.console import Console

        Console().print(VIEWS[view](loaded, trace, Focus(step, layer, head)))


def _traced(run: str, text: str | None, target: str | None, device: str) -> tuple[Run | None, Trace]:
    from sightline.inspection.lecture_example import NAME, lecture_trace

    if run == NAME:
        if text is not None or target is not None:
            raise ValueError(f"{NAME} has a text and a target of its own; leave yours out, or give a run folder")
        return None, lecture_trace()
    if text is None:
        raise ValueError('give a text to look at: sightline inspect RUN "text"')
    from sightline.run import Run

    loaded = Run.load(Path(run), device=device)
    return loaded, loaded.trace(text, target)


def _explained(trace: Trace, cell: str) -> str:
    """`name[0,0,2,1]` → its arithmetic."""
    import re

    from sightline.inspection.walk_through import WalkThrough

    found = re.fullmatch(r"([^\[\]]+)\[([\d,\s−-]*)\]", cell)
    if found is None:
        raise ValueError(f"--cell {cell}: write it as NAME[0,0,2,1], an index for each axis")
    place = tuple(int(part) for part in found[2].replace("−", "-").split(",") if part.strip())
    try:
        return WalkThrough(trace).explain(found[1], place)
    except KeyError as error:
        raise ValueError(f"--cell {cell}: {error.args[0]}") from error


def _write_json(trace: Trace, path: Path) -> None:
    import json

    from sightline.files import write_atomically
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
    write_atomically(path, json.dumps({"about": trace.about, "steps": steps}, ensure_ascii=False) + "\n")
    print(f"wrote {path}", file=sys.stderr)
