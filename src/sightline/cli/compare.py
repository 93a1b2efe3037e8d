"""`sightline compare` and `sightline baseline`: which run is better, by how much, and what it costs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.options import BleuTokenize, ChrfWordOrder, Device, Overrides
from sightline.cli.searching import check_apart
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.evaluation.test_set import TestSet


def compare(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Run folders, two or more; that of a sweep stands for its runs, folders with + between them are an "
            "ensemble.",
            metavar="RUN RUN...",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="A test set of the recipes, or `validation`; by default the first all have.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="A file of source lines, instead of a test set.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="The file of right answers, line by line; for language models, the text.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The run that others are held against; by default the first.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="Instead of the recipes', e.g. bleu,chrf,ter.")] = None,
    lowercase: Annotated[
        bool | None, typer.Option("--lowercase/--no-lowercase", help="Score in lower case, or not.")
    ] = None,
    bleu_tokenize: BleuTokenize = None,
    chrf_word_order: ChrfWordOrder = None,
    beam: Annotated[int | None, typer.Option(help="A plain beam for all; by default what each recipe says.")] = None,
    ensemble_mean: Annotated[
        str | None, typer.Option(help="Ensembles average `probabilities`, as by default, or `logs` (log-linear).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write everything there, as one page.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables there.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the table there, to be \\input.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the numbers there, a line for each system.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything there, outputs too.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw learning curves and quality against cost: .png, .svg or .pdf.")
    ] = None,
    saved: Annotated[
        Path | None, typer.Option(help="Instead of runs, the file that --json of an earlier comparison wrote.")
    ] = None,
    texts: Annotated[
        bool, typer.Option("--texts/--no-texts", help="Sources, references and outputs in --json and --html, or not.")
    ] = True,
    device: Device = "auto",
) -> None:
    """Compare runs on one test set: which is better, by how much, is it luck, and what does it cost?

    Runs that differ only in their seed are one system, shown as mean and deviation. `runs/a+runs/b` is the ensemble of
    two, and costs what both cost. All runs must be of one task; language models are compared by the test text itself,
    others by what they make of it. Long sources take long to decode: `--beam 1` spares time, a smaller
    `decoding.batch_tokens` in the runs' recipe.yaml memory; `--metrics perplexity` alone decodes nothing. What `--json`
    wrote can be shown, drawn and written again later (`--saved`), without the runs.

    Examples:

    - `sightline compare runs/lstm runs/transformer`
    - `sightline compare runs/* --on test_2016 --baseline runs/lstm --html comparison.html`
    - `sightline compare runs/a runs/b --source my.de --reference my.en --metrics bleu,chrf --latex table.tex`
    - `sightline compare runs/a runs/b runs/a+runs/b runs/a+runs/b+runs/lstm`
    - `sightline compare runs/sweep-dates --on validation`
    - `sightline compare runs/char-lm runs/bpe-lm --metrics bits-per-character`
    - `sightline compare --saved comparison.json --figure comparison.pdf --no-texts --json numbers.json`
    """
    from sightline.files import check_writable
    from sightline.plots.figures import check_figure
    from sightline.progress import shown

    if saved is not None:
        asked = {"runs": runs, "--on": on, "--source": source, "--reference": reference, "--baseline": baseline}
        how: dict[str, object] = {
            "--metrics": metrics,
            "--lowercase": lowercase,
            "--bleu-tokenize": bleu_tokenize,
            "--chrf-word-order": chrf_word_order,
            "--beam": beam,
            "--ensemble-mean": ensemble_mean,
        }
        _check_unasked(saved, {**asked, **how})
    if on is not None and (source is not None or reference is not None):
        raise ValueError("--on and --source name two test sets; give one of them")
    files = {"html": html, "markdown": markdown, "latex": latex, "csv": csv, "json": json, "figure": figure}
    for path in filter(None, files.values()):
        check_writable(path)
    read = {"--source": source, "--reference": reference, "--saved": saved}
    check_apart({f"--{form}": path for form, path in files.items()}, read)
    if figure is not None:
        check_figure(figure)
    with shown() as progress:  # before what takes seconds to import
        from sightline.comparison import print_comparison, read_comparison
        from sightline.comparison.export import Export

        if saved is not None:
            progress(f"reading {saved.name}", 0, 0)
            comparison = read_comparison(saved)
        else:
            from sightline.comparison import compare as compare_runs

            given = _with_those_of_sweeps(runs or [])
            comparison = compare_runs(
                given,
                on=_own_test_set(given[0], source, reference) if given and (source or reference) else on,
                baseline=baseline,
                metrics=None if metrics is None else [name.strip() for name in metrics.split(",")],
                lowercase=lowercase,
                bleu_tokenize=bleu_tokenize,  # type: ignore[arg-type]
                chrf_word_order=chrf_word_order,
                beam=beam,
                ensemble_mean=ensemble_mean,  # type: ignore[arg-type]
                device=device,
                progress=progress,
            )
        export = Export(comparison if texts else comparison.without_texts())
        for number, (form, place) in enumerate(files.items()):
            if place is not None:
                progress(f"writing {place.name}", number, len(files))
                export.write(form, place)
    print_comparison(comparison)
    for path in export.written:
        print(f"wrote {path}", file=sys.stderr)
    export.finish()


def _check_unasked(saved: Path, asked: dict[str, object]) -> None:
    """Refuse what could be asked of runs alone."""
    if idle := [name for name, value in asked.items() if value is not None]:
        raise ValueError(f"--saved {saved} was compared already, so {', '.join(idle)} can change nothing; leave it out")


def _with_those_of_sweeps(runs: Sequence[Path]) -> list[Path]:
    """The runs, with all that have a model in place of a sweep."""
    from sightline.sweeps.plan import is_sweep, trained_runs

    return [each for run in runs for each in (trained_runs(run) if is_sweep(run) else [run])]


def _own_test_set(run: Path, source: Path | None, reference: Path | None) -> TestSet:
    """The files given, read as the task of the runs wants it."""
    from sightline.comparison.systems import folders_of
    from sightline.evaluation.test_set import from_files
    from sightline.recipe.loading import load_recipe
    from sightline.run_folder import read_config, require_file

    first = folders_of(run)[0]
    read_config(first)
    return from_files(source, reference, load_recipe(require_file(first, "recipe.yaml", "copy the whole run folder")))


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
