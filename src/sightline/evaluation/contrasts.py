"""Where two systems differ: the sentences, n-grams and words that one gets right and the other does not.

After compare-mt (Neubig et al. 2019, "compare-mt: A Tool for Holistic Comparison of Language Generation Systems"). All
of it is a function of texts. A word is what `word_differences.words` makes of a text, case kept. Both systems must be
asked for the same, so several references are clipped as BLEU does (Papineni et al. 2002): an n-gram is wanted as often
as it stands in the reference that has it most often, and matched at most that often.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sightline.evaluation.bleu import ngrams
from sightline.evaluation.breakdowns import check_parallel, check_positive
from sightline.evaluation.significance import sign_test
from sightline.evaluation.word_differences import words
from sightline.terminal import plural

SentenceScorer = Callable[[str, list[str]], float]  # output, its references -> score
Ngram = tuple[str, ...]

_SMOOTHING = 1.0  # compare-mt's alpha: occurrences added to either side


@dataclass(frozen=True)
class ChangedSentence:
    """A sentence, counted from 1, with what two systems made of it. `gain` is positive where the system is better."""

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
    """The sentences that changed most, largest change first."""

    improved: list[ChangedSentence]
    worsened: list[ChangedSentence]


@dataclass(frozen=True)
class NgramContrast:
    """An n-gram, how often the references want it, and how often each of two systems matched it."""

    ngram: list[str]
    wanted: int
    baseline_matched: int
    system_matched: int
    likelihood_ratio: float


@dataclass(frozen=True)
class NgramContrasts:
    """The n-grams that the system, and those that the baseline, gets right more often than the other."""

    system: list[NgramContrast]
    baseline: list[NgramContrast]


@dataclass(frozen=True)
class WordContrast:
    """A word of the references and the share of its occurrences that each of two systems produced.

    `only_system` occurrences were produced by the system and not the baseline, `only_baseline` the other way round.
    """

    word: str
    wanted: int
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
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    baseline: Sequence[str],
    system: Sequence[str],
    scorer: SentenceScorer,
    *,
    better: Literal["higher", "lower"] = "higher",
    k: int = 10,
) -> ChangedSentences:
    """The `k` sentences where the system gained most on the baseline, and the `k` where it lost most.

    Sentences with equal outputs or equal scores are in neither list; equal gains stand in the order of the sentences.
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
            wanted = list(references[place])
            scores = scorer(before, wanted), scorer(after, wanted)
            gain = sign * (scores[1] - scores[0])
            changed.append(ChangedSentence(place + 1, sources[place], wanted, before, after, *scores, gain))
    return ChangedSentences(
        improved=sorted((each for each in changed if each.gain > 0), key=lambda each: -each.gain)[:k],
        worsened=sorted((each for each in changed if each.gain < 0), key=lambda each: each.gain)[:k],
    )


def ngram_contrasts(
    references: Sequence[Sequence[str]],
    baseline: Sequence[str],
    system: Sequence[str],
    *,
    longest: int = 4,
    k: int = 10,
) -> NgramContrasts:
    """The n-grams (n up to `longest`) that one system gets right and the other does not.

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
        system=_most_telling({ngram: each for ngram, each in paired.items() if each.system > each.baseline}, k),
        baseline=_most_telling({ngram: each for ngram, each in paired.items() if each.system < each.baseline}, k),
    )


def word_contrasts(
    references: Sequence[Sequence[str]],
    baseline: Sequence[str],
    system: Sequence[str],
    *,
    least: int = 5,
    k: int = 10,
) -> WordContrasts:
    """The words (wanted at least `least` times) that one system produces more reliably than the other.

    compare-mt's word accuracy for single words, ranked by the exact McNemar test (two-sided binomial with p = ½) of the
    occurrences that only one of the two produced: b by the system, c by the baseline, n = b + c,

        p = 2 · Σ C(n, i) / 2ⁿ over i ≤ min(b, c), at most 1.

    It is there to rank: many words are looked at, so a single small p is no proof.
    """
    check_parallel(references, {"baseline": baseline, "system": system})
    check_positive(least=least, k=k)
    contrasts = [
        WordContrast(
            word,
            each.wanted,
            each.baseline / each.wanted,
            each.system / each.wanted,
            each.only_baseline,
            each.only_system,
            sign_test(each.only_baseline, each.only_system),
        )
        for (word,), each in _paired_matches(references, baseline, system, longest=1).items()
        if each.wanted >= least and each.system != each.baseline
    ]
    contrasts.sort(key=lambda each: (each.p, -abs(each.only_system - each.only_baseline), each.word))
    return WordContrasts(
        system=[each for each in contrasts if each.only_system > each.only_baseline][:k],
        baseline=[each for each in contrasts if each.only_system < each.only_baseline][:k],
    )


@dataclass(slots=True)
class _Paired:
    """Occurrences of an n-gram: wanted, matched by either system, and matched by one but not the other."""

    wanted: int = 0
    baseline: int = 0
    system: int = 0
    only_baseline: int = 0
    only_system: int = 0


def _paired_matches(
    references: Sequence[Sequence[str]], baseline: Sequence[str], system: Sequence[str], longest: int
) -> dict[Ngram, _Paired]:
    """For each n-gram of the references that one of the systems matches, clipped sentence by sentence."""
    wanted: Counter[Ngram] = Counter()
    paired: defaultdict[Ngram, _Paired] = defaultdict(_Paired)
    for several, before, after in zip(references, baseline, system, strict=True):
        there = ngrams(words(several[0]), longest)
        for other in several[1:]:
            there |= ngrams(words(other), longest)
        wanted.update(there)
        first = ngrams(words(before), longest)
        second = first if before == after else ngrams(words(after), longest)
        for ngram in there.keys() & (first.keys() | second.keys()):
            count, each = there[ngram], paired[ngram]
            in_first, in_second = min(count, first[ngram]), min(count, second[ngram])
            each.baseline += in_first
            each.system += in_second
            if in_first > in_second:
                each.only_baseline += in_first - in_second
            else:
                each.only_system += in_second - in_first
    for ngram, each in paired.items():
        each.wanted = wanted[ngram]
    return paired


def _likelihood_ratio(only_first: int, only_second: int) -> float:
    fewer, more = sorted((only_first + _SMOOTHING, only_second + _SMOOTHING))
    return 2 * sum(count * math.log(2 * count / (fewer + more)) for count in (fewer, more))


def _most_telling(paired: dict[Ngram, _Paired], k: int) -> list[NgramContrast]:
    """The first k, without those that repeat what a longer one before them says.

    Tens of thousands of n-grams share a few counts, so counts are ranked first, and only n-grams that are reached.
    """
    alike: defaultdict[tuple[int, int], list[Ngram]] = defaultdict(list)
    for ngram, each in paired.items():
        alike[each.only_baseline, each.only_system].append(ngram)
    ranked = sorted((-_likelihood_ratio(*counts), sorted(counts), counts) for counts in alike)
    chosen: list[NgramContrast] = []
    for negative, _, counts in ranked:
        for ngram in sorted(alike[counts], key=lambda each: (-len(each), each)):
            each = paired[ngram]
            contrast = NgramContrast(list(ngram), each.wanted, each.baseline, each.system, -negative)
            if not any(_repeats(contrast, listed) for listed in chosen):
                chosen.append(contrast)
            if len(chosen) == k:
                return chosen
    return chosen


def _repeats(each: NgramContrast, listed: NgramContrast) -> bool:
    short, long = each.ngram, listed.ngram
    same_counts = (each.wanted, each.baseline_matched, each.system_matched, each.likelihood_ratio) == (
        listed.wanted,
        listed.baseline_matched,
        listed.system_matched,
        listed.likelihood_ratio,
    )
    return same_counts and any(long[at : at + len(short)] == short for at in range(len(long) - len(short) + 1))
