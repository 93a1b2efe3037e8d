"""`sightline sweep`: train a recipe with every combination of some overrides, and compare the runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sightline.sweeps.plan import SweepPlan


def sweep(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or a shipped recipe.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE,...", help="Recipe keys and the values to try.")
    ] = None,
    variants: Annotated[
        Path | None,
        typer.Option("--list", metavar="FILE", help="A YAML list of sets of overrides, with names or recipes."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Runs that train at once.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The folder of the runs; default: runs/sweep-NAME."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all combinations and list the runs.")] = False,
    no_compare: Annotated[bool, typer.Option("--no-compare", help="Do not compare the runs at the end.")] = False,
) -> None:
    """Train every combination of some overrides, and compare the runs.

    A run that fails does not stop the others. The same command continues an interrupted sweep; more values add runs.
    A list may hold other recipes, too: - {name: conv, recipe: multi30k/convs2s, training.lr: 1e-3}.

    Examples:
      sightline sweep dates model.decoder.attention.kind=dot,additive seed=1,2,3
      sightline sweep my.yaml "training.schedule={kind: cosine, warmup: 100},{kind: constant}" --jobs 2
      sightline sweep my.yaml --list variants.yaml seed=1,2,3 --out runs/ablation
    """
    import shlex

    from sightline.sweeps.plan import COMPARISON, plan_sweep
    from sightline.sweeps.sweep import compare_runs, run_sweep
    from sightline.training.world import Interrupted

    plan = plan_sweep(recipe, overrides or [], variants=variants, out=out)
    if dry_run:
        _show(plan)
        return
    try:
        result = run_sweep(plan, jobs=jobs, compare=None if no_compare else compare_runs)
    except Interrupted:
        print(f"interrupted; continue with: {shlex.join(['sightline', *sys.argv[1:]])}", file=sys.stderr)
        raise typer.Exit(code=130) from None
    if result.comparison is not None:
        from sightline.comparison import print_comparison

        print_comparison(result.comparison)
        print(f"the comparison, with figures and tables: {result.folder / COMPARISON}", file=sys.stderr)
    if result.failed:
        raise typer.Exit(code=1)


def _show(plan: SweepPlan) -> None:
    from sightline.sweeps.sweep import opening

    for line in opening(plan):
        print(line)
    width = max(len(run.name) for run in plan.runs)
    for run in plan.runs:
        own = [] if run.recipe_name == plan.recipe else [run.recipe_name]
        print(f"  {run.name:<{width}}  {run.state:<8}  {' '.join([*own, *run.overrides])}".rstrip())
