"""`sightline runs`: average, merge and seal run folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def average(
    run: Annotated[Path, typer.Argument(help="A run folder with two checkpoints or more.")],
    out: Annotated[Path, typer.Option(help="The run folder to write.")],
    count: Annotated[int, typer.Option(help="How many of the newest checkpoints.")] = 5,
) -> None:
    """Make a run whose weights are the mean of the newest checkpoints of another.

    It is often a little better than any one of them. `training.keep` says how many checkpoints a training leaves,
    `training.save_every` how far apart they lie. With `training.averaging.kind: checkpoints` a training ends with such
    a mean by itself. Of one with a running average (`kind: ema`) it is the plain weights that are averaged.

    Examples:

    - `sightline average runs/en-de --count 5 --out runs/en-de-mean`
    - `sightline average runs/en-de --out runs/mean && sightline compare runs/en-de runs/mean --on validation`
    """
    from sightline.augment.merging import average_run

    steps = average_run(run, out, count)
    fewer = f" (all there are, of the {count} asked for)" if len(steps) < count else ""
    print(f"done: {out}, the mean of the checkpoints of step {', '.join(map(str, steps))}{fewer}", file=sys.stderr)


def merge(
    run: Annotated[Path, typer.Argument(help="A run folder that was trained with model.adapters.")],
    out: Annotated[Path, typer.Option(help="The plain run folder to write.")],
) -> None:
    """Make a plain run of one with low-rank adapters: W + (alpha / rank) B A in the place of all three.

    Predictions are the same, within rounding. Every command takes either run; another training can start from the plain
    one alone (`model.init_from`), and other programs can read it.

    Examples:

    - `sightline merge runs/lora --out runs/merged`
    - `sightline merge runs/lora --out runs/merged && sightline evaluate runs/merged`
    """
    from sightline.augment.merging import merge_run

    merge_run(run, out)
    print(f"done: {out}", file=sys.stderr)


def seal(runs: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)]) -> None:
    """Write the manifest of a run folder anew: the SHA-256 of every file that a command relies on.

    For runs of older versions, which have no manifest, and after a file was changed on purpose. Every command that
    loads a run refuses files that are not the ones that were sealed.

    Examples:

    - `sightline seal runs/mine`
    - `sightline seal runs/*`
    """
    from sightline.recipe.loading import load_recipe
    from sightline.run_folder import changed_files, lock_run, parse_config, read_manifest, require_file
    from sightline.run_folder import seal_run as write_manifest

    for run in runs:
        parse_config(run)
        load_recipe(require_file(run, "recipe.yaml", "it is part of every run folder; copy the whole folder"))
        with lock_run(run):
            try:
                old, found = read_manifest(run), changed_files(run)
            except ValueError as error:
                old, found = None, [str(error)]
            files = write_manifest(run, finished=True)
        size = sum(entry["size"] for entry in files.values())
        print(f"{run}: sealed {len(files)} files, {size / 1e6:.1f} MB")
        for change in found:
            print(f"  {change}; accepted")
        if old is None and not found:
            print("  had no manifest")
