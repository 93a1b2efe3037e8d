"""What a comparison found, as plain data: every table, figure, page and export is made from this and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, Literal

from sightline.comparison.journals import Cost, Validation
from sightline.comparison.recipe_differences import Difference
from sightline.comparison.seeds import SeedTest
from sightline.comparison.where import Where
from sightline.evaluation.intervals import Score
from sightline.evaluation.significance import LEVEL, Significance
from sightline.evaluation.test_set import TestSet
from sightline.recipe import MetricName


@dataclass(frozen=True)
class Member:
    """One run, or an ensemble: what it is, what it cost, and how it did on the test set."""

    name: str
    folder: str
    seed: int
    parameters: int
    trained_on: str  # the device
    cost: Cost
    validations: list[Validation]
    decoding: dict[str, Any]
    sentences: int  # that it decoded: none where there is no model, or a text to measure models by
    seconds: float  # its turns at decoding, added up
    outputs: list[str]  # none either where texts were left out
    scores: dict[MetricName, Score]  # those it has: without a model there is no perplexity
    baseline: str | None = None  # what it is, where it has no model
    taught_by: list[str] = field(default_factory=list)  # digests of the models that wrote text it learned from
    together: list[str] = field(default_factory=list)  # the runs of an ensemble: what it costs is the sum of theirs

    @property
    def sentences_per_second(self) -> float | None:
        """None where nothing was decoded."""
        return self.sentences / self.seconds if self.sentences else None


@dataclass(frozen=True)
class Quality:
    """A metric of a system. Of several seeds the mean, with their standard deviation (n - 1).

    The interval is about the test sentences: that of the run, or of a single run of the system (the mean of theirs).
    """

    metric: MetricName
    label: str
    better: Literal["higher", "lower"]
    value: float
    deviation: float | None
    low: float
    high: float
    signature: str

    @staticmethod
    def of(metric: MetricName, scores: list[Score]) -> Quality:
        first = scores[0]
        values = [score.value for score in scores]
        return Quality(
            metric=metric,
            label=first.name,
            better=first.better,
            value=fmean(values),
            deviation=stdev(values) if len(values) > 1 else None,
            low=fmean(score.low for score in scores),
            high=fmean(score.high for score in scores),
            signature=" and ".join(dict.fromkeys(score.signature for score in scores)),
        )


@dataclass(frozen=True)
class Verdict:
    """Whether a system differs from the baseline in a metric by more than luck.

    Luck has two places, the test sentences and, where a system was trained with several seeds, the seeds. Approximate
    randomization judges the first (`randomization`), a t-test over the scores of the runs the second (`seeds`), and a
    difference is significant only if neither explains it: p is the larger of the two. The paired bootstrap and, for
    single runs and answers that are right or wrong, McNemar's test stand beside them and decide nothing.
    """

    metric: MetricName
    randomization: Significance
    bootstrap: Significance
    mcnemar: Significance | None
    seeds: SeedTest | None

    @property
    def difference(self) -> float:
        return self.randomization.difference

    @property
    def p(self) -> float:
        """What decides. Ties are counted, other than in sacreBLEU's p (`randomization.p`); see `Significance`."""
        sentences = self.randomization.p_with_ties
        return sentences if self.seeds is None else max(sentences, self.seeds.p)

    @property
    def significant(self) -> bool:
        return self.p < LEVEL

    @property
    def better(self) -> bool:
        """Whether the system is ahead of the baseline, luck or not."""
        return self.difference > 0 if self.randomization.better == "higher" else self.difference < 0

    def to_dict(self) -> dict[str, Any]:
        tests = {
            name: None if test is None else test.to_dict()
            for name, test in (
                ("approximate_randomization", self.randomization),
                ("paired_bootstrap", self.bootstrap),
                ("mcnemar", self.mcnemar),
                ("seeds", self.seeds),
            )
        }
        own = {"difference": self.difference, "p": self.p}
        return {**own, "significant": self.significant, "better": self.better, **tests}


@dataclass(frozen=True)
class System:
    """A row of the table: one run or ensemble, or several runs that differ only in their seed."""

    name: str
    members: list[Member]
    qualities: dict[MetricName, Quality]  # of the metrics it has, the first of the comparison always
    verdicts: dict[MetricName, Verdict] = field(default_factory=dict)  # of those the baseline has too; its own: none

    @property
    def has_model(self) -> bool:
        """Whether it was trained; outputs made without a model (`sightline baseline`) cost nothing."""
        return self.members[0].baseline is None

    @property
    def together(self) -> list[str]:
        """The runs of an ensemble; a run has none."""
        return self.members[0].together

    @property
    def runs(self) -> int:
        """How many were trained for it: seeds, or the runs of an ensemble."""
        return len(self.together) or len(self.members)

    @property
    def parameters(self) -> int:
        return self.members[0].parameters

    @cached_property
    def cost(self) -> Cost:
        """Of one run: the mean over the seeds, and the largest peak of memory."""
        return Cost.mean([member.cost for member in self.members])

    @property
    def sentences_per_second(self) -> float | None:
        """None where nothing was decoded."""
        count = sum(member.sentences for member in self.members)
        return count / sum(member.seconds for member in self.members) if count else None

    def shown_member(self, metric: MetricName) -> Member:
        """The run that stands for the system where outputs are shown: the one nearest to the mean of its seeds."""
        value = self.qualities[metric].value
        return min(self.members, key=lambda member: abs(member.scores[metric].value - value))


@dataclass(frozen=True)
class Comparison:
    """Systems beside one another on one test set; the baseline comes first."""

    test: TestSet
    sentences: int  # of the test set, also where texts were left out; documents, where a text measures the models
    other_tests: list[str]  # test sets that all runs have too
    metrics: list[MetricName]
    systems: list[System]
    differences: list[Difference]
    where: Where
    notes: list[str]  # what a reader must know about these runs in particular
    decoded_on: str
    of_text: bool = False  # whether a given text measured the models, and not what they make of sources

    @property
    def baseline(self) -> System:
        return self.systems[0]

    @property
    def others(self) -> list[System]:
        return self.systems[1:]

    @property
    def seeded(self) -> bool:
        """Whether some system has several seeds."""
        return any(len(system.members) > 1 for system in self.systems)

    @property
    def writes(self) -> bool:
        """Whether the systems have outputs; models of text have none, nor others where no metric looks at them."""
        members = [member for system in self.systems for member in system.members]
        return any(member.sentences or member.baseline is not None for member in members)

    def having(self, metric: MetricName) -> list[System]:
        """The systems that have a metric: all have the first, and some system has each."""
        return [system for system in self.systems if metric in system.qualities]

    def tested(self, metric: MetricName) -> list[System]:
        """The systems that were held against the baseline in a metric."""
        return [system for system in self.others if metric in system.verdicts]

    def best(self, metric: MetricName, among: list[System] | None = None) -> System:
        """The system with the best value; the first of equals. What is no number is worse than any."""
        systems = among or self.having(metric)
        sign = 1 if systems[0].qualities[metric].better == "higher" else -1

        def rank(system: System) -> float:
            value = system.qualities[metric].value
            return -math.inf if math.isnan(value) else sign * value

        return max(systems, key=rank)

    def standing(self, metric: MetricName) -> list[System]:
        """The systems whose difference stays significant after Holm's (1979) correction for their number."""
        ranked = sorted(self.tested(metric), key=lambda system: system.verdicts[metric].p)
        kept: list[System] = []
        for place, system in enumerate(ranked):
            if system.verdicts[metric].p >= LEVEL / (len(ranked) - place):
                break
            kept.append(system)
        return kept

    def without_texts(self) -> Comparison:
        """The same without sources, references and outputs, which may not be ours to give away; all numbers stay."""
        systems = [replace(each, members=[replace(m, outputs=[]) for m in each.members]) for each in self.systems]
        test = replace(self.test, sources=[], references=[])
        return replace(self, test=test, systems=systems, where=replace(self.where, contrasts=[]))

    def to_dict(self) -> dict[str, Any]:
        """Everything, in full precision, for JSON."""
        test = {"name": self.test.name, "sentences": self.sentences, "pairs": self.test.pairs}
        plain = {
            "test": {**test, "others": self.other_tests},
            "baseline": self.baseline.name,
            "metrics": list(self.metrics),
            "systems": [_system(system, self.metrics) for system in self.systems],
            "differences": [asdict(each) for each in self.differences],
            "where": asdict(self.where),
            "notes": self.notes,
            "decoded_on": self.decoded_on,
            "of_text": self.of_text,
            "sources": self.test.sources,
            "references": self.test.references,
        }
        finite = _finite(plain)
        assert isinstance(finite, dict)
        return finite

    def __str__(self) -> str:
        """The comparison as plain lines."""
        from sightline.comparison.terminal import plain_text

        return plain_text(self)


def _system(system: System, metrics: Sequence[MetricName]) -> dict[str, Any]:
    """A metric that a system lacks is null; the baseline has no verdicts at all."""
    qualities = {metric: asdict(quality) for metric, quality in system.qualities.items()}
    verdicts = {metric: verdict.to_dict() for metric, verdict in system.verdicts.items()}
    return {
        "name": system.name,
        "parameters": system.parameters,
        "cost": asdict(system.cost),
        "sentences_per_second": system.sentences_per_second,
        "qualities": {metric: qualities.get(metric) for metric in metrics},
        "verdicts": {metric: verdicts.get(metric) for metric in metrics} if verdicts else {},
        "runs": [_run(member, metrics) for member in system.members],
    }


def _run(member: Member, metrics: Sequence[MetricName]) -> dict[str, Any]:
    plain = asdict(member)
    plain["scores"] = {metric: plain["scores"].get(metric) for metric in metrics}
    return {**plain, "sentences_per_second": member.sentences_per_second}


def _finite(value: Any) -> Any:
    """JSON knows no infinity and no nan: null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
