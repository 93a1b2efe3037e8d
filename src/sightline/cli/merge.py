"""`sightline merge`: low-rank adapters become part of the weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


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
