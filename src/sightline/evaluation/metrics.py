"""Every metric under the name recipes give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from sightline.evaluation.errors import error_rate, exact_match
from sightline.evaluation.intervals import Numbers, Score, interval
from sightline.evaluation.overlap import overlap
from sightline.recipe import MetricName
from sightline.version import version

__all__ = ["METRICS", "Metric", "Score", "perplexity", "score"]


class Scorer(Protocol):
    """Scores texts against texts."""

    def __call__(
        self,
        hypotheses: Sequence[str],
        references: Sequence[Sequence[str]],
        *,
        lowercase: bool,
        bootstrap: int,
        seed: int,
    ) -> Score: ...


@dataclass(frozen=True)
class Metric:
    """A metric: its name in tables, which way is up, and how texts are scored (None: it does not look at texts)."""

    label: str
    better: Literal["higher", "lower"]
    score: Scorer | None


METRICS: dict[MetricName, Metric] = {
    "bleu": Metric("BLEU", "higher", partial(overlap, "bleu")),
    "chrf": Metric("chrF2", "higher", partial(overlap, "chrf")),
    "ter": Metric("TER", "lower", partial(overlap, "ter")),
    "exact": Metric("exact", "higher", exact_match),
    "wer": Metric("WER", "lower", partial(error_rate, "wer")),
    "cer": Metric("CER", "lower", partial(error_rate, "cer")),
    "perplexity": Metric("perplexity", "lower", None),
}


def score(
    name: MetricName,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    bootstrap: int = 1000,
    seed: int = 12345,
) -> Score:
    """Score outputs against their references (one list per output, of any length from one up).

    `bootstrap=0` leaves the interval out (nan), which is what a validation during training wants.
    """
    if name not in METRICS:
        raise ValueError(f"there is no metric {name!r}; choose from {', '.join(METRICS)}")
    scorer = METRICS[name].score
    if scorer is None:
        raise ValueError(f"{name} is made of log-probabilities, not of texts; call {name}(nll, tokens)")
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} outputs and references for {len(references)}: "
            "each output needs its own list of references"
        )
    if not hypotheses:
        raise ValueError(f"there are no outputs, so there is no {METRICS[name].label} to compute")
    for number, several in enumerate(references, start=1):
        if isinstance(several, str):
            raise TypeError(f"the references of output {number} are a text; write a list of texts: [{several!r}]")
        if not several:
            raise ValueError(f"output {number} has no reference; leave it out or give it one")
    return scorer(hypotheses, references, lowercase=lowercase, bootstrap=bootstrap, seed=seed)


def perplexity(nll: ArrayLike, tokens: ArrayLike, *, bootstrap: int = 1000, seed: int = 12345) -> Score:
    """exp(total negative log-likelihood / number of tokens), from the sums (in nats) and counts of each sentence."""
    losses, counts = np.asarray(nll, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    if losses.shape != counts.shape or losses.ndim != 1:
        raise ValueError(f"nll {losses.shape} and tokens {counts.shape} must be one number per sentence each")
    if not losses.size or counts.min() < 1:
        raise ValueError("perplexity needs at least one sentence, and at least one token in each (its end mark)")

    def values(sums: Numbers) -> Numbers:
        with np.errstate(over="ignore"):
            result: Numbers = np.exp(sums[:, 0] / sums[:, 1])
        return result

    statistics = np.stack([losses, counts], axis=1)
    total = statistics.sum(axis=0)
    low, high = interval(statistics, values, bootstrap=bootstrap, seed=seed)
    drawn = f"bs:{bootstrap}|seed:{seed}|" if bootstrap else ""
    return Score(
        name=METRICS["perplexity"].label,
        value=float(values(total[None])[0]),
        low=low,
        high=high,
        signature=f"{drawn}unit:token|base:e|version:sightline-{version()}",
        count=losses.size,
        better="lower",
        detail=f"{total[0] / total[1]:.4f} nats per token, {int(total[1])} tokens",
    )
