"""`sightline baseline`: summaries without a model, to hold models against."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.options import Overrides
from sightline.terminal import plural


def baseline(
    kind: Annotated[str, typer.Argument(help="lead: the first sentences; oracle: the best ones for the reference.")],
    recipe: Annotated[str, typer.Argument(help="A recipe file, the name of a shipped recipe, or a run folder.")],
    overrides: Overrides = None,
    on: Annotated[str | None, typer.Option(help="A test set of the recipe, or `validation`; by default all.")] = None,
    sentences: Annotated[
        int | None, typer.Option(min=1, help="How many sentences: of a lead (by default 3), or at most of an oracle.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write; by default runs/lead-3, runs/oracle.")] = None,
) -> None:
    """Write summaries that need no model, and score them with the recipe's metrics.

    `lead` takes the first sentences of each source. `oracle` takes, one after the other, the sentence that raises
    ROUGE-1 + ROUGE-2 against the reference most, until none does: it has seen the answer, and shows what taking whole
    sentences could reach at best, or nearly. The folder can stand in `sightline compare` beside runs.

    Examples:

    - `sightline baseline lead sumpubmed/transformer-ed --sentences 8`
    - `sightline baseline oracle runs/transformer-ed --on test --out runs/oracle`
    - `sightline compare runs/transformer-ed runs/lead-8 runs/oracle --metrics rouge-1,rouge-2,rouge-l`
    """
    from sightline.comparison.baselines import write_baseline
    from sightline.training.resolve import open_recipe

    if kind not in ("lead", "oracle"):
        raise ValueError(f"there is no baseline {kind!r}; use lead or oracle")
    loaded, _ = open_recipe(recipe, overrides or [])
    count = sentences or (3 if kind == "lead" else None)
    folder = out or Path("runs") / (kind if count is None else f"{kind}-{count}")
    tests = [on] if on is not None else list(loaded.data.tests) or ["validation"]
    for report in write_baseline(kind, loaded, tests, folder, count=count):  # type: ignore[arg-type]
        print(f"{report.on}: {plural(report.sentences, 'text')}, {folder.name}")
        for found in report.scores:
            print(f"  {found}  {found.signature}")
    print(f"wrote {folder}", file=sys.stderr)
