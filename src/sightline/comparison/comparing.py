"""`compare`: which of some runs is better, by how much, is it luck, and what does it cost?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice

import torch

from sightline.comparison.journals import Cost, read_journal
from sightline.comparison.notes import of_models, run_notes
from sightline.comparison.quality import Scoring, check_text, choose_scoring, judge, measured, settle_ngrams
from sightline.comparison.recipe_differences import Difference, differences
from sightline.comparison.results import Comparison, Member, Quality, System
from sightline.comparison.systems import (
    Contestant,
    Group,
    Runs,
    check_one_task,
    choose_baseline,
    group_by_seed,
    load_contestants,
)
from sightline.comparison.test_sets import common_test_set
from sightline.comparison.turns import Decoded, take_turns
from sightline.comparison.where import Where, find_where, find_where_labels, training_frequencies
from sightline.comparison.wording import NOTHING
from sightline.decoding.ensemble import Mean
from sightline.evaluation.measurement import Measurement
from sightline.evaluation.metrics import check_outputs_wanted
from sightline.evaluation.test_set import TestSet
from sightline.progress import Progress, silent
from sightline.recipe import MetricName
from sightline.recipe.decoding import BleuTokenizer
from sightline.run_folder import RunError
from sightline.terminal import plural


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
    ensemble_mean: Mean | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> Comparison:
    """Decode one test set with all runs in turns, score them, and hold each system against the baseline.

    `runs` are runs or their folders, or a mapping of names to them. A list of them among these (or a path:
    "runs/a+runs/b") is an ensemble, which averages `probabilities` or, by `ensemble_mean`, `logs`. Runs that differ
    only in their seed are one system; how systems with several seeds are held against each other is said in `Verdict`
    and `seeds.py`. `on` is a test set that all recipes have (by default the first such), or one of your own. The
    baseline is the first run, unless another is named; the metrics are those that all recipes have; each run decodes
    as its recipe says (an ensemble as its first run does), apart from `beam`. Language models are measured by the test
    text itself, and decode nothing; nor does any run where no metric looks at outputs (perplexity). Outputs without a
    model (`sightline baseline`) have no perplexity: their `qualities` lack it.
    """
    contestants = load_contestants(
        runs, beam=beam, mean=ensemble_mean or "probabilities", device=device, progress=progress
    )
    check_one_task(contestants)
    _check_heeded(contestants, beam, lowercase, ensemble_mean)
    groups, notes = group_by_seed(contestants)
    groups = choose_baseline(groups, baseline)
    contestants = [contestant for group in groups for contestant in group.contestants]
    test, other_tests = common_test_set(contestants, on)
    ngram_notes = settle_ngrams(contestants, test, bleu_tokenize, chrf_word_order)
    scoring = choose_scoring(contestants, metrics, lowercase)
    if "bleu" in scoring.metrics:
        scoring.notes.extend(ngram_notes)
    check_outputs_wanted(scoring.metrics, {"--beam": beam, "--lowercase": lowercase})
    check_text(contestants, test, scoring)
    decoded = _decode(contestants, test, scoring, progress)
    systems = _systems(groups, test, scoring, decoded, progress)
    return Comparison(
        test=test,
        sentences=len(test.sources),
        other_tests=other_tests,
        metrics=scoring.metrics,
        systems=systems,
        differences=_recipe_differences(groups),
        where=_where(groups[0], test, scoring, systems, progress),
        notes=[*notes, *scoring.notes, *run_notes(groups, test, scoring)],
        decoded_on=_machine((of_models(groups) or groups)[0].contestants[0]),
        of_text=contestants[0].run.recipe.of_text,
    )


def _check_heeded(
    contestants: Sequence[Contestant], beam: int | None, lowercase: bool | None, mean: Mean | None
) -> None:
    """Refuse what these runs would leave undone."""
    recipe = contestants[0].run.recipe
    if beam is not None and (not recipe.task_spec.maps_text or recipe.of_text):
        raise RunError(f"--beam {beam} is for runs that search, and these do not ({recipe.task_spec}); leave it out")
    if lowercase is not None and recipe.of_text:
        raise RunError("--lowercase is for outputs, and models of text are measured by the text itself; leave it out")
    if mean is not None and not any(each.parts for each in contestants):
        raise RunError(
            f"--ensemble-mean {mean} is for ensembles, and every run stands alone; name one as runs/a+runs/b, or leave "
            f"it out"
        )
    if mean == "logs" and recipe.of_text:
        raise RunError("--ensemble-mean logs is for outputs, and a text is measured by probabilities; leave it out")
    if recipe.data.noise is not None and any(each.parts for each in contestants):
        raise RunError("how well ensembles fill gaps and mend texts is not measured; compare the runs alone")


def _decode(
    contestants: Sequence[Contestant], test: TestSet, scoring: Scoring, progress: Progress
) -> dict[str, Decoded]:
    if contestants[0].run.recipe.of_text or not scoring.needs_outputs:
        return {contestant.name: Decoded([], 0.0) for contestant in contestants}
    return take_turns(contestants, test.sources, progress)


def _where(baseline: Group, test: TestSet, scoring: Scoring, systems: Sequence[System], progress: Progress) -> Where:
    """Where the systems differ, as far as their task leaves anything to look at."""
    first, metric = baseline.contestants[0], scoring.metrics[0]
    lowercase = scoring.folds_case(first)
    looked = {system.name: system.shown_member(metric) for system in systems}
    if first.run.recipe.of_text or not scoring.needs_outputs:
        return Where.nowhere(metric, {name: each.name for name, each in looked.items()})
    if (labels := first.run.recipe.task_spec.labels) != "none":
        return find_where_labels(test, looked, metric, labels, lowercase=lowercase, progress=progress)
    frequencies = training_frequencies(first.run, baseline.name, progress)
    section = first.run.recipe.evaluation
    return find_where(test, looked, metric, frequencies, lowercase=lowercase, section=section, progress=progress)


def _systems(
    groups: Sequence[Group], test: TestSet, scoring: Scoring, decoded: dict[str, Decoded], progress: Progress
) -> list[System]:
    """Score every run and judge every system."""
    systems: list[System] = []
    first: list[dict[MetricName, Measurement]] = []
    for number, group in enumerate(groups):
        progress("scoring and testing", number, len(groups))
        own = [measured(each, test, decoded[each.name].outputs, scoring) for each in group.contestants]  # of each seed
        first = first or own
        members = [
            _member(each, decoded[each.name], measurements, scoring)
            for each, measurements in zip(group.contestants, own, strict=True)
        ]
        names = list(own[0])  # seeds of a system have the same
        system = System(
            name=group.name,
            members=members,
            qualities={name: Quality.of(name, [each.scores[name] for each in members]) for name in names},
            verdicts={
                name: judge(name, [each[name] for each in first], [each[name] for each in own])
                for name in names
                if systems and name in first[0]
            },
        )
        systems.append(system)
    return systems


def _member(
    contestant: Contestant, decoded: Decoded, measurements: dict[MetricName, Measurement], scoring: Scoring
) -> Member:
    journals = [read_journal(each.run.folder, each.run.recipe) for each in contestant.trainings]
    return Member(
        name=contestant.name,
        folder="+".join(str(each.run.folder) for each in contestant.trainings),
        seed=contestant.seed,
        parameters=contestant.parameters,
        trained_on=", ".join(contestant.devices),
        cost=Cost.total([cost for cost, _ in journals]),
        validations=[] if contestant.parts else journals[0][1],
        decoding=contestant.options.model_dump(mode="json"),
        sentences=len(decoded.outputs) if contestant.baseline is None else 0,
        seconds=decoded.seconds,
        outputs=decoded.outputs,
        scores={name: found.score(bootstrap=scoring.bootstrap) for name, found in measurements.items()},
        baseline=contestant.baseline,
        taught_by=sorted({digest for origin in contestant.origins for digest in origin.models}),
        together=[each.name for each in contestant.parts],
    )


def _recipe_differences(groups: Sequence[Group]) -> list[Difference]:
    """Between systems; the seeds of each stand together, as does what the runs of an ensemble say."""
    models = of_models(groups)
    recipes = {group.name: [each.run.recipe for each in group.contestants[0].trainings] for group in models}
    if not recipes:
        return []
    found = []
    for each in differences([recipe for own in recipes.values() for recipe in own]):
        values = iter(each.values)
        said = {name: ", ".join(dict.fromkeys(islice(values, len(own)))) for name, own in recipes.items()}
        if each.key != "seed" and len(set(said.values())) > 1:  # runs of one ensemble may differ, and no systems
            found.append(Difference(each.key, [said.get(group.name, NOTHING) for group in groups]))
    seeds = {
        group.name: ", ".join(str(each.seed) for run in group.contestants for each in run.trainings) for group in models
    }
    row = Difference("seed", [seeds.get(group.name, NOTHING) for group in groups])
    return [row, *found] if len(set(seeds.values())) > 1 else found


def _machine(contestant: Contestant) -> str:
    device = contestant.run.device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {plural(torch.get_num_threads(), 'thread')}"
