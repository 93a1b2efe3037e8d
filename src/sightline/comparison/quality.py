"""How good each run is, by the metrics they share, and whether systems differ by more than luck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from sightline.comparison.results import Verdict
from sightline.comparison.seeds import bootstrap, randomization, seed_test
from sightline.comparison.systems import Contestant
from sightline.evaluation.measurement import Measurement, aligned
from sightline.evaluation.metrics import METRICS, measure
from sightline.evaluation.significance import check_comparable, mcnemar
from sightline.evaluation.test_set import TestSet
from sightline.recipe import TASK_METRICS, MetricName
from sightline.run_folder import RunError


@dataclass(frozen=True)
class Scoring:
    """By what the runs are judged."""

    metrics: list[MetricName]
    lowercase: bool | None  # None: as each recipe says
    bootstrap: int  # resamples for the intervals
    notes: list[str]

    def folds_case(self, contestant: Contestant) -> bool:
        return contestant.run.recipe.evaluation.lowercase if self.lowercase is None else self.lowercase


def choose_scoring(contestants: Sequence[Contestant], metrics: Sequence[str] | None, lowercase: bool | None) -> Scoring:
    """The metrics asked for, or those that all recipes have; refused where they would not mean the same."""
    recipes = [contestant.run.recipe.evaluation for contestant in contestants]
    notes: list[str] = []
    if metrics is not None:
        chosen = [_known(name) for name in dict.fromkeys(metrics)]
        task = contestants[0].run.recipe.task
        if wrong := [name for name in chosen if name not in TASK_METRICS[task]]:
            raise RunError(f"{wrong[0]} is not for task: {task}; choose from {', '.join(TASK_METRICS[task])}")
    else:
        chosen = [name for name in recipes[0].metrics if all(name in each.metrics for each in recipes)]
        every = dict.fromkeys(name for each in recipes for name in each.metrics)
        if left_out := [METRICS[name].label for name in every if name not in chosen]:
            notes.append(f"Left out, because not every recipe has them: {', '.join(left_out)}.")
    if not chosen:
        have = "; ".join(f"{c.name} has {', '.join(e.metrics)}" for c, e in zip(contestants, recipes, strict=True))
        raise RunError(f"the recipes have no metric in common ({have}); choose with --metrics, e.g. bleu,chrf")
    if "perplexity" in chosen and (reason := _other_tokens(contestants)):
        if chosen == ["perplexity"] or metrics is not None:
            lm = contestants[0].run.recipe.task == "language-model"
            example = ", e.g. bits-per-character" if lm else ""
            raise RunError(f"{reason}; leave perplexity out, or compare by another metric with --metrics{example}")
        chosen.remove("perplexity")
        notes.append(f"Perplexity is left out: {reason}.")
    scoring = Scoring(chosen, lowercase, recipes[0].bootstrap, notes)
    _check_signatures(contestants, scoring)
    return scoring


def check_text(contestants: Sequence[Contestant], test: TestSet, scoring: Scoring) -> None:
    """Refuse bits per character of language models whose tokenizers make different texts of one."""
    if "bits-per-character" not in scoring.metrics:
        return
    first = contestants[0]
    texts = [text for several in test.references for text in several]
    ours = [first.run.vocabulary.target.normalize(text) for text in texts]
    for other in contestants[1:]:
        if [other.run.vocabulary.target.normalize(text) for text in texts] != ours:
            raise RunError(
                f"{first.name} and {other.name} do not read the same text of {test.name}, for their tokenizers change "
                f"it differently, and bits per character are those of one text; train both with the same "
                f"tokenizer.normalize, lowercase and spaces, or compare by perplexity"
            )


def measured(contestant: Contestant, test: TestSet, outputs: Sequence[str], scoring: Scoring) -> list[Measurement]:
    """Every metric of a run."""
    lowercase = scoring.folds_case(contestant)
    return [contestant.run.measure(name, test, outputs, lowercase=lowercase) for name in scoring.metrics]


def judge(metric: MetricName, baseline: Sequence[Measurement], system: Sequence[Measurement]) -> Verdict:
    """Hold the runs of a system against those of the baseline (one measurement for each seed)."""
    alone = len(baseline) == len(system) == 1
    theirs, ours = baseline[0].outcomes, system[0].outcomes  # of answers that are right or wrong
    exact = None
    if alone and theirs is not None and ours is not None:
        exact = mcnemar(theirs, ours, metric=baseline[0].name)
    together = aligned([*baseline, *system])  # over the labels of all runs
    baseline, system = together[: len(baseline)], together[len(baseline) :]
    return Verdict(
        metric=metric,
        randomization=randomization(baseline, system),
        bootstrap=bootstrap(baseline, system),
        mcnemar=exact,
        seeds=seed_test([each.value for each in baseline], [each.value for each in system]),
    )


def _known(name: str) -> MetricName:
    for known in get_args(MetricName):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"there is no metric {name!r}; choose from {', '.join(METRICS)}")


def _other_tokens(contestants: Sequence[Contestant]) -> str | None:
    """Why perplexities cannot be compared, if they cannot."""
    if written := [each.name for each in contestants if each.baseline is not None]:
        return f"{written[0]} has no model, and so no perplexity"
    first = contestants[0]
    for other in contestants[1:]:
        if first.run.recipe.copies_unknown != other.run.recipe.copies_unknown:
            return f"of {first.name} and {other.name} only one has to name words outside the vocabulary (model.copying)"
        if first.run.vocabulary.target.content != other.run.vocabulary.target.content:
            return f"{first.name} and {other.name} have different tokenizers, and perplexity is one of tokens"
    return None


def _check_signatures(contestants: Sequence[Contestant], scoring: Scoring) -> None:
    """Before anything is decoded: a measurement of one sentence says how all would be measured."""
    first = contestants[0]

    def sample(name: MetricName, contestant: Contestant) -> Measurement:
        return measure(name, ["a"], [["a"]], lowercase=scoring.folds_case(contestant))

    for name in scoring.metrics:
        if METRICS[name].measure is None:
            continue
        ours = sample(name, first)
        for other in contestants[1:]:
            try:
                check_comparable(ours, sample(name, other))
            except ValueError as error:
                raise RunError(
                    f"{first.name} and {other.name} are scored differently: {error}; "
                    f"--lowercase or --no-lowercase makes it the same for all"
                ) from error
