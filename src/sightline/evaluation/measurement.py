"""What a metric saw in a set of outputs, sentence by sentence: all that intervals and significance tests need.

Every corpus score here is a function of sums over sentences (its sufficient statistics): BLEU of n-gram counts, an
error rate of errors and lengths. Whoever draws sentences again, or swaps them between two systems, adds up other rows
and asks for the score of the sums; texts are looked at once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sightline.evaluation.intervals import Numbers, Score, interval, wilson


@dataclass(frozen=True)
class Rest:
    """What a score of many items rests on: the sentences they stand in, or for each label the texts it is about."""

    unit: Literal["sentence", "label"]
    counts: tuple[int, ...]  # how many sentences, or texts for each label

    def interval(self, *, all_right: bool) -> tuple[float, float]:
        """Where all is right or all is wrong, resampling shows nothing else; Wilson's interval of n, on average.

        From n / (n + z²) to 1, or from 0 to z² / (n + z²). Wide rather than narrow: n are sentences and not their
        items, which are right or wrong together, and one that is not all right counts as all wrong.
        """
        ends = [wilson(count if all_right else 0, count) for count in self.counts]
        return sum(low for low, _ in ends) / len(ends), sum(high for _, high in ends) / len(ends)


@dataclass(frozen=True, eq=False)
class Measurement:
    """One metric on one set of outputs: statistics of each sentence, and how their sum becomes the corpus score."""

    name: str
    better: Literal["higher", "lower"]
    statistics: Numbers  # (N, K)
    values: Callable[[Numbers], Numbers]  # sums (M, K) -> scores (M,)
    conditions: Mapping[str, object]  # the signature's parts in order; None holds the place of one that may come
    against: str  # what the outputs were held against, as a fingerprint: a paired test needs the same for both
    detail: str = ""
    spread: Literal["bootstrap", "wilson"] = "bootstrap"  # how the interval is made
    rests_on: Rest | None = None  # for the interval at 0 and 100, where resampling shows nothing else
    outcomes: NDArray[np.bool_] | None = None  # (I,) whether each item (output or token) is right, for McNemar's test
    digits: int = 2  # behind the point, where a person reads a score
    classes: tuple[str, ...] | None = None  # what the K columns are about, in equal parts, where outputs decide that

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
        """How it was measured, in sacreBLEU's form. Two measurements compare only if theirs are equal."""
        return signature(self.conditions)

    def score(self, *, bootstrap: int = 1000, seed: int = 12345) -> Score:
        """The corpus score with its 95% interval; `bootstrap=0` leaves the interval out (nan)."""
        low, high, how = self._interval(bootstrap, seed)
        return Score(
            name=self.name,
            value=self.value,
            low=low,
            high=high,
            signature=signature({**self.conditions, **how}),
            count=self.count,
            better=self.better,
            detail=self.detail,
            digits=self.digits,
        )

    def _interval(self, bootstrap: int, seed: int) -> tuple[float, float, dict[str, object]]:
        """Low, high, and what the signature says of them."""
        if bootstrap == 0:
            return math.nan, math.nan, {}
        if self.spread == "wilson":
            low, high = wilson(int(self.statistics[:, 0].sum()), self.count)
            return 100 * low, 100 * high, {"ci": "wilson"}
        if self.rests_on is not None and self.value in (0, 100):
            low, high = self.rests_on.interval(all_right=self.value == 100)
            return 100 * low, 100 * high, {"ci": f"wilson-by-{self.rests_on.unit}"}
        low, high = interval(self.statistics, self.values, bootstrap=bootstrap, seed=seed)
        return low, high, {"bs": bootstrap, "seed": seed}


def aligned(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The same measurements with the same columns: a class that some did not see gets columns of zeros there.

    Two systems that give different labels have different columns, and adding those up would mix the classes.
    """
    every = sorted({name for each in measurements for name in each.classes or ()})
    return [
        each if each.classes is None or each.classes == tuple(every) else _widened(each, each.classes, tuple(every))
        for each in measurements
    ]


def _widened(measurement: Measurement, classes: tuple[str, ...], every: tuple[str, ...]) -> Measurement:
    old = measurement.statistics.reshape(measurement.count, len(classes), -1)  # (N, C, columns of a class)
    new = np.zeros((measurement.count, len(every), old.shape[2]))
    place = {name: number for number, name in enumerate(every)}
    new[:, [place[name] for name in classes]] = old
    return replace(measurement, statistics=new.reshape(measurement.count, -1), classes=every)


def signature(conditions: Mapping[str, object]) -> str:
    """`key:value|...`, as sacreBLEU writes it, so that the same tools read it."""
    words: dict[object, object] = {True: "yes", False: "no"}
    return "|".join(
        f"{key}:{words[value] if isinstance(value, bool) else value}"
        for key, value in conditions.items()
        if value is not None
    )


def fingerprint(kind: str, content: Sequence[Sequence[str]] | Numbers) -> str:
    """A few characters that differ when the content does: `references 3f09a1...`."""
    plain = content.tolist() if isinstance(content, np.ndarray) else [list(several) for several in content]
    return f"{kind} {hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:12]}"
