"""BLEU, chrF and TER, as sacreBLEU computes them (Post 2018), with its signatures.

sacreBLEU counts; the score of a sum of counts is computed here for many sums at once, to the same last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

import numpy as np

from sightline.evaluation.errors import rate
from sightline.evaluation.intervals import Numbers
from sightline.evaluation.measurement import Measurement, fingerprint
from sightline.recipe.decoding import BleuTokenizer
from sightline.text.bleu_tokenizers import check_tokenizer

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric


def overlap(
    name: Literal["bleu", "chrf", "ter"],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool,
    tokenize: BleuTokenizer = "13a",
    word_order: int = 0,
) -> Measurement:
    """Measure with sacreBLEU. Its defaults, except that TER keeps the case too unless `lowercase` is asked for.

    `tokenize` is BLEU's, `word_order` chrF's (2: chrF++).
    """
    metric = _metric(name, lowercase, tokenize, word_order)
    streams = [
        list(stream) for stream in zip_longest(*references)
    ]  # sacreBLEU wants one list per reference, not sentence
    statistics = metric._extract_corpus_statistics(hypotheses, streams)
    result = metric._aggregate_and_compute(statistics)
    conditions = dict(metric.get_signature().info)
    conditions["version"] = conditions.pop("version")  # comes last
    return Measurement(
        name=result.name,
        better="lower" if name == "ter" else "higher",
        statistics=np.array(statistics, dtype=np.float64),
        values={"bleu": bleu, "chrf": chrf, "ter": rate}[name],
        conditions=conditions,
        against=fingerprint("references", references),
        detail=result._verbose,
    )


def bleu(sums: Numbers) -> Numbers:
    """BLEU = BP · exp(Σ log pₙ / 4) of (M, 10) sums (Papineni et al. 2002).

    The sums are the lengths of output and reference, the matches of 1- to 4-grams, and how many there were. Orders
    without a match are counted 1/2, then 1/4, ... of one ("exp" smoothing; Chen & Cherry 2014, method 3).
    """
    length, wanted = sums[:, 0], sums[:, 1]
    order = (sums.shape[1] - 2) // 2
    matches, totals = sums[:, 2 : 2 + order], sums[:, 2 + order :]  # (M, 4)
    reached = np.logical_and.accumulate(totals > 0, axis=1)
    missed = reached & (matches == 0)
    credited = np.where(missed, 0.5 ** np.cumsum(missed, axis=1), matches)
    precisions = np.divide(100 * credited, totals, out=np.zeros_like(totals), where=reached)
    matched = np.flatnonzero(matches.any(axis=1) & reached.all(axis=1) & (length > 0))
    scores = np.zeros(len(sums))
    # Python's log, exp and sum, not NumPy's, whose last bit depends on the processor: sacreBLEU's numbers, everywhere.
    for row, precision, short in zip(
        matched.tolist(), precisions[matched].tolist(), (wanted[matched] / length[matched]).tolist(), strict=True
    ):
        brevity = math.exp(1 - short) if short > 1 else 1.0
        scores[row] = brevity * math.exp(sum([math.log(p) for p in precision]) / order)
    return scores


def chrf(sums: Numbers) -> Numbers:
    """chrF2 of (M, 18) sums: n-grams in the output, in the reference and in both, for 1 to 6 characters (Popović 2015).

    With words of one or two (chrF+ and chrF++; Popović 2017) there are 21 or 24 of them.

    Precision and recall are averaged over the orders that both sides have; F2 weighs recall four times as much.
    """
    hypothesis, reference, both = (sums[:, start::3] for start in range(3))  # (M, 6) each
    counted = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(counted.sum(axis=1), 1)
    precision, recall = (
        # accumulate adds from left to right, as sacreBLEU does; sum() may not
        np.add.accumulate(np.divide(both, side, out=np.zeros_like(both), where=counted), axis=1)[:, -1] / orders
        for side in (hypothesis, reference)
    )
    weighted = 4 * precision + recall
    result: Numbers = 100 * np.divide(5 * precision * recall, weighted, out=np.zeros_like(weighted), where=weighted > 0)
    return result


def _metric(name: Literal["bleu", "chrf", "ter"], lowercase: bool, tokenize: BleuTokenizer, word_order: int) -> Metric:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "bleu":
        check_tokenizer(tokenize)
        return BLEU(lowercase=lowercase, tokenize=tokenize, force=True)  # force: no warning of outputs that end in " ."
    return CHRF(lowercase=lowercase, word_order=word_order) if name == "chrf" else TER(case_sensitive=not lowercase)
