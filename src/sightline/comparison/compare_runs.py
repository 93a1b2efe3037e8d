"""`compare`: decode a test set with several runs, score them, and test the differences."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import torch

from sightline.comparison.analysis import analyze, analyze_labels, training_frequencies
from sightline.comparison.costs import read_log
from sightline.comparison.notes import run_notes, trained_systems
from sightline.comparison.recipe_differences import recipe_differences
from sightline.comparison.results import (
    NOTHING,
    Analysis,
    ComparisonResult,
    Cost,
    Difference,
    HeldOutSet,
    MetricResult,
    RunResult,
    SystemResult,
)
from sightline.comparison.scoring import (
    Scoring,
    check_text,
    choose_scoring,
    judge,
    measure_run,
    resolve_tokenization,
)
from sightline.comparison.systems import (
    ComparedRun,
    Runs,
    System,
    check_one_task,
    choose_baseline,
    common_test_set,
    group_by_seed,
    load_runs,
)
from sightline.decoding.ensemble import Mean
from sightline.evaluation.measurement import Measurement
from sightline.evaluation.metrics import check_output_options
from sightline.evaluation.test_set import TestSet
from sightline.progress import Progress, silent
from sightline.recipe import MetricName
from sightline.recipe.decoding import BleuTokenizer
from sightline.run_folder import RunError, read_config
from sightline.terminal import plural

_MOST_PARTS = 8
_LEAST_SENTENCES, _LEAST_ON_GPU = 25, 250  # of a part, to fill batches
_WARM_UP = 16  # sentences


def compare(
    runs: Runs,
    *,
    on: str | TestSet | None = None,
    baseline: str | os.PathLike[str] | None = None,
    metrics: Sequence[str] | None = None,
    lowercase: bool | None = None,
    bleu_tokenize: BleuTokenizer | None = None,
    chrf_word_order: int | None = None,
    beam: int | None = None,
    decoding: Sequence[str] = (),
    ensemble_mean: Mean | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> ComparisonResult:
    """Decode one test set with all runs, score them, and test each system against the baseline.

    `runs` are run folders, or a mapping of names to them; a list of folders (or a path "runs/a+runs/b") is an ensemble,
    which averages `probabilities` or, by `ensemble_mean`, `logs`. Runs that differ only in their seed are one system
    (see `Verdict`). `on` is a test set of all recipes, by default their first, or one of your own. `baseline` is by
    default the first run, and `metrics` are those that all recipes have. Runs decode by their recipe (an ensemble by
    its first) with `beam` and the overrides in `decoding` (`decoding.length_penalty=0.6`). Nothing is decoded for
    language models or if no metric needs outputs. Outputs without a model (`sightline baseline`) have no perplexity.
    """
    loaded = load_runs(
        runs, beam=beam, decoding=decoding, mean=ensemble_mean or "probabilities", device=device, progress=progress
    )
    check_one_task(loaded)
    _check_options(loaded, beam, lowercase, ensemble_mean)
    systems, notes = group_by_seed(loaded)
    systems = choose_baseline(systems, baseline)
    loaded = [run for system in systems for run in system.runs]
    test, other_tests = common_test_set(loaded, on)
    tokenization_notes = resolve_tokenization(loaded, test, bleu_tokenize, chrf_word_order)
    scoring = choose_scoring(loaded, metrics, lowercase)
    if "bleu" in scoring.metrics:
        scoring.notes.extend(tokenization_notes)
    check_output_options(scoring.metrics, {"--beam": beam, "evaluation.lowercase": lowercase})
    check_text(loaded, test, scoring)
    of_text = loaded[0].recipe.of_text
    decodes = scoring.needs_outputs and not of_text
    decoded = decode_in_turns(loaded, test.sources, progress) if decodes else {}
    results = _system_results(systems, test, scoring, decoded, progress)
    return ComparisonResult(
        test=HeldOutSet(test.name, len(test.sources), test.pairs, other_tests),
        metrics=scoring.metrics,
        systems=results,
        differences=_recipe_differences(systems),
        where=_analyze(systems[0], test, scoring, results, progress),
        notes=[*notes, *scoring.notes, *run_notes(systems, test, scoring)],
        decoded_on=_device((trained_systems(systems) or systems)[0].runs[0]),
        of_text=of_text,
        sources=test.sources,
        references=test.references,
    )


def _check_options(runs: Sequence[ComparedRun], beam: int | None, lowercase: bool | None, mean: Mean | None) -> None:
    """Refuse options without effect on these runs."""
    recipe = runs[0].recipe
    if beam is not None and (not recipe.task_spec.maps_text or recipe.of_text):
        raise RunError(f"--beam {beam} is for runs that search, and these do not ({recipe.task_spec}); leave it out")
    if lowercase is not None and recipe.of_text:
        raise RunError(
            "evaluation.lowercase applies to outputs, and models of text are scored on the text itself; omit it"
        )
    if mean is not None and not any(each.parts for each in runs):
        raise RunError(
            f"--ensemble-mean {mean} is for ensembles, and there is none; name one as runs/a+runs/b, or leave it out"
        )
    if mean == "logs" and recipe.of_text:
        raise RunError("--ensemble-mean logs is for outputs, and a text is scored by probabilities; leave it out")
    if recipe.data.noise is not None and any(each.parts for each in runs):
        raise RunError("ensembles do not support masked-LM or denoising evaluation; compare the runs alone")


# --- decoding ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decoded:
    """The outputs of a run, and the seconds of decoding."""

    outputs: list[str]
    seconds: float


def decode_in_turns(runs: Sequence[ComparedRun], sources: Sequence[str], progress: Progress) -> dict[str, Decoded]:
    """Decode the test set part by part, each part with all runs in a rotating order; return outputs by run name.

    A machine that is slower for a while (other programs, heat) is then slower for all runs.
    """
    for number, run in enumerate(runs):
        progress("warming up", number, len(runs))
        run.decode(sources[:_WARM_UP], first=0)
    parts = _parts(len(sources), _LEAST_ON_GPU if any(run.on_gpu for run in runs) else _LEAST_SENTENCES)
    outputs: list[list[str]] = [[] for _ in runs]
    seconds = [0.0] * len(runs)
    done = 0
    for number, (start, stop) in enumerate(parts):
        shift = number * max(1, len(runs) // len(parts)) % len(runs)
        for index in [*range(shift, len(runs)), *range(shift)]:
            progress(f"decoding, part {number + 1} of {len(parts)}", done, len(parts) * len(runs))
            started = time.perf_counter()
            outputs[index] += runs[index].decode(sources[start:stop], first=start)
            seconds[index] += time.perf_counter() - started
            done += 1
    return {run.name: Decoded(texts, spent) for run, texts, spent in zip(runs, outputs, seconds, strict=True)}


def _parts(sentences: int, least: int) -> list[tuple[int, int]]:
    """Split into parts (start, stop) of nearly equal size."""
    count = max(1, min(_MOST_PARTS, sentences // least))
    return list(pairwise(sentences * number // count for number in range(count + 1)))


def _device(run: ComparedRun) -> str:
    device = run.run.device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {plural(torch.get_num_threads(), 'thread')}"


# --- results -----------------------------------------------------------------------------------------------------


def _system_results(
    systems: Sequence[System], test: TestSet, scoring: Scoring, decoded: dict[str, Decoded], progress: Progress
) -> list[SystemResult]:
    """Score every run and test every system against the first."""
    results: list[SystemResult] = []
    baseline: list[dict[MetricName, Measurement]] = []
    for number, system in enumerate(systems):
        progress("scoring and testing", number, len(systems))
        outputs = [decoded.get(run.name, Decoded([], 0.0)) for run in system.runs]
        measurements = [
            measure_run(run, test, each.outputs, scoring) for run, each in zip(system.runs, outputs, strict=True)
        ]
        baseline = baseline or measurements
        runs = [
            _run_result(run, each, measured, scoring)
            for run, each, measured in zip(system.runs, outputs, measurements, strict=True)
        ]
        names = list(measurements[0])  # the same for all seeds
        verdicts = {
            name: judge([each[name] for each in baseline], [each[name] for each in measurements])
            for name in names
            if results
            and name in baseline[0]
            # an infinite perplexity (n-grams without smoothing) has no difference to test
            and all(math.isfinite(each[name].value) for each in (*baseline, *measurements))
        }
        qualities = {name: MetricResult.of(name, [run.scores[name] for run in runs]) for name in names}
        results.append(SystemResult(system.name, runs, qualities, verdicts))
    return results


def _run_result(
    run: ComparedRun, decoded: Decoded, measurements: dict[MetricName, Measurement], scoring: Scoring
) -> RunResult:
    logs = [read_log(each.run.folder, each.recipe) for each in run.trainings]
    return RunResult(
        name=run.name,
        folder="+".join(str(each.run.folder) for each in run.trainings),
        seed=run.seed,
        parameters=run.parameters,
        trained_on=", ".join(run.devices),
        cost=Cost.combine([cost for cost, _ in logs], sum),
        validations=[] if run.parts else logs[0][1],
        decoding=run.options.model_dump(mode="json"),
        sentences=len(decoded.outputs) if run.baseline is None else 0,
        seconds=decoded.seconds,
        outputs=decoded.outputs,
        scores={name: measured.score(bootstrap=scoring.bootstrap) for name, measured in measurements.items()},
        baseline=run.baseline,
        teachers=sorted({digest for origin in run.origins for digest in origin.models}),
        ensemble=[each.name for each in run.parts],
        corpus="; ".join(dict.fromkeys(map(_corpus, run.trainings))) if run.baseline is None else "",
    )


def _corpus(run: ComparedRun) -> str:
    """The training text of a run, with the number of examples that are left after cleaning."""
    text = "; ".join(source.describe() for source in run.recipe.data.train)
    size = read_config(run.run.folder).get("training_text")
    return text if size is None else f"{text} ({plural(size['examples'], 'example')} after cleaning)"


def _recipe_differences(systems: Sequence[System]) -> list[Difference]:
    """Differences between the recipes of systems; values of an ensemble's runs are joined."""
    models = trained_systems(systems)
    if not models:
        return []
    recipes = {system.name: [each.recipe for each in system.runs[0].trainings] for system in models}
    rows = []
    for each in recipe_differences([recipe for several in recipes.values() for recipe in several]):
        values = iter(each.values)
        cells = {name: ", ".join(dict.fromkeys(islice(values, len(several)))) for name, several in recipes.items()}
        if each.key != "seed" and len(set(cells.values())) > 1:  # else only runs within an ensemble differ
            rows.append(Difference(each.key, [cells.get(system.name, NOTHING) for system in systems]))
    seeds = {system.name: ", ".join(str(each.seed) for each in system.trainings) for system in models}
    row = Difference("seed", [seeds.get(system.name, NOTHING) for system in systems])
    return [row, *rows] if len(set(seeds.values())) > 1 else rows


def _analyze(
    baseline: System, test: TestSet, scoring: Scoring, results: Sequence[SystemResult], progress: Progress
) -> Analysis:
    """Where the systems differ."""
    first, metric = baseline.runs[0], scoring.metrics[0]
    lowercase = scoring.ignores_case(first)
    shown = {system.name: system.representative(metric) for system in results}
    if first.recipe.of_text or not scoring.needs_outputs:
        return Analysis.empty(metric, {name: run.name for name, run in shown.items()})
    if (labels := first.recipe.task_spec.labels) != "none":
        return analyze_labels(test, shown, metric, labels, lowercase=lowercase, progress=progress)
    frequencies = training_frequencies(first.run, baseline.name, progress)
    section = first.recipe.evaluation
    return analyze(test, shown, metric, frequencies, lowercase=lowercase, section=section, progress=progress)
