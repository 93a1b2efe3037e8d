"""Which verbs there are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import typer

from sightline.cli import data
from sightline.cli.align import align
from sightline.cli.augment import backtranslate, distill
from sightline.cli.compare import baseline, compare
from sightline.cli.demo import demo
from sightline.cli.doctor import doctor
from sightline.cli.embed import embed
from sightline.cli.evaluate import evaluate
from sightline.cli.inspect import inspect
from sightline.cli.options import check_numbers
from sightline.cli.predict import predict
from sightline.cli.recipes import recipes, schema
from sightline.cli.runs import average, merge, seal
from sightline.cli.sweep import sweep
from sightline.cli.train import train
from sightline.terminal import printable_output

app = typer.Typer(
    name="sightline",
    help="Sequence-to-sequence models you can train, compare and see into.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 failure or bad input, 2 usage, 70 internal error (a bug), 130 interrupted.",
)


def _command(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as a command of the app: what it prints for people has no control characters; `predict` prints data."""

    @functools.wraps(verb)
    def run(*args: Any, **options: Any) -> None:
        with printable_output(stdout=verb is not predict):
            check_numbers(options)
            try:
                verb(*args, **options)
            except EOFError as error:  # typer takes it for a prompt that nobody answered, and prints "Aborted!"
                raise OSError(f"unexpected end of file: {error}") from error

    return run


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
    distill,
    backtranslate,
    merge,
    average,
    seal,
    schema,
    doctor,
    demo,
):
    app.command()(_command(verb))

corpora = typer.Typer(
    name="data",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
corpora.callback()(data.about)
corpora.command("list")(_command(data.list_corpora))
corpora.command("get")(_command(data.get))
corpora.command("check")(_command(data.check))
app.add_typer(corpora)


def _print_version(wanted: bool) -> None:
    if wanted:
        from sightline.registry import version

        print(version())
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show tracebacks; anywhere on the line, or SIGHTLINE_DEBUG=1."),
    ] = False,
) -> None:
    """Sequence-to-sequence models you can train, compare and see into.

    Try: `sightline train dates`, then `echo "3. März 2015" | sightline predict runs/dates`.
    """
