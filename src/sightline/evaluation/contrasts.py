"""Where two systems differ: the sentences, n-grams and words that one gets right and the other does not.

After compare-mt (Neubig et al. 2019, "compare-mt: A Tool for Holistic Comparison of Language Generation Systems").
Words are those of `word_differences.words`, case kept. Both systems must be compared by the same counts, so several
references are clipped as in BLEU (Papineni et al. 2002): the count of an n-gram is its largest in one reference, and it
is matched at most that often.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from sightline.evaluation.bleu import ngrams
from sightline.evaluation.breakdowns import check_parallel, check_positive
from sightline.evaluation.measurement import Better, References, Texts
from sightline.evaluation.significance import sign_test
from sightline.evaluation.word_differences import words
from sightline.terminal import plural

SentenceScorer = Callable[[str, list[str]], float]  # output, its references -> score
Ngram = tuple[str, ...]

_SMOOTHING = 1.0  # compare-mt's alpha: occurrences added to either side


@dataclass(frozen=True)
class ChangedSentence:
    """A sentence, numbered from 1, with the outputs of two systems; `gain` is positive if the system is better."""

    number: int
    source: str
    references: list[str]
    baseline: str
    system: str
    baseline_score: float
    system_score: float
    gain: float


@dataclass(frozen=True)
class ChangedSentences:
    """The sentences that changed most, the largest change first."""

    improved: list[ChangedSentence]
    worsened: list[ChangedSentence]


@dataclass(frozen=True)
class NgramContrast:
    """An n-gram, its count in the references, and how often each system matched it."""

    ngram: list[str]
    count: int
    baseline_matched: int
    system_matched: int
    likelihood_ratio: float


@dataclass(frozen=True)
class NgramContrasts:
    """The n-grams that the system, and those that the baseline, matches more often than the other."""

    system: list[NgramContrast]
    baseline: list[NgramContrast]


@dataclass(frozen=True)
class WordContrast:
    """A word, its count in the references, and the share of them that each system produced.

    The system alone produced `only_system` occurrences, the baseline alone `only_baseline`.
    """

    word: str
    count: int
    baseline_recall: float
    system_recall: float
    only_baseline: int
    only_system: int
    p: float


@dataclass(frozen=True)
class WordContrasts:
    """The words that the system, and those that the baseline, produces more reliably than the other."""

    system: list[WordContrast]
    baseline: list[WordContrast]


def changed_most(
    sources: Texts,
    references: References,
    baseline: Texts,
    system: Texts,
    scorer: SentenceScorer,
    *,
    better: Better = "higher",
    k: int = 10,
) -> ChangedSentences:
    """The `k` sentences where the system gained most on the baseline, and the `k` where it lost most.

    Sentences with equal outputs or equal scores are in neither list; equal gains are in the order of the sentences.
    """
    check_parallel(references, {"baseline": baseline, "system": system})
    check_positive(k=k)
    if len(sources) != len(references):
        raise ValueError(
            f"{plural(len(sources), 'source')} and references for {len(references)}: give one source for each"
        )
    sign = 1 if better == "higher" else -1
    changed: list[ChangedSentence] = []
    for place, (before, after) in enumerate(zip(baseline, system, strict=True)):
        if before != after:
            several = list(references[place])
            scores = scorer(before, several), scorer(after, several)
            gain = sign * (scores[1] - scores[0])
            changed.append(ChangedSentence(place + 1, sources[place], several, before, after, *scores, gain))
    return ChangedSentences(
        improved=sorted((each for each in changed if each.gain > 0), key=lambda each: -each.gain)[:k],
        worsened=sorted((each for each in changed if each.gain < 0), key=lambda each: each.gain)[:k],
    )


def ngram_contrasts(
    references: References,
    baseline: Texts,
    system: Texts,
    *,
    longest: int = 4,
    k: int = 10,
) -> NgramContrasts:
    """The n-grams (n up to `longest`) that one system matches and the other does not.

    compare-mt ranks them by (m₁ + α) / (m₁ + m₂ + 2α) of the matches m with α = 1, which puts one match to none before
    30 to 15. Here the rank is the evidence that one is better: Dunning's (1993) likelihood ratio for a fair coin,

        2 · (b ln(2b / (b + c)) + c ln(2c / (b + c))),

    with b = α + the occurrences that only the system matched, c = α + those that only the baseline matched (what both
    matched, or neither, does not tell them apart). An n-gram inside one listed before it, with the same counts, is the
    same finding and left out.
    """
    check_parallel(references, {"baseline": baseline, "system": system})
    check_positive(longest=longest, k=k)
    paired = _paired_matches(references, baseline, system, longest)
    return NgramContrasts(
        system=_top_ngrams({ngram: each for ngram, each in paired.items() if each.system > each.baseline}, k),
        baseline=_top_ngrams({ngram: each for ngram, each in paired.items() if each.system < each.baseline}, k),
    )


def word_contrasts(
    references: References,
    baseline: Texts,
    system: Texts,
    *,
    least: int = 5,
    k: int = 10,
) -> WordContrasts:
    """The words (with a count of at least `least`) that one system produces more reliably than the other.

    compare-mt's word accuracy for single words, ranked by the exact McNemar test (two-sided binomial with p = ½) of the
    occurrences that only one of the two produced: b by the system, c by the baseline, n = b + c,

        p = 2 · Σ C(n, i) / 2ⁿ over i ≤ min(b, c), at most 1.

    p is only for ranking: many words are tested, so a single small p proves nothing.
    """
    check_parallel(references, {"baseline": baseline, "system": system})
    check_positive(least=least, k=k)
    contrasts = [
        WordContrast(
            word,
            each.count,
            each.baseline / each.count,
            each.system / each.count,
            each.only_baseline,
            each.only_system,
            sign_test(each.only_baseline, each.only_system),
        )
        for (word,), each in _paired_matches(references, baseline, system, longest=1).items()
        if each.count >= least and each.system != each.baseline
    ]
    contrasts.sort(key=lambda each: (each.p, -abs(each.only_system - each.only_baseline), each.word))
    return WordContrasts(
        system=[each for each in contrasts if each.only_system > each.only_baseline][:k],
        baseline=[each for each in contrasts if each.only_system < each.only_baseline][:k],
    )


@dataclass(slots=True)
class _PairedCounts:
    """Occurrences of an n-gram: in the references, matched by either system, and matched by one alone."""

    count: int = 0
    baseline: int = 0
    system: int = 0
    only_baseline: int = 0
    only_system: int = 0


def _paired_matches(references: References, baseline: Texts, system: Texts, longest: int) -> dict[Ngram, _PairedCounts]:
    """Counts of each n-gram of the references that a system matches, clipped sentence by sentence."""
    totals: Counter[Ngram] = Counter()
    paired: defaultdict[Ngram, _PairedCounts] = defaultdict(_PairedCounts)
    for several, before, after in zip(references, baseline, system, strict=True):
        counts = ngrams(words(several[0]), longest)
        for other in several[1:]:
            counts |= ngrams(words(other), longest)
        totals.update(counts)
        first = ngrams(words(before), longest)
        second = first if before == after else ngrams(words(after), longest)
        for ngram in counts.keys() & (first.keys() | second.keys()):
            count, each = counts[ngram], paired[ngram]
            in_first, in_second = min(count, first[ngram]), min(count, second[ngram])
            each.baseline += in_first
            each.system += in_second
            each.only_baseline += max(0, in_first - in_second)
            each.only_system += max(0, in_second - in_first)
    for ngram, each in paired.items():
        each.count = totals[ngram]
    return paired


def _likelihood_ratio(only_first: int, only_second: int) -> float:
    fewer, more = sorted((only_first + _SMOOTHING, only_second + _SMOOTHING))
    return 2 * sum(count * math.log(2 * count / (fewer + more)) for count in (fewer, more))


def _top_ngrams(paired: dict[Ngram, _PairedCounts], k: int) -> list[NgramContrast]:
    """The first k, without those that repeat a longer one before them.

    Tens of thousands of n-grams share a few counts, so counts are ranked first, then the n-grams of the best counts.
    """
    by_counts: defaultdict[tuple[int, int], list[Ngram]] = defaultdict(list)
    for ngram, each in paired.items():
        by_counts[each.only_baseline, each.only_system].append(ngram)
    ranked = sorted((-_likelihood_ratio(*counts), sorted(counts), counts) for counts in by_counts)
    chosen: list[NgramContrast] = []
    for negative, _, counts in ranked:
        for ngram in sorted(by_counts[counts], key=lambda each: (-len(each), each)):
            each = paired[ngram]
            contrast = NgramContrast(list(ngram), each.count, each.baseline, each.system, -negative)
            if not any(_repeats(contrast, listed) for listed in chosen):
                chosen.append(contrast)
            if len(chosen) == k:
                return chosen
    return chosen


def _repeats(each: NgramContrast, listed: NgramContrast) -> bool:
    """Return True if an n-gram is part of a listed one with the same counts."""
    short, long = each.ngram, listed.ngram
    same_counts = (each.count, each.baseline_matched, each.system_matched, each.likelihood_ratio) == (
        listed.count,
        listed.baseline_matched,
        listed.system_matched,
        listed.likelihood_ratio,
    )
    return same_counts and any(long[at : at + len(short)] == short for at in range(len(long) - len(short) + 1))
