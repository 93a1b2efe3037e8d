"""`sightline evaluate`: scores with signatures and intervals."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.align import Symmetrize
from sightline.cli.lines import tell
from sightline.cli.options import BleuTokenize, ChrfWordOrder, Device, Precision
from sightline.cli.searching import (
    Beam,
    Diversity,
    EnsembleMean,
    ForbidEverywhere,
    Groups,
    LengthPenalty,
    MaxLength,
    MaxRatio,
    Mbr,
    MbrWeights,
    MinLength,
    NoRepeat,
    ReplaceUnknown,
    Utility,
    With,
    as_options,
    check_apart,
    check_decoded,
    check_searching,
    load_together,
    refuse,
    searched,
    searching,
)
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.evaluation.labels import Confusion
    from sightline.evaluation.test_set import Report, TestSet
    from sightline.recipe import Decoding, Recipe, TaskSpec
    from sightline.run import Run

_LARGEST_MATRIX = 12  # labels; of more, only what is confused most is printed
_MISTAKES = 10


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    on: Annotated[
        str | None, typer.Option(help="A test set of the recipe, or `validation`; by default every test.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="A file of source lines, instead of a test set.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="The file of right answers, line by line; alone, for language models the text, and for taggers a "
            "CoNLL-U or column file like those they learned from."
        ),
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="Instead of the recipe's, e.g. bleu,chrf,ter.")] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    max_ratio: MaxRatio = None,
    replace_unknown: ReplaceUnknown = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Score in lower case.")] = False,
    bleu_tokenize: BleuTokenize = None,
    chrf_word_order: ChrfWordOrder = None,
    outputs: Annotated[
        Path | None, typer.Option(help="Write the outputs there, one a line; of several test sets, a file of each.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the scores there.")] = None,
    confusion: Annotated[
        Path | None, typer.Option(help="Classifiers and taggers: draw what is taken for what (.png, .svg or .pdf).")
    ] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(help="Links of words by people (0-0 1-2, a line a pair): score the attention by them."),
    ] = None,
    alignment_heads: Annotated[
        str | None, typer.Option(help="With --alignments: heads or layers to read, e.g. decoder.2.cross.1.")
    ] = None,
    shift: Annotated[
        bool, typer.Option("--shift", help="With --alignments: align each word where it is read, not written.")
    ] = False,
    reverse: Annotated[
        Path | None, typer.Option(help="With --alignments: a run for the other direction, to symmetrize with.")
    ] = None,
    symmetrize: Symmetrize = None,
    swap_alignments: Annotated[
        bool, typer.Option("--swap-alignments", help="The links of the file stand target-source.")
    ] = False,
    recase: Annotated[
        bool, typer.Option("--recase", help="With --alignments: write lowercased text as the training text does.")
    ] = False,
    others: With = None,
    ensemble_mean: EnsembleMean = "probabilities",
    groups: Groups = None,
    diversity: Diversity = None,
    mbr: Mbr = None,
    utility: Utility = None,
    mbr_weights: MbrWeights = None,
    no_repeat: NoRepeat = None,
    min_length: MinLength = None,
    forbid_everywhere: ForbidEverywhere = None,
    device: Device = "auto",
    precision: Precision = "float32",
) -> None:
    """Score a run, each metric with its signature and 95% interval.

    For classifiers and taggers it also shows which labels are taken for which.

    With --alignments it is the attention that is scored, by AER, precision and recall: --source and --reference are
    then tokenized, and links are between their tokens. The model is given the text without spaces before punctuation
    (and with --recase in the case it knows); pieces and tokens are matched letter by letter.

    Long sources cost most: --beam 1 spares time, a smaller decoding.batch_tokens in the run's recipe.yaml memory. Where
    no metric looks at outputs (--metrics perplexity), nothing is decoded, unless --outputs asks for it.

    Examples:

    - `sightline evaluate runs/dates`
    - `sightline evaluate runs/en-de --on test_2016 --beam 5`
    - `sightline evaluate runs/en-de --with runs/en-de-2 --with runs/lstm-en-de`
    - `sightline evaluate runs/en-de --mbr 32 --utility bleu`
    - `sightline evaluate runs/en-de --source my.en --reference my.de --metrics bleu,chrf,ter`
    - `sightline evaluate runs/de-en --source wa.de --reference wa.en --alignments de-en.wa --shift --recase`
    - `sightline evaluate runs/sst2 --confusion confusion.png`
    - `sightline evaluate runs/ewt --reference other.conllu`
    - `sightline evaluate runs/shakespeare --reference hamlet.txt`
    """
    from sightline.files import check_writable

    loaded = load_together(run, others, ensemble_mean, device, precision)
    how = searching(
        loaded,
        mbr,
        utility,
        mbr_weights,
        forbid_everywhere,
        groups=groups,
        diversity=diversity,
        no_repeat=no_repeat,
        min_length=min_length,
    )
    limits = {"max_length": max_length, "max_ratio": max_ratio}
    changes = {"beam": beam, "length_penalty": length_penalty, **limits, "replace_unknown": replace_unknown, **how}
    search = as_options(changes)
    check_searching(loaded.recipe, changes, None)
    if loaded.recipe.of_text:
        refuse(search, "says how outputs are found, and a model of text is measured by the text itself; leave it out")
    places = {"--outputs": outputs, "--json": json_file, "--confusion": confusion}
    for path in filter(None, places.values()):
        check_writable(path)
    check_apart(places, {"--source": source, "--reference": reference, "--alignments": alignments})
    spec = loaded.recipe.task_spec
    if alignments is not None:
        from sightline.cli.align import Directions, GoldFiles, load_reverse, looking, report_alignments, symmetry

        if source is None or reference is None:
            raise ValueError("--alignments links the words of two files; give them as --source and --reference")
        of_outputs = {"--on": on, "--metrics": metrics, "--lowercase": lowercase, "--confusion": confusion}
        refuse(of_outputs | search, "is about outputs, and --alignments scores the attention; leave one of them out")
        gold = GoldFiles(source, reference, alignments, swap_alignments, recase)
        way = symmetry(symmetrize, reverse)
        other = load_reverse(reverse, loaded)
        how_read = looking(alignment_heads, shift)
        who = Directions(loaded, how_read, way, other, how_read)
        report_alignments(gold, who, outputs=outputs, json_file=json_file)
        return
    of_links = {"--alignment-heads": alignment_heads, "--shift": shift, "--reverse": reverse}
    of_links |= {"--symmetrize": symmetrize, "--swap-alignments": swap_alignments, "--recase": recase}
    refuse(of_links, "says how word alignments are scored; add --alignments FILE, or leave it out")
    for option, value in (("--outputs", outputs), ("--lowercase", lowercase)):
        if loaded.recipe.of_text and value:
            raise ValueError(f"{option}: a model of text is measured by the text itself and writes none; leave it out")
    if confusion is not None:
        _check_confusion(confusion, spec)
    _measure_by(loaded, metrics, lowercase, {"bleu_tokenize": bleu_tokenize, "chrf_word_order": chrf_word_order})
    check_decoded(loaded, search, lowercase=lowercase, outputs=outputs)
    tests = _tests(loaded, on, source, reference)
    _announce_tokenization(loaded, tests)
    options = loaded.options(**changes)
    reports = []
    for test in tests:
        reports.append(_evaluated(loaded, test, options, keep_outputs=outputs is not None))
        _print_report(reports[-1], loaded, options)
        tell([f"{test.name}: {note}" for note in reports[-1].notes])
    if any(report.outputs for report in reports) and (note := _other_search(loaded.recipe, options)):
        tell([note])
    told = {
        "run": str(run),
        "precision": loaded.precision,
        **_together(others, ensemble_mean),
        **_decoded(reports, spec, options),
    }
    _write(reports, told, outputs, json_file)
    if confusion is not None:
        _draw(reports, confusion, run)


def _write(reports: Sequence[Report], told: dict[str, Any], outputs: Path | None, json_file: Path | None) -> None:
    """The outputs of each test set, and all scores beside what is `told` of how they came about."""
    from sightline.files import write_atomically, write_json

    if outputs is not None:
        for report in reports:
            place = _place(outputs, report, reports)
            write_atomically(place, "".join(line + "\n" for line in report.outputs))
            print(f"wrote {place}", file=sys.stderr)
    if json_file is not None:
        write_json(json_file, [{**told, **report.to_dict()} for report in reports], indent=2)
        print(f"wrote {json_file}", file=sys.stderr)


def _place(path: Path, report: Report, reports: Sequence[Report]) -> Path:
    """The file of a test set: of several, each bears the name of its own."""
    return path if len(reports) == 1 else path.with_stem(f"{path.stem}-{report.on}")


def _measure_by(run: Run, metrics: str | None, lowercase: bool, ngrams: dict[str, Any]) -> None:
    """Let the run be measured in another way than its recipe says, if that can be."""
    from sightline.recipe import Evaluation
    from sightline.text.bleu_tokenizers import check_tokenizer

    section = run.recipe.evaluation
    changed: dict[str, Any] = {"lowercase": lowercase or section.lowercase}
    changed |= {key: value for key, value in ngrams.items() if value is not None}
    if metrics is not None:
        changed["metrics"] = tuple(dict.fromkeys(name.strip() for name in metrics.split(",")))
    evaluation = Evaluation.model_validate({**section.model_dump(), **changed})
    run.recipe = run.recipe.model_copy(update={"evaluation": evaluation})
    for name in evaluation.metrics:
        run.check_metric(name)
    if "bleu" in evaluation.metrics:
        check_tokenizer(evaluation.bleu_tokenize)
    for key, metric in (("bleu_tokenize", "bleu"), ("chrf_word_order", "chrf")):
        if ngrams[key] is not None and metric not in evaluation.metrics:
            option = f"--{key.replace('_', '-')}"
            raise ValueError(f"{option} is for {metric}, which is not scored; leave it out, or add --metrics {metric}")


def _announce_tokenization(run: Run, tests: Sequence[TestSet]) -> None:
    """On standard error, each tokenization of BLEU that the script of the references chose, once."""
    from sightline.text.bleu_tokenizers import tokenization_note

    section = run.recipe.evaluation
    notes = (tokenization_note(section, (text for many in test.references for text in many)) for test in tests)
    for note in dict.fromkeys(filter(None, notes)):
        print(f"sightline: {note}", file=sys.stderr)


def _together(others: Sequence[Path] | None, mean: str) -> dict[str, Any]:
    """The other runs of an ensemble, and how they were averaged, for JSON."""
    return {"with": [str(other) for other in others], "ensemble_mean": mean} if others else {}


def _decoded(reports: Sequence[Report], task: TaskSpec, options: Decoding) -> dict[str, Any]:
    """All that was in force when outputs were searched for, for JSON; nothing where none were."""
    searched_for = task.maps_text and any(report.outputs for report in reports)
    return {"decoding": options.model_dump(mode="json")} if searched_for else {}


def _other_search(recipe: Recipe, options: Decoding) -> str | None:
    """That validations during training decoded by another search than this evaluation, where they did."""
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
        f"scores are of {searched(options)}, so validation scores of the training log are not comparable"
    )


def _tests(run: Run, on: str | None, source: Path | None, reference: Path | None) -> list[TestSet]:
    """The files given, or the test sets of the recipe."""
    if source is None and reference is None:
        return [run.test_set(name) for name in ([on] if on else list(run.recipe.data.tests) or ["validation"])]
    if on is not None:
        raise ValueError("--on and --source or --reference name two test sets; give one of them")
    from sightline.evaluation.test_set import from_files

    return [from_files(source, reference, run.recipe)]


def _evaluated(run: Run, test: TestSet, options: Decoding, *, keep_outputs: bool) -> Report:
    """How the run does on a test set; what it cannot do is told with the name of the set."""
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
    for found in report.scores:
        print(f"  {found}  {found.signature}")
    if report.confusion is not None:
        print()
        _print_confusion(report.confusion, "words" if run.recipe.task_spec.labels == "words" else "texts")


def _heading(report: Report, run: Run, options: Decoding) -> Iterator[str]:
    """What was measured, by how many models, and how outputs were found where that can be chosen."""
    task = run.recipe.task_spec
    yield _size(report, task)
    if report.validated is not None:
        yield f"validations in training saw but the first {plural(report.validated, 'example')} (data.validation_limit)"
    if task.maps_text and report.unknown:
        yield f"{plural(report.unknown, 'token')} of the references unknown (<unk>, which is what perplexity counts)"
    if run.members:
        yield f"ensemble of {plural(len(run.members), 'run')}"
    if task.maps_text and report.outputs:
        yield searched(options)
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
    """The whole matrix, or of many labels only what goes wrong most."""
    from sightline.plots.confusion import TerminalConfusion, confusion_text

    if len(confusion.labels) > _LARGEST_MATRIX:
        found = confusion.mistakes(_MISTAKES)
        if not found:
            print(f"no label of {len(confusion.labels)} is taken for another")
            return
        print(f"what is taken for what most often, of {len(confusion.labels)} labels ({items}):")
        support = dict(zip(confusion.labels, confusion.support.tolist(), strict=True))
        for right, given, count in found:
            print(f"  {count:>7,}  {right} → {given}  ({100 * count / support[right]:.1f}% of {right})")
    elif sys.stdout.isatty():
        from sightline.terminal import console

        console().print(TerminalConfusion(confusion))
    else:
        print(confusion_text(confusion), end="")


def _check_confusion(path: Path, task: TaskSpec) -> None:
    """Better known before the work than after it."""
    from sightline.plots.figures import check_figure

    if task.labels == "none":
        raise ValueError(f"--confusion is for classifiers and taggers, whose labels can be confused, not {task}")
    check_figure(path)


def _draw(reports: list[Report], path: Path, run: Path) -> None:
    """A picture for each test set."""
    from sightline.plots.confusion import draw_confusion

    for report in reports:
        place = _place(path, report, reports)
        if report.confusion is not None:
            draw_confusion(report.confusion, place, title=f"{run.name} on {report.on}")
            print(f"wrote {place}", file=sys.stderr)
