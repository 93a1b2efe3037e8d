"""BLEU, chrF and TER, as sacreBLEU computes them (Post 2018), with its signatures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

import numpy as np

from sightline.evaluation.intervals import Numbers, Score, interval

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric


def overlap(
    name: Literal["bleu", "chrf", "ter"],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool,
    bootstrap: int,
    seed: int,
) -> Score:
    """Score with sacreBLEU. Its defaults, except that TER keeps the case too unless `lowercase` is asked for."""
    metric = _metric(name, lowercase)
    streams = [
        list(stream) for stream in zip_longest(*references)
    ]  # sacreBLEU wants one list per reference, not sentence
    statistics = metric._extract_corpus_statistics(hypotheses, streams)
    result = metric._aggregate_and_compute(statistics)

    def values(sums: Numbers) -> Numbers:
        return np.array([metric._compute_score_from_stats(row.tolist()).score for row in sums])

    low, high = interval(statistics, values, bootstrap=bootstrap, seed=seed)
    if bootstrap:
        metric.n_bootstrap, metric.seed = bootstrap, seed
    return Score(
        name=result.name,
        value=float(result.score),
        low=low,
        high=high,
        signature=metric.get_signature().format(),
        count=len(hypotheses),
        better="lower" if name == "ter" else "higher",
        detail=result._verbose,
    )


def _metric(name: Literal["bleu", "chrf", "ter"], lowercase: bool) -> Metric:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "bleu":
        return BLEU(lowercase=lowercase, force=True)  # force: outputs may end in " ." without a warning
    return CHRF(lowercase=lowercase) if name == "chrf" else TER(case_sensitive=not lowercase)
