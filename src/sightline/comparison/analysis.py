"""Where systems differ: by sentence length, word frequency and position; in which sentences, n-grams and words.

Of several seeds, the run closest to their mean is analyzed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from sightline.comparison.results import Analysis, Contrast, LabelScores
from sightline.data.sources import training_examples
from sightline.data.text_files import DataError
from sightline.evaluation.breakdowns import quality_by_frequency, quality_by_length, quality_by_position
from sightline.evaluation.contrasts import (
    NgramContrasts,
    WordContrasts,
    changed_most,
    ngram_contrasts,
    word_contrasts,
)
from sightline.evaluation.labels import Confusion
from sightline.evaluation.measurement import Better, Numbers, align_classes
from sightline.evaluation.metrics import METRICS, measure, needs_outputs
from sightline.evaluation.test_set import TestSet
from sightline.evaluation.word_differences import word_frequencies
from sightline.progress import Progress
from sightline.recipe import Evaluation, MetricName
from sightline.recipe.tasks import Labels
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.comparison.results import RunResult
    from sightline.run import Run

_MOST_COUNTED = 1_000_000  # training examples whose words are counted; more would hardly change the buckets
_BLOCK = 20_000  # examples between reports of progress

# Single sentences are ranked by chrF instead of BLEU (made for corpora) and exact match (which has two values).
_SENTENCE_METRICS: dict[MetricName, MetricName] = {"bleu": "chrf", "exact": "chrf"}


@dataclass(frozen=True)
class Frequencies:
    """Word counts and their source."""

    counts: Mapping[str, int] | None  # None: those of the references
    source: str

    def lowercase(self) -> Mapping[str, int] | None:
        """The counts of lowercased words."""
        if self.counts is None:
            return None
        counts: Counter[str] = Counter()
        for word, count in self.counts.items():
            counts[word.lower()] += count
        return counts


def training_frequencies(run: Run, name: str, progress: Progress) -> Frequencies:
    """Count the words of a run's training targets; if these cannot be read, those of the references are used."""
    counts: Counter[str] = Counter()
    done = 0
    texts = islice((example.target for example in training_examples(run.recipe)), _MOST_COUNTED)
    try:
        while block := list(islice(texts, _BLOCK)):
            counts.update(word_frequencies(block))
            done += len(block)
            progress("counting the words of the training text", done, 0)
    except DataError:
        return Frequencies(None, "the references (the training text cannot be read here)")
    first = "first " if done == _MOST_COUNTED else ""
    return Frequencies(counts, f"the {first}{plural(done, 'target')} of the training text of {name}")


def analyze(
    test: TestSet,
    runs: Mapping[str, RunResult],
    metric: MetricName,
    frequencies: Frequencies,
    *,
    lowercase: bool,
    section: Evaluation | None = None,
    progress: Progress,
) -> Analysis:
    """Analyze differences between systems, each represented by a run; the first is the baseline."""
    outputs = {name: run.outputs for name, run in runs.items()}
    corpus_metric: MetricName = metric if needs_outputs(metric) else "chrf"
    sentence_metric = _SENTENCE_METRICS.get(corpus_metric, corpus_metric)
    progress("analyzing differences", 0, len(outputs) + 2)
    names = {corpus_metric, sentence_metric}
    scorers = {name: _Scorer(name, test, outputs, lowercase, section) for name in names}
    corpus, sentence = scorers[corpus_metric], scorers[sentence_metric]
    lengths = quality_by_length(test.references, outputs, corpus.corpus)
    progress("analyzing differences", 1, len(outputs) + 2)
    fold = str.lower if lowercase else str  # compare words as the metric does
    references = [[fold(text) for text in several] for several in test.references]
    words = {name: [fold(text) for text in texts] for name, texts in outputs.items()}
    by_frequency = quality_by_frequency(references, words, frequencies.lowercase() if lowercase else frequencies.counts)
    by_position = quality_by_position(references, words)
    (first, baseline), *others = outputs.items()
    contrasts: list[Contrast] = []
    for number, (name, system) in enumerate(others):
        progress("analyzing differences", number + 2, len(outputs) + 2)
        sentences = changed_most(
            test.sources, test.references, baseline, system, sentence.sentence, better=_better(sentence_metric)
        )
        ngrams = ngram_contrasts(references, words[first], words[name])
        contrasts.append(Contrast(name, sentences, ngrams, word_contrasts(references, words[first], words[name])))
    return Analysis(
        corpus_metric=METRICS[corpus_metric].name,
        sentence_metric=METRICS[sentence_metric].name,
        counted_in=frequencies.source,
        runs={name: run.name for name, run in runs.items()},
        lengths=lengths,
        frequencies=by_frequency,
        positions=by_position,
        contrasts=contrasts,
    )


def analyze_labels(
    test: TestSet,
    runs: Mapping[str, RunResult],
    metric: MetricName,
    labels_of: Labels,
    *,
    lowercase: bool,
    progress: Progress,
) -> Analysis:
    """Analyze differences between classifiers or taggers: texts and labels."""
    outputs = {name: run.outputs for name, run in runs.items()}
    progress("analyzing differences", 0, len(outputs))
    scorer = _Scorer(metric, test, outputs, lowercase)
    confusion_of = Confusion.of if labels_of == "one" else Confusion.of_tokens
    confusions = {name: confusion_of(texts, test.references, lowercase=lowercase) for name, texts in outputs.items()}
    labels: dict[str, LabelScores] = {}
    for name, confusion in confusions.items():
        for label, count, f1 in zip(confusion.labels, confusion.support, confusion.f1, strict=True):
            known = labels.setdefault(label, LabelScores(label, int(count), dict.fromkeys(confusions, 0.0)))
            known.f1[name] = float(f1)
    (_, baseline), *others = outputs.items()
    contrasts = [
        Contrast(
            name,
            changed_most(test.sources, test.references, baseline, system, scorer.sentence, better=_better(metric)),
            NgramContrasts([], []),
            WordContrasts([], []),
        )
        for name, system in others
    ]
    return Analysis(
        corpus_metric=METRICS[metric].name,
        sentence_metric=METRICS[metric].name,
        runs={name: run.name for name, run in runs.items()},
        contrasts=contrasts,
        labels=sorted(labels.values(), key=lambda each: (-each.count, each.label)),
    )


def _better(metric: MetricName) -> Better:
    return "higher" if METRICS[metric].higher_is_better else "lower"


class _Scorer:
    """Scores subsets of the sentences from statistics that are computed once."""

    def __init__(
        self,
        metric: MetricName,
        test: TestSet,
        systems: Mapping[str, Sequence[str]],
        lowercase: bool,
        section: Evaluation | None = None,
    ) -> None:
        self._rows: dict[tuple[str, tuple[str, ...]], Numbers] = {}
        measurements = [
            measure(metric, outputs, test.references, test.sources, lowercase=lowercase, section=section)
            for outputs in systems.values()
        ]
        for outputs, measured in zip(systems.values(), align_classes(measurements), strict=True):
            self._values = measured.values
            for output, several, row in zip(outputs, test.references, measured.statistics, strict=True):
                self._rows[output, tuple(several)] = row

    def corpus(self, outputs: list[str], references: list[list[str]]) -> float:
        pairs = zip(outputs, references, strict=True)
        rows = np.stack([self._rows[output, tuple(several)] for output, several in pairs])
        return float(self._values(rows.sum(axis=0)[None])[0])

    def sentence(self, output: str, references: list[str]) -> float:
        return self.corpus([output], [references])
