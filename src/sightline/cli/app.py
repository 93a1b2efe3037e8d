"""Which verbs there are."""

from __future__ import annotations

from typing import Annotated

import typer

from sightline.cli.align import align
from sightline.cli.average import average
from sightline.cli.backtranslate import backtranslate
from sightline.cli.baseline import baseline
from sightline.cli.compare import compare
from sightline.cli.demo import demo
from sightline.cli.distill import distill
from sightline.cli.doctor import doctor
from sightline.cli.embed import embed
from sightline.cli.evaluate import evaluate
from sightline.cli.inspect import inspect
from sightline.cli.merge import merge
from sightline.cli.predict import predict
from sightline.cli.schema import recipes, schema
from sightline.cli.sweep import sweep
from sightline.cli.train import train
from sightline.cli.vectors import vectors

app = typer.Typer(
    name="sightline",
    help="Sequence-to-sequence models you can train, compare and see into.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    train,
    sweep,
    predict,
    evaluate,
    inspect,
    compare,
    baseline,
    embed,
    align,
    recipes,
    vectors,
    distill,
    backtranslate,
    merge,
    average,
    schema,
    doctor,
    demo,
):
    app.command()(verb)


def _print_version(wanted: bool) -> None:
    if wanted:
        from sightline.version import version

        print(version())
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Sequence-to-sequence models you can train, compare and see into.

    Try: `sightline train dates`, then `echo "3. März 2015" | sightline predict runs/dates`.
    """
