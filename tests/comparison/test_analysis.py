"""Analysis of differences between handwritten outputs: metrics, directions and labels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sightline.comparison import analysis as room
from sightline.comparison.analysis import (
    Analysis,
    Contrast,
    Frequencies,
    analyze,
    analyze_labels,
    training_frequencies,
)
from sightline.data.sources import Example
from sightline.evaluation import test_set
from sightline.evaluation.contrasts import ChangedSentences, NgramContrasts, WordContrast, WordContrasts
from sightline.progress import silent
from sightline.recipe import MetricName

UNKNOWN = Frequencies(None, "the references")


def runs(**outputs: list[str]) -> Any:
    return {name: SimpleNamespace(name=name, outputs=texts) for name, texts in outputs.items()}


def references(*references: str) -> test_set.TestSet:
    return test_set.TestSet("test", list(references), [[each] for each in references], len(references))


@pytest.mark.parametrize(
    ("metric", "corpus", "sentence"),
    [
        ("bleu", "BLEU", "chrF2"),
        ("exact", "exact", "chrF2"),
        ("perplexity", "chrF2", "chrF2"),
        ("ter", "TER", "TER"),
        ("wer", "WER", "WER"),
    ],
)
def test_sentences_are_ranked_by_a_sentence_metric(metric: MetricName, corpus: str, sentence: str) -> None:
    systems = runs(first=["a dog runs", "a cow"], other=["a dog runs", "a hen"])
    result = analyze(references("a dog runs", "a hen"), systems, metric, UNKNOWN, lowercase=False, progress=silent)
    assert (result.corpus_metric, result.sentence_metric) == (corpus, sentence)
    (contrast,) = result.contrasts
    assert [each.number for each in contrast.sentences.improved] == [2] and contrast.sentences.worsened == []


def test_contrasts_name_what_only_the_system_gets_right() -> None:
    systems = runs(first=["cow"] * 6, other=["hen"] * 6)
    result = analyze(references(*["hen"] * 6), systems, "bleu", UNKNOWN, lowercase=False, progress=silent)
    (contrast,) = result.contrasts
    assert ([each.ngram for each in contrast.ngrams.system], contrast.ngrams.baseline) == ([["hen"]], [])
    assert ([each.word for each in contrast.words.system], contrast.words.baseline) == (["hen"], [])


def test_an_output_is_scored_against_all_its_references() -> None:
    test = test_set.TestSet("test", ["s", "s"], [["a b", "c d"], ["a b", "e f"]], 4)
    systems = runs(first=["x", "x"], other=["c d", "c d"])
    (contrast,) = analyze(test, systems, "chrf", UNKNOWN, lowercase=False, progress=silent).contrasts
    assert [(each.number, each.system_score) for each in contrast.sentences.improved] == [(1, 100)]


def test_labels_are_sorted_by_frequency_and_missing_ones_have_f1_0() -> None:
    test = references("b c", "b c", "a")
    systems = runs(first=["b c", "a", "a"], other=["b c", "b c", "x"])
    result = analyze_labels(test, systems, "accuracy", "one", lowercase=False, progress=silent)
    assert [(each.label, each.count) for each in result.labels] == [("b c", 2), ("a", 1), ("x", 0)]
    assert result.labels[2].f1 == {"first": 0.0, "other": 0.0} and result.labels[1].f1["first"] == pytest.approx(
        200 / 3
    )
    (contrast,) = result.contrasts
    assert [each.number for each in contrast.sentences.improved] == [2]
    assert [each.number for each in contrast.sentences.worsened] == [3]
    by_token = analyze_labels(
        references("b c", "b c"),
        runs(first=["b c", "b b"]),
        "token-accuracy",
        "words",
        lowercase=False,
        progress=silent,
    )
    assert [each.label for each in by_token.labels] == ["b", "c"]


def test_labels_predicted_by_one_system_are_scored() -> None:
    systems = runs(first=["a", "y"], other=["x", "b"])
    result = analyze_labels(references("a", "b"), systems, "macro-f1", "one", lowercase=False, progress=silent)
    (contrast,) = result.contrasts
    assert [(each.number, each.system_score) for each in contrast.sentences.improved] == [(2, 100)]
    assert [(each.number, each.baseline_score) for each in contrast.sentences.worsened] == [(1, 100)]


def test_a_limited_word_count_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_MOST_COUNTED", 3)
    for lines, message in ((2, "the 2 targets of the training text of mine"), (5, "the first 3 targets of")):
        monkeypatch.setattr(room, "training_examples", lambda _, lines=lines: [Example("s", "a b")] * lines)
        result = training_frequencies(SimpleNamespace(recipe=None), "mine", silent)  # type: ignore[arg-type]
        assert result.source.startswith(message) and result.counts == {"a": min(lines, 3), "b": min(lines, 3)}


def test_a_contrast_of_words_alone_differs() -> None:
    nothing = Contrast("other", ChangedSentences([], []), NgramContrasts([], []), WordContrasts([], []))
    word = WordContrast("hen", 5, 0.0, 1.0, 0, 5, 0.06)
    assert not nothing.differs
    for words in (WordContrasts([word], []), WordContrasts([], [word])):
        assert Contrast("other", nothing.sentences, nothing.ngrams, words).differs


def test_analysis_of_models_without_outputs_is_empty() -> None:
    result = Analysis.empty("perplexity", {"a": "a"})
    assert (result.corpus_metric, result.contrasts, result.lengths) == ("perplexity", [], [])
