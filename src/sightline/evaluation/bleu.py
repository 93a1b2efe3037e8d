"""BLEU, chrF and TER as sacreBLEU computes them (Post 2018), with its signatures; GLEU of single sentences.

sacreBLEU counts; the functions here turn many sums of counts into scores at once, equal to the last bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from sightline.evaluation.error_rates import error_rate
from sightline.evaluation.measurement import Measurement, Metric, Numbers, References, Texts, fingerprint
from sightline.text.bleu_tokenizers import check_tokenizer, resolved

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreBleuMetric

Token = TypeVar("Token", bound=Hashable)

_GLEU_ORDER = 4


def bleu(sums: Numbers) -> Numbers:
    """BLEU = BP · exp(Σ log pₙ / 4) of (M, 10) sums (Papineni et al. 2002).

    The sums are the lengths of output and reference, the matches of 1- to 4-grams, and how many there were. Orders
    without a match are counted 1/2, then 1/4, ... of one ("exp" smoothing; Chen & Cherry 2014, method 3).
    """
    length, reference_length = sums[:, 0], sums[:, 1]
    order = (sums.shape[1] - 2) // 2
    matches, totals = sums[:, 2 : 2 + order], sums[:, 2 + order :]  # (M, 4)
    reached = np.logical_and.accumulate(totals > 0, axis=1)
    missed = reached & (matches == 0)
    credited = np.where(missed, 0.5 ** np.cumsum(missed, axis=1), matches)
    precisions = np.divide(100 * credited, totals, out=np.zeros_like(totals), where=reached)
    matched = np.flatnonzero(matches.any(axis=1) & reached.all(axis=1) & (length > 0))
    scores = np.zeros(len(sums))
    # Python's log, exp and sum: the last bit of NumPy's depends on the processor, and sacreBLEU uses Python's.
    for row, precision, short in zip(
        matched.tolist(),
        precisions[matched].tolist(),
        (reference_length[matched] / length[matched]).tolist(),
        strict=True,
    ):
        brevity = math.exp(1 - short) if short > 1 else 1.0
        scores[row] = brevity * math.exp(sum([math.log(p) for p in precision]) / order)
    return scores


def chrf(sums: Numbers) -> Numbers:
    """chrF2 of (M, 18) sums: n-grams in the output, in the reference and in both, for 1 to 6 characters (Popović 2015).

    With word n-grams of order one or two (chrF+, chrF++; Popović 2017) there are 21 or 24 sums. Precision and recall
    are averaged over the orders that both sides have; F2 weighs recall four times as much.
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


class SacreBleu(Metric):
    """A metric that sacreBLEU counts, with its defaults."""

    values: ClassVar[Callable[[Numbers], Numbers]]

    def _metric(self, references: References) -> SacreBleuMetric:
        raise NotImplementedError

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        metric: Any = self._metric(references)
        streams = [list(stream) for stream in zip_longest(*references)]  # one list for each reference, not sentence
        statistics = metric._extract_corpus_statistics(hypotheses, streams)
        result = metric._aggregate_and_compute(statistics)
        conditions = dict(metric.get_signature().info)
        conditions["version"] = conditions.pop("version")  # comes last
        return self.measurement(
            statistics,
            type(self).values,
            conditions=conditions,
            against=fingerprint("references", references),
            name=result.name,  # chrF2++ names its word order
            detail=result._verbose,
        )


class Bleu(SacreBleu):
    """BLEU; `bleu_tokenize: auto` chooses the tokenizer by the script of the references."""

    name = "BLEU"
    values = bleu

    def _metric(self, references: References) -> SacreBleuMetric:
        from sacrebleu.metrics.bleu import BLEU

        tokenize = resolved(self.options, chain.from_iterable(references))
        check_tokenizer(tokenize)
        # force: no warning about outputs that end in " ."
        return BLEU(lowercase=self.options.lowercase, tokenize=tokenize, force=True)


class ChrF(SacreBleu):
    """chrF2; with `chrf_word_order: 2`, chrF++."""

    name = "chrF2"
    values = chrf

    def _metric(self, references: References) -> SacreBleuMetric:
        from sacrebleu.metrics.chrf import CHRF

        return CHRF(lowercase=self.options.lowercase, word_order=self.options.chrf_word_order)


class TranslationEditRate(SacreBleu):
    """TER. Unlike in sacreBLEU, case counts unless `lowercase` is set."""

    name = "TER"
    higher_is_better = False
    values = error_rate

    def _metric(self, references: References) -> SacreBleuMetric:
        from sacrebleu.metrics.ter import TER

        return TER(case_sensitive=not self.options.lowercase)


# --- GLEU of sentences -------------------------------------------------------------------------------------------


def ngrams(tokens: Sequence[Token], order: int) -> Counter[tuple[Token, ...]]:
    """Counts of the n-grams of length 1 to `order`."""
    counts: Counter[tuple[Token, ...]] = Counter()
    for length in range(1, order + 1):
        counts.update(zip(*(tokens[start:] for start in range(length)), strict=False))
    return counts


def sentence_gleu(outputs: Sequence[Sequence[Hashable]], reference: Sequence[Hashable]) -> list[float]:
    """GLEU of several outputs for one reference, the reward of Google's translation system (Wu et al. 2016, §5).

    min(precision, recall) of the 1- to 4-grams together, between 0 and 1, symmetric, and not 0 for lack of a 4-gram.
    With m n-grams in common, o in the output and r in the reference, min(m/o, m/r) = m / max(o, r).
    """
    reference_ngrams = ngrams(reference, _GLEU_ORDER)
    total = reference_ngrams.total()
    scores = []
    for output in outputs:
        counts = ngrams(output, _GLEU_ORDER)
        matches = sum(min(count, reference_ngrams[gram]) for gram, count in counts.items() if gram in reference_ngrams)
        scores.append(matches / max(counts.total(), total, 1))
    return scores
