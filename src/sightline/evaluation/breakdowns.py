"""Scores by sentence length, by word frequency and by position in the sentence.

After compare-mt (Neubig et al. 2019, "compare-mt: A Tool for Holistic Comparison of Language Generation Systems").
Words are those of `word_differences.words`, case kept. Of several references the nearest counts: the one that shares
the largest part of its words, in the same order, with the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sightline.evaluation.measurement import References, Texts
from sightline.evaluation.word_differences import align_words, word_frequencies, words
from sightline.terminal import plural

CorpusScorer = Callable[[list[str], list[list[str]]], float]  # outputs, references of each -> score

_FREQUENCIES = (0, 1, 10, 100, 1000)  # where each bucket of words begins


@dataclass(frozen=True)
class LengthBucket:
    """The sentences whose references have `low` to `high` words, and the score of each system on them."""

    low: int
    high: int
    sentences: int
    scores: dict[str, float]

    @property
    def label(self) -> str:
        return _label(self.low, self.high)


@dataclass(frozen=True)
class WordQuality:
    """How well a system produced some words: `count` occurrences in the references, `produced` in its outputs."""

    count: int
    produced: int
    matched: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class FrequencyBucket:
    """The words that were seen `low` to `high` times (None: or more often), and how well each system produced them."""

    low: int
    high: int | None
    systems: dict[str, WordQuality]

    @property
    def label(self) -> str:
        return _label(self.low, self.high)


@dataclass(frozen=True)
class Recall:
    """`matched` of `count` words in the references were produced."""

    count: int
    matched: int
    recall: float


@dataclass(frozen=True)
class SentencePart:
    """One part of all sentences (1 is the first fifth), and how much of it each system produced."""

    part: int
    systems: dict[str, Recall]


def quality_by_length(
    references: References,
    systems: Mapping[str, Texts],
    scorer: CorpusScorer,
    *,
    most: int = 6,
    least: int = 30,
) -> list[LengthBucket]:
    """The corpus score of each system on sentences of similar length.

    The length of a sentence is that of its references in words, rounded to their average. There are at most `most`
    buckets of nearly equal size, each of at least `least` sentences (unless there are fewer).
    """
    check_parallel(references, systems)
    check_positive(most=most, least=least)
    lengths = [_average([len(words(reference)) for reference in several]) for several in references]
    buckets: list[LengthBucket] = []
    low = min(lengths)
    for high in _upper_bounds(lengths, most, least):
        chosen = [place for place, length in enumerate(lengths) if low <= length <= high]
        part = [list(references[place]) for place in chosen]
        scores = {name: scorer([outputs[place] for place in chosen], part) for name, outputs in systems.items()}
        buckets.append(LengthBucket(low, high, len(chosen), scores))
        low = high + 1
    return buckets


def quality_by_frequency(
    references: References,
    systems: Mapping[str, Texts],
    frequencies: Mapping[str, int] | None = None,
) -> list[FrequencyBucket]:
    """Precision, recall and F1 of rare and of frequent words for each system, as compare-mt's word accuracy.

    In each sentence a word is matched min(count in the output, count in the nearest reference) times. Summed over the
    words of a bucket, precision is matched / produced, recall matched / count, and F1 their harmonic mean (0 if nothing
    matched). `frequencies` are those of the training text (see `word_frequencies`), by default of all references.
    Buckets without a word in the references are left out.
    """
    check_parallel(references, systems)
    if frequencies is None:
        frequencies = word_frequencies(reference for several in references for reference in several)
    split = [[words(reference) for reference in several] for several in references]
    qualities = {name: _word_quality(split, outputs, frequencies) for name, outputs in systems.items()}
    highs = [low - 1 for low in _FREQUENCIES[1:]]
    buckets = [
        FrequencyBucket(low, high, {name: each[place] for name, each in qualities.items()})
        for place, (low, high) in enumerate(zip(_FREQUENCIES, [*highs, None], strict=True))
    ]
    return [bucket for bucket in buckets if any(quality.count for quality in bucket.systems.values())]


def _word_quality(
    references: list[list[list[str]]], outputs: Texts, frequencies: Mapping[str, int]
) -> list[WordQuality]:
    """One for each bucket of frequencies."""
    totals: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
    for output, several in zip(outputs, references, strict=True):
        output_words = words(output)
        reference = several[0] if len(several) == 1 else _nearest(output_words, several)[0]
        in_reference, in_output = Counter(reference), Counter(output_words)
        totals[0].update(in_reference)
        totals[1].update(in_output)
        totals[2].update(in_reference & in_output)
    sums = [[0, 0, 0] for _ in _FREQUENCIES]  # of each bucket: count, produced, matched
    for kind, counts in enumerate(totals):
        for word, count in counts.items():
            frequency = frequencies.get(word, 0)
            sums[sum(low <= frequency for low in _FREQUENCIES) - 1][kind] += count
    return [
        WordQuality(c, p, m, precision=_share(m, p), recall=_share(m, c), f1=_share(2 * m, c + p)) for c, p, m in sums
    ]


def quality_by_position(references: References, systems: Mapping[str, Texts], *, parts: int = 5) -> list[SentencePart]:
    """The share of the words in the first, second, … part of the references that each system produced in order.

    Output and nearest reference are aligned by edit distance (`align_words`). Word i of n (from 0) belongs to the part
    that holds its middle, ⌊(i + ½) · parts / n⌋. Parts without a word (all sentences are too short) are left out.
    """
    check_parallel(references, systems)
    check_positive(parts=parts)
    split = [[words(reference) for reference in several] for several in references]
    recalls: list[dict[str, Recall]] = [{} for _ in range(parts)]
    for name, outputs in systems.items():
        count, matched = [0] * parts, [0] * parts
        for output, several in zip(outputs, split, strict=True):
            reference, pairs = _nearest(words(output), several)
            part_of = [(2 * i + 1) * parts // (2 * len(reference)) for i in range(len(reference))]
            for part in part_of:
                count[part] += 1
            for _, i in pairs:
                matched[part_of[i]] += 1
        for part in range(parts):
            recalls[part][name] = Recall(count[part], matched[part], _share(matched[part], count[part]))
    return [
        SentencePart(number, each)
        for number, each in enumerate(recalls, start=1)
        if any(recall.count for recall in each.values())
    ]


def _nearest(output: list[str], references: list[list[str]]) -> tuple[list[str], list[tuple[int, int]]]:
    """The reference most similar to the output, and their alignment (output, reference).

    Similarity is 2 · pairs / words of both, as difflib's, and 1 of two empty texts; the first of equals is taken.
    """
    candidates = [(reference, align_words(output, reference)) for reference in references]
    return max(candidates, key=lambda each: 2 * len(each[1]) / (len(output) + len(each[0])) if output or each[0] else 1)


def _upper_bounds(lengths: list[int], most: int, least: int) -> list[int]:
    """The longest length of each bucket: it ends where it holds its share of the remaining sentences."""
    ends: list[int] = []
    left, held = len(lengths), 0
    buckets = max(1, min(most, len(lengths) // least))
    counts = sorted(Counter(lengths).items())
    for length, count in counts:
        held += count
        enough = held >= least and held * (buckets - len(ends)) >= left
        if enough and left - held >= least:
            ends.append(length)
            left, held = left - held, 0
    return [*ends, counts[-1][0]]


def _average(lengths: list[int]) -> int:
    """Rounded half up."""
    return (2 * sum(lengths) + len(lengths)) // (2 * len(lengths))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _label(low: int, high: int | None) -> str:
    if high is None:
        return f"{low}+"
    return str(low) if low == high else f"{low}-{high}"


def check_parallel(references: References, systems: Mapping[str, Texts]) -> None:
    """Refuse texts that do not belong together: each sentence has references and one output of each system."""
    if not systems:
        raise ValueError("there are no systems to look at; give the outputs of at least one, under its name")
    if not references:
        raise ValueError("there are no references, so there is nothing to compare outputs with; give some sentences")
    for number, several in enumerate(references, start=1):
        if isinstance(several, str):
            raise TypeError(f"the references of sentence {number} are a text; write a list of texts: [{several!r}]")
        if not several:
            raise ValueError(f"sentence {number} has no reference; leave it out or give it one")
    for name, outputs in systems.items():
        if len(outputs) != len(references):
            raise ValueError(
                f"{name} has {plural(len(outputs), 'output')} and there are references for "
                f"{plural(len(references), 'sentence')}; give one output for each, an empty one if need be"
            )


def check_positive(**values: int) -> None:
    """Refuse options below 1."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} ({value}) must be at least 1")
