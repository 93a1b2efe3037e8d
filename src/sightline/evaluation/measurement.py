"""What a metric measured, sentence by sentence, and scores with 95% intervals made from it.

The corpus scores here are functions of sums over sentences (sufficient statistics): BLEU of n-gram counts, an error
rate of errors and lengths. Bootstrap and significance tests draw or swap rows of statistics and score the sums, so each
text is examined once.

Intervals are bootstrap percentiles (Koehn 2004) with sacreBLEU's draws and bounds (same generator and seed, 1/40 cut
off at either end): half the width of an interval is the `±` that `sacrebleu --confidence` prints. Where all labels are
right, or all are wrong, resampling yields a single point; the interval is then Wilson's, and the signature says so.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass as validated_dataclass

from sightline.recipe.decoding import Evaluation

Numbers = NDArray[np.float64]
Better = Literal["higher", "lower"]
Texts = Sequence[str]
References = Sequence[Sequence[str]]  # one list for each output
Real = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]  # JSON writes nan as null
_INDICES_AT_ONCE = 4_000_000  # indices held in memory


@validated_dataclass(frozen=True)
class MetricScore:
    """The value of a metric with its interval and signature."""

    name: str
    value: Real
    low: Real
    high: Real
    signature: str
    count: int
    better: Better
    detail: str = ""
    digits: int = 2  # decimals to print

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" [{self.low:.{self.digits}f}, {self.high:.{self.digits}f}]"
        return f"{self.name} {self.value:.{self.digits}f}{interval}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinite numbers: they are "Infinity"; an interval that was not computed is null."""
        plain = {key: None if value != value else value for key, value in asdict(self).items() if key != "digits"}
        return {key: "Infinity" if value == math.inf else value for key, value in plain.items()}


@dataclass(frozen=True)
class Support:
    """How much data is behind a score of many items: its sentences, or for each label the texts that have it."""

    unit: Literal["sentence", "label"]
    counts: tuple[int, ...]

    def interval(self, *, all_right: bool) -> tuple[float, float]:
        """Wilson's interval for n right (or wrong) of n, averaged over the counts.

        From n / (n + z²) to 1, or from 0 to z² / (n + z²). Items of one sentence are right or wrong together, so n
        counts sentences; that errs on the wide side.
        """
        bounds = [wilson(count if all_right else 0, count) for count in self.counts]
        return sum(low for low, _ in bounds) / len(bounds), sum(high for _, high in bounds) / len(bounds)


@dataclass(frozen=True, eq=False)
class Measurement:
    """One metric on one set of outputs: statistics of each sentence, and how their sum is scored."""

    name: str
    better: Better
    statistics: Numbers  # (N, K)
    values: Callable[[Numbers], Numbers]  # sums (M, K) -> scores (M,)
    conditions: Mapping[str, object]  # the signature's parts in order; None reserves a place
    against: str  # fingerprint of the references: a paired test needs the same for both systems
    detail: str = ""
    spread: Literal["bootstrap", "wilson"] = "bootstrap"  # how the interval is made
    support: Support | None = None  # for the interval at 0 and 100
    outcomes: NDArray[np.bool_] | None = None  # (I,) whether each item (output or token) is right, for McNemar's test
    digits: int = 2
    classes: tuple[str, ...] | None = None  # labels of the K columns, in equal parts, where they depend on the outputs

    @property
    def count(self) -> int:
        """The number of sentences."""
        return len(self.statistics)

    @property
    def value(self) -> float:
        """The corpus score."""
        return float(self.values(self.statistics.sum(axis=0)[None])[0])

    @property
    def signature(self) -> str:
        """How the metric was computed, in sacreBLEU's form. Measurements with different signatures do not compare."""
        return signature(self.conditions)

    def score(self, *, bootstrap: int = 1000, seed: int = 12345) -> MetricScore:
        """The corpus score with its 95% interval; `bootstrap=0` omits the interval (nan)."""
        low, high, method = self._interval(bootstrap, seed)
        return MetricScore(
            name=self.name,
            value=self.value,
            low=low,
            high=high,
            signature=signature({**self.conditions, **method}),
            count=self.count,
            better=self.better,
            detail=self.detail,
            digits=self.digits,
        )

    def _interval(self, bootstrap: int, seed: int) -> tuple[float, float, dict[str, object]]:
        """Low, high, and the method as parts of the signature."""
        if bootstrap == 0:
            return math.nan, math.nan, {}
        if self.spread == "wilson":
            low, high = wilson(int(self.statistics[:, 0].sum()), self.count)
            return 100 * low, 100 * high, {"ci": "wilson"}
        if self.support is not None and self.value in (0, 100):
            low, high = self.support.interval(all_right=self.value == 100)
            return 100 * low, 100 * high, {"ci": f"wilson-by-{self.support.unit}"}
        low, high = interval(self.statistics, self.values, bootstrap=bootstrap, seed=seed)
        return low, high, {"bs": bootstrap, "seed": seed}


class Metric:
    """Base class of metrics: set the class attributes, write `score`, and add the class to `METRICS`.

    `needs` names what a metric is computed from: "outputs", and "references" or "sources" beside them; or
    "likelihoods", which the model assigns to the references, so that nothing is decoded. `options` is the `evaluation`
    section of the recipe; `options.lowercase` asks for scores that ignore case.
    """

    name: ClassVar[str]  # in tables and reports; recipes use the key in METRICS
    higher_is_better: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"outputs", "references"})
    digits: ClassVar[int] = 2  # decimals to print

    def __init__(self, options: Evaluation | None = None) -> None:
        self.options = Evaluation() if options is None else options

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        """Measure outputs against one list of references each; `sources` are given for metrics that need them."""
        raise NotImplementedError

    def measurement(
        self,
        statistics: Any,
        values: Callable[[Numbers], Numbers],
        *,
        conditions: Mapping[str, object],
        against: str,
        **details: Any,
    ) -> Measurement:
        """A `Measurement` with the name, direction and decimals of this metric; `details` are further fields."""
        return Measurement(
            better="higher" if self.higher_is_better else "lower",
            statistics=np.asarray(statistics, dtype=np.float64),
            values=values,
            conditions=conditions,
            against=against,
            **{"name": self.name, "digits": self.digits, **details},
        )


def align_classes(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Give measurements of labels the same columns: zeros for a class that one of them lacks.

    The columns of a measurement are the labels of its references and outputs, so systems may have different ones.
    """
    every = tuple(sorted({name for each in measurements for name in each.classes or ()}))
    return [
        each if each.classes is None or each.classes == every else _with_classes(each, each.classes, every)
        for each in measurements
    ]


def _with_classes(measurement: Measurement, classes: tuple[str, ...], every: tuple[str, ...]) -> Measurement:
    old = measurement.statistics.reshape(measurement.count, len(classes), -1)  # (N, C, columns of a class)
    new = np.zeros((measurement.count, len(every), old.shape[2]))
    column = {name: number for number, name in enumerate(every)}
    new[:, [column[name] for name in classes]] = old
    return replace(measurement, statistics=new.reshape(measurement.count, -1), classes=every)


# --- intervals ---------------------------------------------------------------------------------------------------


def interval(
    statistics: Sequence[Sequence[float]] | Numbers,
    value: Callable[[Numbers], Numbers],
    *,
    bootstrap: int,
    seed: int,
) -> tuple[float, float]:
    """Bounds of `value` over resampled sums of `statistics` (N, K); `value` maps (R, K) sums to R numbers."""
    if bootstrap == 0:
        return math.nan, math.nan
    if bootstrap < 2:
        raise ValueError(f"bootstrap ({bootstrap}) must be at least 2 resamples, or 0 for no interval")
    values = np.sort(value(resampled_sums(np.asarray(statistics, dtype=np.float64), bootstrap, seed)))
    cut = bootstrap // 40
    return float(values[cut]), float(values[bootstrap - cut - 1])


def resampled_sums(statistics: Numbers, bootstrap: int, seed: int) -> Numbers:
    """(R, K): `bootstrap` sums, each over N rows drawn with replacement from the N rows of `statistics`."""
    infinite = np.isinf(statistics)
    if infinite.any():  # 0 · ∞ is no number: sum what is finite, and see which sums have a row that is not
        finite = resampled_sums(np.where(infinite, 0.0, statistics), bootstrap, seed)
        counts = resampled_sums(infinite.astype(np.float64), bootstrap, seed)
        return np.where(counts > 0, np.inf, finite)
    rows, width = statistics.shape
    generator = np.random.default_rng(seed)
    sums = np.empty((bootstrap, width))
    step = max(1, _INDICES_AT_ONCE // rows)
    for start in range(0, bootstrap, step):
        size = min(step, bootstrap - start)
        drawn = generator.choice(rows, size=(size, rows), replace=True)  # (r, N)
        drawn += np.arange(size)[:, None] * rows
        times = np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows)
        sums[start : start + size] = times @ statistics
    return sums


def wilson(successes: int, count: int) -> tuple[float, float]:
    """95% score interval of a proportion (Wilson 1927). Unlike the bootstrap's, it has a width at 0 and 100%."""
    z = 1.959963984540054
    share, shrink = successes / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low, high = middle - half, middle + half
    return low if successes else 0.0, high if successes < count else 1.0  # exact, without rounding errors


# --- signatures --------------------------------------------------------------------------------------------------


def signature(conditions: Mapping[str, object]) -> str:
    """`key:value|...` in sacreBLEU's format."""
    words: dict[object, object] = {True: "yes", False: "no"}
    return "|".join(
        f"{key}:{words[value] if isinstance(value, bool) else value}"
        for key, value in conditions.items()
        if value is not None
    )


def number_of_references(references: References) -> int | str:
    """The `nrefs` of a signature: how many references each output has, or "var"."""
    counts = {len(each) for each in references}
    return counts.pop() if len(counts) == 1 else "var"


def fingerprint(kind: str, content: Sequence[Sequence[str]] | Numbers) -> str:
    """A short hash of content: `references 3f09a1...`."""
    plain = content.tolist() if isinstance(content, np.ndarray) else [list(several) for several in content]
    return f"{kind} {hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:12]}"
