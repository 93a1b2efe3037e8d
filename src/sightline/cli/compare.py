"""`sightline compare` and `sightline baseline`: which run is better, by how much, and what it costs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.options import Device, Metrics, Overrides, check_files, split_overrides
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.comparison.published import PublishedTable
    from sightline.evaluation.test_set import TestSet


def _file(help: str) -> Any:
    return typer.Option(metavar="FILE", help=help)


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN RUN... [KEY=VALUE]...",
        help="Run folders; a sweep's folder for its runs, a+b for an ensemble; then recipe keys to change.",
        show_default=False,
    ),
]
On = Annotated[str | None, typer.Option(metavar="NAME", help="A test set of the recipes, or validation.")]
Source = Annotated[Path | None, _file("Source lines, instead of a test set.")]
Reference = Annotated[Path | None, _file("Reference lines; for language models, the text.")]
Baseline = Annotated[
    str | None, typer.Option(metavar="RUN", help="Compare the other runs with this one; default: the first.")
]
CommonBeam = Annotated[int | None, typer.Option(metavar="N", help="One beam size for all; default: each recipe's.")]
Mean = Annotated[
    str | None, typer.Option(metavar="MEAN", help="Ensembles average probabilities, or logs (log-linear).")
]
Html = Annotated[Path | None, _file("Write everything as one page.")]
Markdown = Annotated[Path | None, _file("Write the tables.")]
Latex = Annotated[Path | None, _file("Write the table, to be \\input.")]
Csv = Annotated[Path | None, _file("Write the numbers, one line per system.")]
Json = Annotated[Path | None, _file("Write everything, with outputs.")]
Figure = Annotated[Path | None, _file("Draw learning curves and quality against cost.")]
Saved = Annotated[Path | None, _file("Show a comparison that --json wrote, without the runs.")]
Published = Annotated[
    str | None,
    typer.Option(metavar="TABLE", help="Add the published table translation or summarization."),
]
Texts = Annotated[bool, typer.Option("--texts/--no-texts", help="Keep texts in --json and --html.", show_default=False)]


def compare(
    words: Words = None,
    on: On = None,
    source: Source = None,
    reference: Reference = None,
    baseline: Baseline = None,
    metrics: Metrics = None,
    beam: CommonBeam = None,
    ensemble_mean: Mean = None,
    html: Html = None,
    markdown: Markdown = None,
    latex: Latex = None,
    csv: Csv = None,
    json: Json = None,
    figure: Figure = None,
    saved: Saved = None,
    published: Published = None,
    texts: Texts = True,
    device: Device = "auto",
) -> None:
    """Compare runs on one test set: scores, significance, cost.

    Runs that differ only in their seed are one system.

    Examples:
      sightline compare runs/lstm runs/transformer
      sightline compare runs/* --on test_2016 --baseline runs/lstm --html comparison.html
      sightline compare runs/a runs/b --source my.de --reference my.en --metrics bleu,chrf --latex table.tex
      sightline compare runs/a runs/b runs/a+runs/b evaluation.lowercase=true --beam 1
      sightline compare --saved comparison.json --figure comparison.pdf --no-texts --json numbers.json
      sightline compare runs/lstm runs/transformer --published translation
    """
    from sightline.progress import shown

    runs, overrides = split_overrides(words or [])
    table = None if published is None else _published(published)
    test = {"--on": on, "--source": source, "--reference": reference, "--baseline": baseline}
    options = {"--metrics": metrics, "--beam": beam, "--ensemble-mean": ensemble_mean}
    changes = {getattr(word, "flag", word): word for word in overrides}
    if saved is not None:
        _refuse_unused(f"--saved {saved} was compared already", {"runs": runs or None, **test, **options, **changes})
    elif table is not None and not runs:
        _refuse_unused("--published alone compares no runs", {**test, **options, **changes})
    if on is not None and (source is not None or reference is not None):
        raise ValueError("--on and --source name two test sets; give one of them")
    files = {"html": html, "markdown": markdown, "latex": latex, "csv": csv, "json": json, "figure": figure}
    _check_outputs(files, {"--source": source, "--reference": reference, "--saved": saved})
    if table is not None and not runs and saved is None:
        _show_published(table, {form: path for form, path in files.items() if path is not None})
        return
    with shown() as progress:  # before what takes seconds to import
        from sightline.comparison import print_comparison, read_comparison
        from sightline.comparison.export import Export

        if saved is not None:
            progress(f"reading {saved.name}", 0, 0)
            comparison = read_comparison(saved)
        else:
            from sightline.comparison import compare as compare_runs

            folders = _expand_sweeps([Path(run) for run in runs])
            own = folders and (source is not None or reference is not None)
            comparison = compare_runs(
                folders,
                on=_own_test_set(folders[0], source, reference) if own else on,
                baseline=baseline,
                beam=beam,
                ensemble_mean=ensemble_mean,  # type: ignore[arg-type]
                device=device,
                progress=progress,
                **_settings(overrides, metrics),
            )
        if table is not None:
            comparison = replace(comparison, published=table)
        export = Export(comparison if texts else comparison.without_texts())
        for number, (form, path) in enumerate(files.items()):
            if path is not None:
                progress(f"writing {path.name}", number, len(files))
                export.write(form, path)
    print_comparison(comparison)
    for path in export.written:
        print(f"wrote {path}", file=sys.stderr)
    export.finish()


def _published(name: str) -> PublishedTable:
    from sightline.comparison.published import published

    return published(name)


def _show_published(table: PublishedTable, files: dict[str, Path]) -> None:
    """Print a published table alone, and write it to files."""
    from sightline.comparison.export import write_published
    from sightline.comparison.terminal import print_published

    written = write_published(table, files)
    print_published(table)
    for path in written:
        print(f"wrote {path}", file=sys.stderr)


def _refuse_unused(reason: str, options: dict[str, object]) -> None:
    """Refuse options that only change how runs are compared."""
    if unused := [name for name, value in options.items() if value is not None]:
        raise ValueError(f"{reason}, so {', '.join(unused)} can change nothing; leave it out")


def _check_outputs(files: dict[str, Path | None], inputs: dict[str, Path | None]) -> None:
    """Refuse, before any decoding, output files that could not be written or would replace an input."""
    from sightline.files import check_writable
    from sightline.plots.figures import check_figure

    for path in filter(None, files.values()):
        check_writable(path)
    check_files({f"--{form}": path for form, path in files.items()}, inputs)
    if (figure := files["figure"]) is not None:
        check_figure(figure)


def _settings(overrides: Sequence[str], metrics: str | None) -> dict[str, Any]:
    """The arguments of `comparison.compare` that overrides and --metrics set."""
    from sightline.recipe.overrides import key_of
    from sightline.recipe.yaml import read_yaml

    known = ("metrics", "lowercase", "bleu_tokenize", "chrf_word_order")
    settings: dict[str, Any] = {"decoding": []}
    for word in overrides:
        section, *key = key_of(word)
        if section == "decoding":
            settings["decoding"].append(word)
        elif section == "evaluation" and len(key) == 1 and key[0] in known:
            settings[key[0]] = read_yaml(word.partition("=")[2], word, at=word).value
        else:
            keys = ", ".join(f"evaluation.{each}" for each in known)
            raise ValueError(f"override {word!r}: a comparison can change decoding.*, {keys}")
    if metrics is not None:
        settings["metrics"] = [name.strip() for name in metrics.split(",")]
    return settings


def _expand_sweeps(runs: Sequence[Path]) -> list[Path]:
    """Replace the folder of a sweep by its runs that have a model."""
    from sightline.sweeps.plan import is_sweep, trained_runs

    return [each for run in runs for each in (trained_runs(run) if is_sweep(run) else [run])]


def _own_test_set(run: Path, source: Path | None, reference: Path | None) -> TestSet:
    """Read --source and --reference for the task of a run."""
    from sightline.comparison.systems import folders_of
    from sightline.evaluation.test_set import from_files
    from sightline.recipe.loading import load_recipe
    from sightline.run_folder import read_config, require_file

    first = folders_of(run)[0]
    read_config(first)
    return from_files(source, reference, load_recipe(require_file(first, "recipe.yaml", "copy the whole run folder")))


def baseline(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="lead: the first sentences; oracle: the best for the reference.")
    ],
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, a shipped recipe or a run folder.")],
    overrides: Overrides = None,
    on: Annotated[
        str | None, typer.Option(metavar="NAME", help="A test set of the recipe, or validation; default: all.")
    ] = None,
    sentences: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Sentences of a lead (default: 3); at most N of an oracle.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The folder to write; default: runs/lead-3, runs/oracle."),
    ] = None,
) -> None:
    """Write and score extractive summaries: the lead, or an oracle.

    lead takes the first sentences of each source. oracle adds the sentence that raises ROUGE-1 + ROUGE-2 against the
    reference most, until none does: about the best that taking whole sentences can reach.

    Examples:
      sightline baseline lead sumpubmed/transformer-ed --sentences 8
      sightline baseline oracle runs/transformer-ed --on test --out runs/oracle
      sightline compare runs/transformer-ed runs/lead-8 runs/oracle --metrics rouge-1,rouge-2,rouge-l
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
        for score in report.scores:
            print(f"  {score}  {score.signature}")
    print(f"wrote {folder}", file=sys.stderr)
