"""`sightline compare`: which run is better, by how much, is it luck, and what does it cost?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, two or more.", metavar="RUN RUN...")],
    on: Annotated[
        str | None, typer.Option(help="A test set of the recipes, or `validation`; by default the first all have.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="A file of source lines, instead of a test set.")] = None,
    reference: Annotated[Path | None, typer.Option(help="The file of right answers, line by line.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The run that others are held against; by default the first.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="Instead of the recipes', e.g. bleu,chrf,ter.")] = None,
    lowercase: Annotated[
        bool | None, typer.Option("--lowercase/--no-lowercase", help="Score in lower case, or not.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="One beam for all; by default each recipe's own.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write everything there, as one page.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables there.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the table there, to be \\input.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the numbers there, a line for each system.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything there, outputs too.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw learning curves and quality against cost: .png, .svg or .pdf.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Compare runs on one test set: which is better, by how much, is it luck, and what does it cost?

    Runs that differ only in their seed are one system, shown as mean and deviation.

    Examples:

    - `sightline compare runs/lstm runs/transformer`
    - `sightline compare runs/* --on test_2016 --baseline runs/lstm --html comparison.html`
    - `sightline compare runs/a runs/b --source my.de --reference my.en --metrics bleu,chrf --latex table.tex`
    """
    from sightline.comparison import compare as compare_runs
    from sightline.comparison import print_comparison
    from sightline.comparison.exports import WRITERS
    from sightline.comparison.figures import check_figure, write_figure
    from sightline.comparison.progress import shown
    from sightline.comparison.test_sets import from_files
    from sightline.files import write_atomically

    if (source is None) != (reference is None):
        raise ValueError("--source and --reference go together: give both, or neither")
    if on is not None and source is not None:
        raise ValueError("--on and --source name two test sets; give one of them")
    files = {"html": html, "markdown": markdown, "latex": latex, "csv": csv, "json": json}
    wanted = [path for path in (*files.values(), figure) if path is not None]
    for path in wanted:  # better known before the work than after it
        if not path.absolute().parent.is_dir():
            raise ValueError(f"{path} cannot be written: there is no folder {path.absolute().parent}; make it first")
    if figure is not None:
        check_figure(figure)
    with shown() as progress:
        comparison = compare_runs(
            runs,
            on=from_files(source, reference) if source is not None and reference is not None else on,
            baseline=baseline,
            metrics=None if metrics is None else [name.strip() for name in metrics.split(",")],
            lowercase=lowercase,
            beam=beam,
            device=device,
            progress=progress,
        )
        for number, (form, place) in enumerate(files.items()):
            if place is not None:
                progress(f"writing {place.name}", number, len(files) + 1)
                write_atomically(place, WRITERS[form](comparison))
        if figure is not None:
            progress(f"drawing {figure.name}", len(files), len(files) + 1)
            write_figure(comparison, figure)
    print_comparison(comparison)
    for path in wanted:
        typer.echo(f"wrote {path}", err=True)
