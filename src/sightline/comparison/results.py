"""The result of a comparison, from which all tables, figures and files are made, and its JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, TypeAdapter, ValidationError, computed_field
from pydantic.dataclasses import dataclass

from sightline.comparison.published import PublishedTable
from sightline.evaluation.breakdowns import FrequencyBucket, LengthBucket, SentencePart
from sightline.evaluation.contrasts import ChangedSentences, NgramContrasts, WordContrasts
from sightline.evaluation.measurement import Better, MetricScore, Real
from sightline.evaluation.metrics import METRICS
from sightline.evaluation.significance import LEVEL, Significance, WelchTest
from sightline.files import MAX_JSON, parse_json, read_bounded
from sightline.recipe import MetricName

NOTHING = "–"  # a value that is unknown, was not measured, or does not exist
UNSET = "not set"  # a key of a recipe that is null, or whose section is

Validation = dict[str, Real]  # step, tokens, seconds, loss and, where they were logged, flops and metrics
WithoutNulls = BeforeValidator(lambda value: {key: inner for key, inner in value.items() if inner is not None})


@dataclass(frozen=True)
class Cost:
    """The cost of a training; None if the log does not have it (old runs did not count FLOPs and memory)."""

    steps: float | None = None
    tokens: float | None = None  # of the target side
    flops: float | None = None
    seconds: float | None = None
    peak_memory: float | None = None  # bytes
    least: bool = False  # a lower bound: the log was cut off

    @staticmethod
    def combine(costs: Sequence[Cost], function: Callable[[list[float]], float]) -> Cost:
        """The sum or mean of each amount that all costs have, and the largest memory."""

        def amount(name: str, function: Callable[[list[float]], float]) -> float | None:
            values = [getattr(cost, name) for cost in costs]
            return None if None in values else function(values)

        amounts = {name: amount(name, function) for name in ("steps", "tokens", "flops", "seconds")}
        return Cost(**amounts, peak_memory=amount("peak_memory", max), least=any(cost.least for cost in costs))


@dataclass(frozen=True)
class RunResult:
    """A run or an ensemble, its cost, and its scores on the test set."""

    name: str
    folder: str
    seed: int
    parameters: int
    trained_on: str  # the device
    cost: Cost
    validations: list[Validation]
    decoding: dict[str, Any]
    sentences: int  # decoded
    seconds: float  # of decoding
    outputs: list[str]  # empty if texts were left out
    scores: Annotated[dict[MetricName, MetricScore], WithoutNulls]  # no perplexity without a model
    baseline: str | None = None  # the kind of a baseline without a model
    # digests of the models that generated training text
    teachers: list[str] = Field(default_factory=list, validation_alias=AliasChoices("teachers", "taught_by"))
    # the runs of an ensemble, whose costs are added
    ensemble: list[str] = Field(default_factory=list, validation_alias=AliasChoices("ensemble", "together"))
    corpus: str = ""  # the training text in words, with its size

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentences_per_second(self) -> float | None:
        """None if nothing was decoded."""
        return self.sentences / self.seconds if self.sentences else None


@dataclass(frozen=True)
class MetricResult:
    """A metric of a system: of several seeds the mean, the standard deviation (n - 1), and the mean of the intervals.

    Intervals are over test sentences.
    """

    metric: MetricName
    label: str
    better: Better
    value: Real
    deviation: float | None
    low: Real
    high: Real
    signature: str

    @staticmethod
    def of(metric: MetricName, scores: Sequence[MetricScore]) -> MetricResult:
        first = scores[0]
        values = [score.value for score in scores]
        return MetricResult(
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
    """Return True if a system differs from the baseline in a metric by more than chance.

    Approximate randomization tests whether the test sentences explain the difference; for systems with several seeds,
    Welch's t-test over the scores of the runs (`seeds`) tests whether the seeds do. p is the larger of the two. The
    paired bootstrap and McNemar's test (of single runs with right or wrong outputs) are reported and decide nothing.
    """

    approximate_randomization: Significance
    paired_bootstrap: Significance
    mcnemar: Significance | None = None
    seeds: WelchTest | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def difference(self) -> float:
        return self.approximate_randomization.difference

    @computed_field  # type: ignore[prop-decorator]
    @property
    def p(self) -> float:
        """The p-value that decides. Ties count, unlike in sacreBLEU's (`approximate_randomization.p`)."""
        sentences = self.approximate_randomization.p_with_ties
        return sentences if self.seeds is None else max(sentences, self.seeds.p)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def significant(self) -> bool:
        return self.p < LEVEL

    @computed_field  # type: ignore[prop-decorator]
    @property
    def better(self) -> bool:
        """True if the system scores better than the baseline, significantly or not."""
        return self.difference > 0 if self.approximate_randomization.better == "higher" else self.difference < 0


@dataclass(frozen=True)
class SystemResult:
    """A row of the main table: a run, an ensemble, or several runs that differ only in their seed."""

    name: str
    runs: list[RunResult]
    qualities: Annotated[dict[MetricName, MetricResult], WithoutNulls]  # always includes the first metric
    verdicts: Annotated[dict[MetricName, Verdict], WithoutNulls] = Field(default_factory=dict)  # none for the baseline

    @property
    def has_model(self) -> bool:
        """False for outputs without a model (`sightline baseline`)."""
        return self.runs[0].baseline is None

    @property
    def ensemble(self) -> list[str]:
        """The runs of an ensemble; empty for a run."""
        return self.runs[0].ensemble

    @property
    def trainings(self) -> int:
        """The number of trained runs: seeds, or the runs of an ensemble."""
        return len(self.ensemble) or len(self.runs)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def parameters(self) -> int:
        return self.runs[0].parameters

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def cost(self) -> Cost:
        """The mean over the seeds, and the largest memory."""
        return Cost.combine([run.cost for run in self.runs], fmean)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentences_per_second(self) -> float | None:
        """None if nothing was decoded."""
        count = sum(run.sentences for run in self.runs)
        return count / sum(run.seconds for run in self.runs) if count else None

    def representative(self, metric: MetricName) -> RunResult:
        """The run closest to the mean of the seeds, whose outputs are shown."""
        value = self.qualities[metric].value
        return min(self.runs, key=lambda run: abs(run.scores[metric].value - value))


@dataclass(frozen=True)
class Contrast:
    """Sentences, n-grams and words that differ between a system and the baseline."""

    system: str
    sentences: ChangedSentences
    ngrams: NgramContrasts
    words: WordContrasts

    @property
    def differs(self) -> bool:
        sentences, ngrams, words = self.sentences, self.ngrams, self.words
        parts = (sentences.improved, sentences.worsened, ngrams.system, ngrams.baseline, words.system, words.baseline)
        return any(parts)


@dataclass(frozen=True)
class LabelScores:
    """The number of texts or tokens with a label, and its F1 (percent) for each system."""

    label: str
    count: int
    f1: dict[str, float]


@dataclass(frozen=True)
class Analysis:
    """Where systems differ, and the metrics, runs and word counts used."""

    corpus_metric: str
    sentence_metric: str
    counted_in: str = ""  # the text of the word frequencies
    runs: dict[str, str] = Field(default_factory=dict)  # system → the run whose outputs were analyzed
    lengths: list[LengthBucket] = Field(default_factory=list)
    frequencies: list[FrequencyBucket] = Field(default_factory=list)
    positions: list[SentencePart] = Field(default_factory=list)
    contrasts: list[Contrast] = Field(default_factory=list)
    labels: list[LabelScores] = Field(default_factory=list)  # for classifiers and taggers, most frequent first

    @staticmethod
    def empty(metric: MetricName, runs: dict[str, str]) -> Analysis:
        """The analysis of systems without outputs."""
        return Analysis(METRICS[metric].name, METRICS[metric].name, runs=runs)


@dataclass(frozen=True)
class Difference:
    """A recipe key and its value for each system."""

    key: str
    values: list[str]


@dataclass(frozen=True)
class HeldOutSet:
    """The test set, without its texts."""

    name: str
    sentences: int  # or documents, for language models
    pairs: int
    others: list[str] = Field(default_factory=list)  # further test sets that all runs have


@dataclass(frozen=True)
class ComparisonResult:
    """Systems compared on one test set; the baseline comes first."""

    test: HeldOutSet
    metrics: list[MetricName]
    systems: list[SystemResult]
    differences: list[Difference]  # between the recipes
    where: Analysis
    notes: list[str]
    decoded_on: str
    of_text: bool = False  # language models: scored on the text itself, without outputs
    sources: list[str] = Field(default_factory=list)
    references: list[list[str]] = Field(default_factory=list)
    published: PublishedTable | None = None  # shown after the systems

    @property
    def baseline(self) -> SystemResult:
        return self.systems[0]

    @property
    def others(self) -> list[SystemResult]:
        return self.systems[1:]

    @property
    def seeded(self) -> bool:
        """True if some system has several seeds."""
        return any(len(system.runs) > 1 for system in self.systems)

    @property
    def has_outputs(self) -> bool:
        """False for language models, or if no metric needs outputs."""
        return any(run.sentences or run.baseline is not None for system in self.systems for run in system.runs)

    def having(self, metric: MetricName) -> list[SystemResult]:
        """The systems with a metric; all have the first metric."""
        return [system for system in self.systems if metric in system.qualities]

    def tested(self, metric: MetricName) -> list[SystemResult]:
        """The systems tested against the baseline in a metric."""
        return [system for system in self.others if metric in system.verdicts]

    def best(self, metric: MetricName, among: list[SystemResult] | None = None) -> SystemResult:
        """The system with the best value, the first of equals; nan is worse than any number."""
        systems = among or self.having(metric)
        sign = 1 if systems[0].qualities[metric].better == "higher" else -1

        def rank(system: SystemResult) -> float:
            value = system.qualities[metric].value
            return -math.inf if math.isnan(value) else sign * value

        return max(systems, key=rank)

    def significant_after_holm(self, metric: MetricName) -> list[SystemResult]:
        """The systems that differ significantly after the correction of Holm (1979) for the number of tests."""
        ranked = sorted(self.tested(metric), key=lambda system: system.verdicts[metric].p)
        kept: list[SystemResult] = []
        for place, system in enumerate(ranked):
            if system.verdicts[metric].p >= LEVEL / (len(ranked) - place):
                break
            kept.append(system)
        return kept

    def without_texts(self) -> ComparisonResult:
        """A copy without sources, references and outputs, which may not be free to publish."""
        systems = [replace(each, runs=[replace(run, outputs=[]) for run in each.runs]) for each in self.systems]
        return replace(self, sources=[], references=[], systems=systems, where=replace(self.where, contrasts=[]))

    def to_dict(self) -> dict[str, Any]:
        """All values in full precision for JSON, with null for infinity, NaN, and metrics that a system lacks."""
        plain: dict[str, Any] = _finite(_RESULT.dump_python(self))
        plain["baseline"] = self.baseline.name
        for system in plain["systems"]:
            tables = [system["qualities"], *([system["verdicts"]] if system["verdicts"] else [])]
            for table in (*tables, *(run["scores"] for run in system["runs"])):
                table.update({metric: table.get(metric) for metric in self.metrics})
        return plain

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        """The comparison as plain lines."""
        from sightline.comparison.terminal import plain_text

        return plain_text(self)


_RESULT = TypeAdapter(ComparisonResult)


def _finite(value: Any) -> Any:
    """Replace infinity and NaN by None."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_comparison(path: Path) -> ComparisonResult:
    """Read what `sightline compare --json` wrote, in this version or an earlier one."""
    remedy = "give a file that sightline compare --json wrote, as it was written"
    try:
        return _RESULT.validate_python(_upgraded(parse_json(read_bounded(path, MAX_JSON))))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); give a file that compare --json wrote") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path} is no comparison ({place}: {first['msg']}); {remedy}") from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{path} is no comparison ({type(error).__name__}: {error}); {remedy}") from error


def _upgraded(plain: dict[str, Any]) -> dict[str, Any]:
    """Add what earlier versions did not write: pairs, `where`, and the number of decoded sentences (all or none)."""
    test = plain.get("test", {})
    test.setdefault("pairs", test.get("sentences"))
    for system in plain.get("systems", []):
        for run in system["runs"]:
            run.setdefault("sentences", test.get("sentences") if run.get("sentences_per_second") else 0)
            run.setdefault("outputs", [])
    if "where" in plain:
        plain["where"] = _counts_renamed(plain["where"])
    elif plain.get("metrics"):
        label = METRICS[plain["metrics"][0]].name
        plain["where"] = {"corpus_metric": label, "sentence_metric": label}
    return plain


def _counts_renamed(value: Any) -> Any:
    """Rename the field `wanted` to `count`, but not a system of that name."""
    if isinstance(value, Mapping):
        new = "count" if value.keys() & {"matched", "ngram", "word", "label"} else "wanted"
        return {new if key == "wanted" else key: _counts_renamed(inner) for key, inner in value.items()}
    return [_counts_renamed(inner) for inner in value] if isinstance(value, list) else value
