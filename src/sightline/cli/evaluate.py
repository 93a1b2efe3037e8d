"""`sightline evaluate`: scores with signatures and intervals."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.commands import Flag
from sightline.cli.lines import print_notes
from sightline.cli.options import (
    Beam,
    Metrics,
    Models,
    Overrides,
    RunFolder,
    change_run,
    check_files,
    check_search,
    decoding_flags,
    refuse,
)
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.evaluation.labels import Confusion
    from sightline.evaluation.test_set import Report, TestSet
    from sightline.recipe import Decoding, Recipe, TaskSpec
    from sightline.run import Run

_LARGEST_MATRIX = 12  # labels; of more, only the most frequent confusions are printed
_MISTAKES = 10


@dataclass(frozen=True)
class Tests:
    """What a run is scored on."""

    on: Annotated[
        str | None, typer.Option(metavar="NAME", help="A test set of the recipe, or validation; default: all tests.")
    ] = None
    source: Annotated[Path | None, typer.Option(metavar="FILE", help="Source lines, instead of a test set.")] = None
    reference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Reference lines; alone: a text, or a tagged file."),
    ] = None

    def load(self, run: Run) -> list[TestSet]:
        """The files, or the test sets of the recipe."""
        from sightline.evaluation.test_set import from_files

        if self.source is None and self.reference is None:
            names = [self.on] if self.on else list(run.recipe.data.tests) or ["validation"]
            return [run.test_set(name) for name in names]
        if self.on is not None:
            raise ValueError("--on and --source or --reference name two test sets; give one of them")
        return [from_files(self.source, self.reference, run.recipe)]


@dataclass(frozen=True)
class Files:
    """The files to write."""

    outputs: Annotated[
        Path | None, typer.Option("--out", "-o", "--outputs", metavar="FILE", help="Write the outputs there.")
    ] = None
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the scores there.")] = None
    confusion: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the confusion matrix of labels (.png, .svg or .pdf).")
    ] = None

    def check(self, tests: Tests, task: TaskSpec) -> None:
        """Refuse files that cannot be written, before anything is computed."""
        from sightline.files import check_writable

        places = {"--outputs": self.outputs, "--json": self.json_file, "--confusion": self.confusion}
        for path in filter(None, places.values()):
            check_writable(path)
        check_files(places, {"--source": tests.source, "--reference": tests.reference})
        if self.confusion is not None:
            _check_confusion(self.confusion, task)


def evaluate(
    run: RunFolder,
    *,
    overrides: Overrides = None,
    tests: Tests,
    metrics: Metrics = None,
    beam: Beam = None,
    files: Files,
    models: Models,
) -> None:
    """Score a run: each metric with its signature and 95% interval.

    Nothing is decoded where no metric needs outputs (--metrics perplexity), unless --outputs asks for them.
    To score word alignments by manual links, see sightline align --gold.

    Examples:
      sightline evaluate runs/dates
      sightline evaluate runs/en-de --on test_2016 --beam 5 decoding.length_penalty=0.8
      sightline evaluate runs/en-de --with runs/en-de-2 --metrics bleu,chrf,ter
      sightline evaluate runs/en-de --source my.en --reference my.de -o my.out
      sightline evaluate runs/sst2 --confusion confusion.png
    """
    loaded, written = change_run(models.load(run), [*(overrides or ()), *_flags(metrics, beam)])
    recipe, options = loaded.recipe, loaded.recipe.decoding
    search = check_search(recipe, written)
    if recipe.of_text:
        refuse(search, "sets the search for outputs, and a model of text is scored on the text itself; leave it out")
    files.check(tests, recipe.task_spec)
    _check_metrics(loaded, written, search, files.outputs)
    test_sets = tests.load(loaded)
    _announce_tokenization(loaded, test_sets)
    reports = []
    for test in test_sets:
        reports.append(_evaluated(loaded, test, options, keep_outputs=files.outputs is not None))
        _print_report(reports[-1], loaded, options)
        print_notes([f"{test.name}: {note}" for note in reports[-1].notes])
    decoded = any(report.outputs for report in reports)
    if decoded and (note := _other_search(recipe, options)):
        print_notes([note])
    settings: dict[str, Any] = {"run": str(run), "precision": loaded.precision}
    if models.others:
        settings |= {"with": [str(other) for other in models.others], "ensemble_mean": models.ensemble_mean}
    if recipe.task_spec.maps_text and decoded:
        settings["decoding"] = options.model_dump(mode="json")
    _write(reports, settings, files.outputs, files.json_file)
    if files.confusion is not None:
        _draw(reports, files.confusion, run)


def _flags(metrics: str | None, beam: int | None) -> list[str]:
    """Flags that set recipe keys, as overrides."""
    flags = decoding_flags(beam=beam)
    if metrics is not None:
        names = list(dict.fromkeys(name.strip() for name in metrics.split(",")))
        flags.append(Flag("evaluation.metrics", json.dumps(names), "--metrics"))
    return flags


def _check_metrics(run: Run, written: Mapping[str, str], search: Mapping[str, bool], outputs: Path | None) -> None:
    """Refuse metrics of other tasks, and settings that no metric uses."""
    from sightline.evaluation.metrics import check_output_options
    from sightline.text.bleu_tokenizers import check_tokenizer

    section = run.recipe.evaluation
    lowercase = {written["evaluation.lowercase"]: section.lowercase} if "evaluation.lowercase" in written else {}
    for name in section.metrics:
        run.check_metric(name)
    if run.recipe.of_text:
        why = "a model of text is measured by the text itself and writes none; leave it out"
        refuse({"--outputs:": outputs, **{f"{word}:": value for word, value in lowercase.items()}}, why)
        return
    if "bleu" in section.metrics:
        check_tokenizer(section.bleu_tokenize)
    for key, metric in (("bleu_tokenize", "bleu"), ("chrf_word_order", "chrf")):
        if (word := written.get(f"evaluation.{key}")) is not None and metric not in section.metrics:
            raise ValueError(f"{word} is for {metric}, which is not scored; leave it out, or add --metrics {metric}")
    check_output_options(section.metrics, lowercase | (dict(search) if outputs is None else {}))


def _write(reports: Sequence[Report], settings: dict[str, Any], outputs: Path | None, json_file: Path | None) -> None:
    """Write the outputs of each test set, and the scores with the settings that gave them."""
    from sightline.files import write_atomically, write_json

    if outputs is not None:
        for report in reports:
            place = _place(outputs, report, reports)
            write_atomically(place, "".join(line + "\n" for line in report.outputs))
            print(f"wrote {place}", file=sys.stderr)
    if json_file is not None:
        write_json(json_file, [{**settings, **report.to_dict()} for report in reports], indent=2)
        print(f"wrote {json_file}", file=sys.stderr)


def _place(path: Path, report: Report, reports: Sequence[Report]) -> Path:
    """The file of a test set; of several, each file name ends with the name of its set."""
    return path if len(reports) == 1 else path.with_stem(f"{path.stem}-{report.on}")


def _announce_tokenization(run: Run, tests: Sequence[TestSet]) -> None:
    """Report each tokenization of BLEU that the script of the references chose, once."""
    from sightline.text.bleu_tokenizers import tokenization_note

    section = run.recipe.evaluation
    notes = (tokenization_note(section, (text for many in test.references for text in many)) for test in tests)
    for note in dict.fromkeys(filter(None, notes)):
        print(f"sightline: {note}", file=sys.stderr)


def _other_search(recipe: Recipe, options: Decoding) -> str | None:
    """A note where validations during training decoded by another search than this evaluation."""
    from sightline.evaluation.metrics import needs_outputs

    stopping, metric = recipe.training.stopping, recipe.evaluation.metrics[0]
    if not recipe.task_spec.maps_text or stopping.monitor != "metric" or not needs_outputs(metric):
        return None
    if options.sample is None and options.mbr is None and (options.beam, options.groups) == (stopping.beam, 1):
        return None
    search = "greedy search" if stopping.beam == 1 else f"beam {stopping.beam}"
    chose = ", which chose the checkpoint," if recipe.training.result == "best" else ""
    return (
        f"validations during training{chose} decoded by {search} (training.stopping.beam: {stopping.beam}) and these "
        f"scores are of {describe_search(options)}, so validation scores of the training log are not comparable"
    )


def describe_search(options: Decoding) -> str:
    """`beam 5, length normalization gnmt 0.6`: the settings that differ from the defaults."""
    search = f"beam {options.beam}"
    if options.sample is not None:
        search = "drawn"
    elif options.groups > 1:
        search += f" in {options.groups} groups"
    if options.mbr is not None:
        search += f", least risk of {options.mbr.candidates} by {options.mbr.utility}"
        search += "" if options.mbr.weights == "uniform" else " and probability"
    ranked = options.sample is None and options.beam > 1  # of one hypothesis there is nothing to rank
    rest = {
        f"length normalization {options.length_normalization} {options.length_penalty:g}": ranked
        and (options.length_normalization, options.length_penalty) != ("length", 1),
        f"coverage penalty {options.coverage_penalty:g}": ranked and options.coverage_penalty,
        f"stopping {options.stopping}": ranked and options.stopping != "horizon",
        f"patience {options.patience}": ranked and options.patience is not None,
        f"no {plural(options.no_repeat, 'token')} twice": options.no_repeat,
        f"at least {plural(options.min_length, 'token')}": options.min_length,
        f"{plural(len(options.forbid), 'phrase')} forbidden": options.forbid,
        f"unknown words replaced ({options.replace_unknown})": options.replace_unknown != "none",
    }
    return ", ".join([search, *(text for text, applies in rest.items() if applies)])


def _evaluated(run: Run, test: TestSet, options: Decoding, *, keep_outputs: bool) -> Report:
    """Evaluate one test set; errors name it."""
    from sightline.cli.lines import InputLength
    from sightline.progress import shown

    if not run.recipe.of_text:
        InputLength.of(run, None).check(test.sources, test.name)
    try:
        with shown() as progress:
            return run.evaluate(test, options, keep_outputs=keep_outputs, progress=progress)
    except ValueError as error:
        raise ValueError(f"{test.name}: {error}") from error


def _print_report(report: Report, run: Run, options: Decoding) -> None:
    print(f"{report.on}: {', '.join(_heading(report, run, options))}")
    if report.unlearned and report.confusion is not None:
        every, verb = plural(int(report.confusion.counts.sum()), "label"), "is" if report.unlearned == 1 else "are"
        print(f"  {report.unlearned:,} of {every} {verb} none the model knows, so never right")
    for score in report.scores:
        print(f"  {score}  {score.signature}")
    if report.confusion is not None:
        print()
        _print_confusion(report.confusion, "words" if run.recipe.task_spec.labels == "words" else "texts")


def _heading(report: Report, run: Run, options: Decoding) -> Iterator[str]:
    """The size of the test set, the models, and the search."""
    task = run.recipe.task_spec
    yield _size(report, task)
    if report.validated is not None:
        yield f"validations in training saw but the first {plural(report.validated, 'example')} (data.validation_limit)"
    if task.maps_text and report.unknown:
        yield f"{plural(report.unknown, 'token')} of the references unknown (<unk>, which is what perplexity counts)"
    if run.members:
        yield f"ensemble of {plural(len(run.members), 'run')}"
    if task.maps_text and report.outputs:
        yield describe_search(options)
    if run.precision != "float32":
        yield f"products in {run.precision}"
    if task.maps_text and report.cut:
        yield f"{plural(report.cut, 'source')} cut short (data.clean.truncate_source)"


def _size(report: Report, task: TaskSpec) -> str:
    if report.tokens is not None:
        unknown = f", {report.unknown:,} of them unknown (<unk>)" if report.unknown else ""
        return plural(report.tokens, "token") + unknown
    if task.labels == "words" and report.confusion is not None:
        return f"{plural(report.sentences, 'sentence')}, {plural(int(report.confusion.counts.sum()), 'word')}"
    return plural(report.sentences, "sentence" if task.maps_text else "text")


def _print_confusion(confusion: Confusion, items: str) -> None:
    """Print the whole matrix, or of many labels only the most frequent confusions."""
    from sightline.plots.confusion import TerminalConfusion, confusion_text

    if len(confusion.labels) > _LARGEST_MATRIX:
        mistakes = confusion.mistakes(_MISTAKES)
        if not mistakes:
            print(f"no confusions among {len(confusion.labels)} labels")
            return
        print(f"most frequent confusions of {len(confusion.labels)} labels ({items}):")
        support = dict(zip(confusion.labels, confusion.support.tolist(), strict=True))
        for right, predicted, count in mistakes:
            print(f"  {count:>7,}  {right} → {predicted}  ({100 * count / support[right]:.1f}% of {right})")
    elif sys.stdout.isatty():
        from sightline.terminal import console

        console().print(TerminalConfusion(confusion))
    else:
        print(confusion_text(confusion), end="")


def _check_confusion(path: Path, task: TaskSpec) -> None:
    """Refuse a confusion matrix before anything is computed."""
    from sightline.plots.figures import check_figure

    if task.labels in ("none", "several"):
        raise ValueError(f"--confusion is for classifiers and taggers, whose labels can be confused, not {task}")
    check_figure(path)


def _draw(reports: list[Report], path: Path, run: Path) -> None:
    """Draw a confusion matrix for each test set."""
    from sightline.plots.confusion import draw_confusion

    for report in reports:
        place = _place(path, report, reports)
        if report.confusion is not None:
            draw_confusion(report.confusion, place, title=f"{run.name} on {report.on}")
            print(f"wrote {place}", file=sys.stderr)
