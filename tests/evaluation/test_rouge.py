"""ROUGE against rouge-score itself, in scripts that it would lose, with intervals and significance."""

from __future__ import annotations

import random

import pytest
from rouge_score.rouge_scorer import RougeScorer

from sightline.evaluation.metrics import METRICS, measure, score
from sightline.evaluation.rouge import rouge_words
from sightline.evaluation.significance import approximate_randomization
from sightline.recipe import MetricName

NAMES: dict[MetricName, str] = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL"}


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(["the", "Cat", "sat", "on", "a-b", "mat.", "x_y", "2"], k=9)) for _ in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_on_ascii_text_rouge_equals_the_library(name: MetricName) -> None:
    outputs, references = texts(20, 1), texts(20, 2)
    own = RougeScorer([NAMES[name]])
    expected = [own.score(r, o)[NAMES[name]].fmeasure for o, r in zip(outputs, references, strict=True)]
    result = score(name, outputs, [[reference] for reference in references])
    assert result.value == pytest.approx(100 * sum(expected) / 20)
    assert result.low < result.value < result.high and result.better == "higher"


def test_rouge_l_is_of_the_whole_text_and_lsum_of_its_sentences() -> None:
    output, reference = "third fourth. first second.", "first second. third fourth."
    assert score("rouge-l", [output], [[reference]]).value == pytest.approx(50)
    assert score("rouge-lsum", [output], [[reference]]).value == pytest.approx(100)
    lines = [text.replace(". ", "\n") for text in (output, reference)]
    assert score("rouge-l", lines[:1], [lines[1:]]).value == pytest.approx(50)
    single = "Third fourth first second."  # only the sentences of the reference tell its order from that of this one
    assert score("rouge-lsum", [single], [["First second. Third fourth."]]).value == pytest.approx(100)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Über naïve Straßen", ["über", "naïve", "straßen"]),
        ("नमस्ते, दुनिया", ["नमस्ते", "दुनिया"]),
        ("Привет-мир", ["привет", "мир"]),
        ("本を読む", ["本", "を", "読", "む"]),
        ("libfoo_2.0", ["libfoo", "2", "0"]),
        ("…", []),
    ],
)
def test_words_of_every_script_are_kept(text: str, expected: list[str]) -> None:
    assert rouge_words(text) == expected
    assert score("rouge-1", [text], [[text]]).value == (100 if expected else 0)


def test_of_several_references_the_best_counts_for_each_output() -> None:
    assert score("rouge-1", ["a b"], [["c d", "a b", "a"]]).value == pytest.approx(100)


def test_the_signature_names_the_settings_and_case_is_ignored() -> None:
    result = score("rouge-lsum", ["A B."], [["a b."]], lowercase=True)
    assert result.value == 100
    counted = "case:lc|tok:unicode-words-2|stem:no|sent:rules-2|score:f"
    assert result.signature.startswith(f"nrefs:1|bs:1000|seed:12345|{counted}")
    assert result.signature == score("rouge-lsum", ["A B."], [["a b."]]).signature
    assert "sent:" not in score("rouge-l", ["A B."], [["a b."]]).signature
    assert score("rouge-1", ["a", "b"], [["a"], ["b", "c"]]).signature.startswith("nrefs:var|")
    assert METRICS["rouge-l"].name == "ROUGE-L" and METRICS["rouge-lsum"].name == "ROUGE-Lsum"


def test_a_system_that_is_better_on_every_text_is_significantly_so() -> None:
    references = [[text] for text in texts(40, 2)]
    worse, better = (
        measure("rouge-l", texts(40, 3), references),
        measure("rouge-l", [r[0] for r in references], references),
    )
    assert approximate_randomization(worse, better).significant
    assert not approximate_randomization(better, better).significant


def test_scores_against_other_references_do_not_compare() -> None:
    first, other = measure("rouge-1", ["a"], [["a"]]), measure("rouge-1", ["a"], [["b"]])
    with pytest.raises(ValueError, match="references"):
        approximate_randomization(first, other)
