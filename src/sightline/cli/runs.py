"""`sightline runs`: list, show, seal, average and merge run folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.commands import Group, group
from sightline.cli.options import RunFolder

Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The run folder to write.")]


class RunsGroup(Group):
    """`runs` lists."""

    alone = "list"


def about() -> None:
    """List, show, seal, average and merge run folders.

    Examples:
      sightline runs list
      sightline runs show runs/dates
      sightline runs average runs/en-de --count 5 --out runs/en-de-mean
    """


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to search.")] = Path("runs"),
) -> None:
    """List runs with task, model, size and state.

    Examples:
      sightline runs list
      sightline runs list runs/sweep-dates
    """
    from sightline.recipe.loading import load_recipe
    from sightline.run_folder import read_config

    runs = sorted(path.parent for path in folder.rglob("recipe.yaml"))
    if not runs:
        raise ValueError(f"{folder} contains no runs; name another folder, or train one: sightline train dates")
    width = max(len(str(run)) for run in runs)
    for run in runs:
        try:
            recipe = load_recipe(run / "recipe.yaml")
            model = ", ".join(
                f"{getattr(body, 'cell', body.kind)} {side}" for side, body in recipe.model.bodies.items()
            )
            parameters = read_config(run).get("parameters") if (run / "config.json").is_file() else None
            size = f", {parameters:,} parameters" if parameters else ""
            state = "" if (run / "model.safetensors").is_file() else ", not finished"
            print(f"{run!s:<{width}}  {recipe.task}, {model}{size}{state}")
        except (ValueError, OSError) as error:
            print(f"{run!s:<{width}}  unreadable: {str(error).splitlines()[0]}")


def show(run: RunFolder) -> None:
    """Print the model card of a run: data, model, training, scores.

    Examples:
      sightline runs show runs/dates
    """
    from sightline.run_folder import require_file

    print(require_file(run, "README.md", "sightline train writes it").read_text(encoding="utf-8"), end="")


def seal(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", show_default=False)],
) -> None:
    """Write the SHA-256 of a run's files to manifest.json.

    Use it for runs of versions without a manifest, and after changing a file on purpose. Every command refuses files
    that differ from the manifest.

    Examples:
      sightline runs seal runs/mine
    """
    from sightline.recipe.loading import load_recipe
    from sightline.run_folder import changed_files, lock_run, parse_config, read_manifest, require_file, seal_run

    for run in runs:
        parse_config(run)
        load_recipe(require_file(run, "recipe.yaml", "it is part of every run folder; copy the whole folder"))
        with lock_run(run):
            try:
                old, changed = read_manifest(run), changed_files(run)
            except ValueError as error:
                old, changed = None, [str(error)]
            files = seal_run(run, finished=True)
        size = sum(entry["size"] for entry in files.values())
        print(f"{run}: sealed {len(files)} files, {size / 1e6:.1f} MB")
        for change in changed:
            print(f"  {change}; accepted")
        if old is None and not changed:
            print("  had no manifest")


def average(
    run: RunFolder,
    out: Out,
    count: Annotated[int, typer.Option(metavar="N", help="How many checkpoints, newest first.")] = 5,
) -> None:
    """Average the newest checkpoints of a run into a new run.

    The average often scores a little higher than any one of them. training.keep and training.save_every set how many
    checkpoints a training keeps and how far apart. training.averaging.kind=checkpoints averages at the end of training.

    Examples:
      sightline runs average runs/en-de --count 5 --out runs/en-de-mean
    """
    from sightline.augment.merging import average_run

    steps = average_run(run, out, count)
    fewer = f" (only {len(steps)} of {count} exist)" if len(steps) < count else ""
    print(f"done: {out}, the mean of the checkpoints of step {', '.join(map(str, steps))}{fewer}", file=sys.stderr)


def merge(run: RunFolder, out: Out) -> None:
    """Merge low-rank adapters (model.adapters) into the weights: W + (alpha / rank) B A.

    Predictions stay the same, within rounding. Other trainings can start from the merged run (model.init_from).

    Examples:
      sightline runs merge runs/lora --out runs/merged
    """
    from sightline.augment.merging import merge_run

    merge_run(run, out)
    print(f"done: {out}", file=sys.stderr)


app = group(
    "runs", about, {"list": list_runs, "show": show, "seal": seal, "average": average, "merge": merge}, cls=RunsGroup
)
