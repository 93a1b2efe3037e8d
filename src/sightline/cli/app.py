"""All commands, grouped as `sightline --help` shows them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sightline.cli import data, recipes, runs
from sightline.cli.align import align
from sightline.cli.augment import backtranslate, distill
from sightline.cli.commands import SETTINGS, add
from sightline.cli.compare import baseline, compare
from sightline.cli.demo import demo
from sightline.cli.doctor import doctor
from sightline.cli.embed import embed
from sightline.cli.evaluate import evaluate
from sightline.cli.inspect import inspect
from sightline.cli.predict import predict
from sightline.cli.sweep import sweep
from sightline.cli.train import train

PANELS: dict[str, tuple[Callable[..., Any] | typer.Typer, ...]] = {
    "Train": (train, sweep, distill, backtranslate),
    "Use": (predict, evaluate, embed, align),
    "Inspect and compare": (inspect, compare, baseline),
    "Data and setup": (data.app, recipes.app, runs.app, doctor, demo),
}
# Flags of `evaluate --alignments` in earlier versions and those of `align` that replaced them.
_ALIGN = {
    "--alignments": "--gold",
    "--reference": "--target",
    "--outputs": "--out",
    "--alignment-heads": "--heads",
    "--swap-alignments": "--swap",
}


class RootGroup(TyperGroup):
    """All commands, in the order of `PANELS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace `evaluate … --alignments LINKS` of earlier versions by `align … --gold LINKS`."""
        if args[:1] == ["evaluate"] and "--alignments" in args:
            print("sightline: evaluate --alignments is deprecated; write sightline align --gold", file=sys.stderr)
            args = ["align", *(_ALIGN.get(word, word) for word in args[1:])]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in this order, then hidden ones."""
        shown = [command for commands in PANELS.values() for command in commands]
        ordered = [str(each.info.name) if isinstance(each, typer.Typer) else each.__name__ for each in shown]
        return ordered + [name for name in self.commands if name not in ordered]


app = typer.Typer(
    name="sightline",
    cls=RootGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    add_completion=False,
    context_settings=SETTINGS,
    epilog="Exit codes: 0 success, 1 failure, 2 usage, 70 internal error (a bug), 130 interrupted.",
)
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            add(app, command, rich_help_panel=panel)
for function in (runs.average, runs.merge, runs.seal, recipes.schema):  # names of earlier versions
    add(app, function, hidden=True)


def _print_version(value: bool) -> None:
    if value:
        from sightline.registry import version

        print(version())
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show tracebacks (SIGHTLINE_DEBUG=1).")] = False,
) -> None:
    """Train, compare and inspect sequence-to-sequence models.

    Try `sightline train dates`, then `echo "3. März 2015" | sightline predict runs/dates`.
    """
