"""Where systems differ: on long sentences, on rare words, at the end; in which sentences, n-grams and words.

Of a system with several seeds one run is looked at, the one nearest to the mean of its seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from sightline.data.sources import training_examples
from sightline.data.text_files import DataError
from sightline.evaluation.breakdowns import (
    FrequencyBucket,
    LengthBucket,
    SentencePart,
    quality_by_frequency,
    quality_by_length,
    quality_by_position,
)
from sightline.evaluation.confusion import Confusion
from sightline.evaluation.contrasts import (
    ChangedSentences,
    NgramContrasts,
    WordContrasts,
    changed_most,
    ngram_contrasts,
    word_contrasts,
)
from sightline.evaluation.intervals import Numbers
from sightline.evaluation.measurement import aligned
from sightline.evaluation.metrics import METRICS, measure
from sightline.evaluation.test_set import TestSet
from sightline.evaluation.word_differences import word_frequencies
from sightline.progress import Progress
from sightline.recipe import Evaluation, MetricName
from sightline.recipe.tasks import Labels
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.comparison.results import Member
    from sightline.run import Run

_MOST_COUNTED = 1_000_000  # training examples whose words are counted: more change no bucket, and take minutes
_TOLD_EVERY = 20_000

# BLEU is made for corpora, exact match knows only two grades: where single sentences are ranked, chrF stands in for
# them, as it does everywhere for what is made of losses and not about outputs.
_OF_SENTENCES: dict[MetricName, MetricName] = {"bleu": "chrf", "exact": "chrf"}


@dataclass(frozen=True)
class Contrast:
    """A system held against the baseline, sentence by sentence and word by word."""

    system: str
    sentences: ChangedSentences
    ngrams: NgramContrasts
    words: WordContrasts

    @property
    def differs(self) -> bool:
        """Whether anything was found; of the same outputs nothing is."""
        found = (self.sentences.improved, self.sentences.worsened, self.ngrams.system, self.ngrams.baseline)
        return any(found) or bool(self.words.system or self.words.baseline)


@dataclass(frozen=True)
class LabelQuality:
    """A label, how many texts or tokens have it, and how well each system gives it (F1 in percent)."""

    label: str
    wanted: int
    f1: dict[str, float]


@dataclass(frozen=True)
class Where:
    """All that was found, and with which metrics, runs and word counts."""

    corpus_metric: str
    sentence_metric: str
    counted_in: str  # where word frequencies come from
    runs: dict[str, str]  # system → the run that was looked at
    lengths: list[LengthBucket]
    frequencies: list[FrequencyBucket]
    positions: list[SentencePart]
    contrasts: list[Contrast]
    labels: list[LabelQuality] = field(default_factory=list)  # of classifiers and taggers, most wanted first

    @staticmethod
    def nowhere(metric: MetricName, runs: dict[str, str]) -> Where:
        """Of systems that were measured without outputs: they wrote nothing that could differ."""
        label = METRICS[metric].label
        return Where(label, label, "", runs, lengths=[], frequencies=[], positions=[], contrasts=[])


@dataclass(frozen=True)
class Frequencies:
    """How often words stand in a text, and in which."""

    counts: Mapping[str, int] | None  # None: those of the references
    source: str

    def folded(self) -> Mapping[str, int] | None:
        """The counts in lower case: of `The` and `the` together."""
        if self.counts is None:
            return None
        counts: Counter[str] = Counter()
        for word, count in self.counts.items():
            counts[word.lower()] += count
        return counts


def find_where(
    test: TestSet,
    looked: Mapping[str, Member],
    metric: MetricName,
    frequencies: Frequencies,
    *,
    lowercase: bool,
    section: Evaluation | None = None,
    progress: Progress,
) -> Where:
    """Look for differences between systems, each by the run that stands for it; the first one is the baseline."""
    outputs = {name: each.outputs for name, each in looked.items()}
    whole: MetricName = metric if METRICS[metric].needs_outputs else "chrf"
    single = _OF_SENTENCES.get(whole, whole)
    progress("looking where they differ", 0, len(outputs) + 2)
    corpus = _Scorer(whole, test.references, outputs, lowercase, section)
    sentence = corpus if single == whole else _Scorer(single, test.references, outputs, lowercase, section)
    lengths = quality_by_length(test.references, outputs, corpus.corpus)
    progress("looking where they differ", 1, len(outputs) + 2)
    fold = str.lower if lowercase else str  # words are right or wrong as the metric sees them
    references = [[fold(text) for text in several] for several in test.references]
    words = {name: [fold(text) for text in texts] for name, texts in outputs.items()}
    by_frequency = quality_by_frequency(references, words, frequencies.folded() if lowercase else frequencies.counts)
    by_position = quality_by_position(references, words)
    (first, baseline), *others = outputs.items()
    contrasts: list[Contrast] = []
    for number, (name, system) in enumerate(others):
        progress("looking where they differ", number + 2, len(outputs) + 2)
        contrasts.append(
            Contrast(
                system=name,
                sentences=changed_most(
                    test.sources, test.references, baseline, system, sentence.sentence, better=METRICS[single].better
                ),
                ngrams=ngram_contrasts(references, words[first], words[name]),
                words=word_contrasts(references, words[first], words[name]),
            )
        )
    return Where(
        corpus_metric=METRICS[whole].label,
        sentence_metric=METRICS[single].label,
        counted_in=frequencies.source,
        runs={name: each.name for name, each in looked.items()},
        lengths=lengths,
        frequencies=by_frequency,
        positions=by_position,
        contrasts=contrasts,
    )


def find_where_labels(
    test: TestSet,
    looked: Mapping[str, Member],
    metric: MetricName,
    labels_of: Labels,
    *,
    lowercase: bool,
    progress: Progress,
) -> Where:
    """The same for classifiers and taggers: in which texts they differ, and on which labels.

    Labels are not words of a language: how long or how rare they are, and n-grams of them, are not asked about.
    """
    outputs = {name: each.outputs for name, each in looked.items()}
    progress("looking where they differ", 0, len(outputs))
    scorer = _Scorer(metric, test.references, outputs, lowercase)
    count = Confusion.of if labels_of == "one" else Confusion.of_tokens
    found = {name: count(texts, test.references, lowercase=lowercase) for name, texts in outputs.items()}
    labels: dict[str, LabelQuality] = {}
    for name, confusion in found.items():
        for label, wanted, f1 in zip(confusion.labels, confusion.support, confusion.f1, strict=True):
            known = labels.setdefault(label, LabelQuality(label, int(wanted), dict.fromkeys(found, 0.0)))
            known.f1[name] = float(f1)
    baseline, *others = outputs.items()
    contrasts = [
        Contrast(
            system=name,
            sentences=changed_most(
                test.sources, test.references, baseline[1], system, scorer.sentence, better=METRICS[metric].better
            ),
            ngrams=NgramContrasts([], []),
            words=WordContrasts([], []),
        )
        for name, system in others
    ]
    return Where(
        corpus_metric=METRICS[metric].label,
        sentence_metric=METRICS[metric].label,
        counted_in="",
        runs={name: each.name for name, each in looked.items()},
        lengths=[],
        frequencies=[],
        positions=[],
        contrasts=contrasts,
        labels=sorted(labels.values(), key=lambda each: (-each.wanted, each.label)),
    )


def training_frequencies(run: Run, name: str, progress: Progress) -> Frequencies:
    """The words of the text a run learned to write, where it can be read; else those of the references."""
    counts: Counter[str] = Counter()
    done = 0
    texts = islice((example.target for example in training_examples(run.recipe)), _MOST_COUNTED)
    try:
        while some := list(islice(texts, _TOLD_EVERY)):
            counts.update(word_frequencies(some))
            done += len(some)
            progress("counting the words of the training text", done, 0)
    except DataError:
        return Frequencies(None, "the references (the training text cannot be read here)")
    first = "first " if done == _MOST_COUNTED else ""
    return Frequencies(counts, f"the {first}{plural(done, 'target')} of the training text of {name}")


class _Scorer:
    """Scores of any of the sentences, from statistics that were counted once."""

    def __init__(
        self,
        metric: MetricName,
        references: Sequence[Sequence[str]],
        systems: Mapping[str, Sequence[str]],
        lowercase: bool,
        section: Evaluation | None = None,
    ) -> None:
        self._rows: dict[tuple[str, tuple[str, ...]], Numbers] = {}
        measurements = [
            measure(metric, outputs, references, lowercase=lowercase, section=section) for outputs in systems.values()
        ]
        for outputs, found in zip(systems.values(), aligned(measurements), strict=True):  # the same columns for all
            self._values = found.values
            for output, several, row in zip(outputs, references, found.statistics, strict=True):
                self._rows[output, tuple(several)] = row

    def corpus(self, outputs: list[str], references: list[list[str]]) -> float:
        pairs = zip(outputs, references, strict=True)
        rows = np.stack([self._rows[output, tuple(several)] for output, several in pairs])
        return float(self._values(rows.sum(axis=0)[None])[0])

    def sentence(self, output: str, references: list[str]) -> float:
        return self.corpus([output], [references])
