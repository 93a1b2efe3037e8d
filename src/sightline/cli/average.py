"""`sightline average`: the mean of the newest checkpoints of a run, as a run."""

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
