"""`sightline train`: train the model of a recipe and write a run folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.options import Overrides

if TYPE_CHECKING:
    from sightline.data.preparation import ExampleCounter
    from sightline.training.dry_run import DryRun


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe file, a shipped recipe, or a run folder to continue.")
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The run folder to write; default: runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted training.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Run one step and print sizes; write nothing.")] = False,
) -> None:
    """Train the model that a recipe describes.

    Examples:
      sightline train dates
      sightline train multi30k/transformer training.lr=5e-4 data.swap=true --out runs/en-de
      sightline train my.yaml --dry-run
      sightline train runs/en-de --resume
    """
    from sightline.training.dry_run import dry_run as run_dry
    from sightline.training.resolve import open_recipe

    loaded, folder = open_recipe(recipe, overrides or [])
    if dry_run:
        print_dry_run(run_dry(loaded, progress=_counter()))
        return
    run = out or Path(folder)
    with interruptions(run):
        run_training(loaded, run, resume=resume)
    print(f"done: {run}", file=sys.stderr)


@contextmanager
def interruptions(run: Path) -> Iterator[None]:
    """On an interruption, print how to continue and exit with code 130."""
    from sightline.training.world import Interrupted

    try:
        yield
    except Interrupted:
        print(f"interrupted and saved; continue with: sightline train {run} --resume", file=sys.stderr)
        raise typer.Exit(code=130) from None
    except KeyboardInterrupt:  # before the first step, or again before the last one was saved
        started = (run / "recipe.yaml").is_file()
        remedy = f"continue with: sightline train {run} --resume" if started else "nothing was saved; start again"
        print(f"interrupted; {remedy}", file=sys.stderr)
        raise typer.Exit(code=130) from None


def run_training(recipe: Any, run: Path, *, resume: bool = False) -> None:
    """Train with a live display in a terminal and plain lines elsewhere."""
    from sightline.training.loggers import LiveDisplay
    from sightline.training.train import train as train_recipe

    if not sys.stderr.isatty():
        train_recipe(recipe, out=run, resume=resume, progress=_counter())
        return
    with LiveDisplay() as display:
        train_recipe(recipe, out=run, resume=resume, display=display, progress=display.count)


def _counter() -> ExampleCounter:
    """Progress of data preparation (total unknown)."""
    from sightline.progress import occasional

    show = occasional()
    return lambda what, count: show(f"{what}, examples", count, 0)


def print_dry_run(report: DryRun) -> None:
    """Print the sizes, padding, memory and first step of a dry run."""
    counts = ", ".join(f"{reason} {count:,}" for reason, count in report.counts.items())
    examples = ("examples", f"{report.examples:,} ({counts})")
    vocabulary = ("vocabulary", f"{report.source_vocabulary:,} source, {report.target_vocabulary:,} target")
    if (step := report.step) is None:
        rows = [examples, vocabulary, ("steps", "none: the text is counted in one pass")]
    else:
        rows = [
            examples,
            ("batches an epoch", f"{step.batches:,}, {step.layout}"),
            ("planned steps", f"about {step.planned:,.0f}, by training.limits"),
            ("padding", f"{step.waste:.2%} of all positions"),
            vocabulary,
            ("parameters", f"{report.parameters:,} in all{_trained(report, '', report.parameters)}"),
            *((f"  {name}", _part(report, name, count)) for name, count in report.parts.items()),
            ("memory", f"{report.memory}, without activations"),
            ("first step", f"{step.seconds:.2f} s, loss {step.loss:.3f} nats a token"),
            ("peak memory", f"{step.peak_memory / 2**20:,.0f} MiB"),
        ]
    for name, value in rows:
        print(f"{name:<18} {value}")
    for note in report.notes:
        print(note)


def _part(report: DryRun, name: str, count: int) -> str:
    """The parameters of a part of the model that no earlier part shares."""
    shared = f" (and {report.shared[name]:,} shared with a part above)" if report.shared[name] else ""
    return f"{count:,}{_trained(report, name, count)}{shared}"


def _trained(report: DryRun, part: str, count: int) -> str:
    """The numbers of trained and frozen parameters of a part; empty if none of the model are frozen."""
    if report.trained[""] == report.parameters:
        return ""
    return f", {report.trained[part]:,} trained, {count - report.trained[part]:,} frozen"
