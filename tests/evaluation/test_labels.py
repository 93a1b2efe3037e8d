"""Metrics of labels: scikit-learn's and seqeval's definitions, and tests between systems that keep labels apart."""

from __future__ import annotations

import math
import random
import warnings
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from sightline.comparison.scoring import judge
from sightline.evaluation.labels import Confusion, count_unknown_labels, entities
from sightline.evaluation.measurement import Measurement, Support, align_classes, wilson
from sightline.evaluation.metrics import measure, score
from sightline.evaluation.perplexity import measure_bits_per_character
from sightline.evaluation.significance import (
    approximate_randomization,
    check_comparable,
    mcnemar,
    paired_bootstrap,
)

TAGS = ["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "I-MISC"]


@pytest.fixture(scope="module")
def seqeval() -> Any:
    """What others call it by; it draws in scikit-learn, so only tests have it."""
    return pytest.importorskip("seqeval.metrics", reason="seqeval is not installed: pip install -e '.[dev]'")


def single(labels: list[str]) -> list[list[str]]:
    return [[label] for label in labels]


def tagged(size: int, seed: int) -> tuple[list[str], list[str]]:
    """Outputs and references in which I- follows anything."""
    draw = random.Random(seed)
    references = [draw.choices(TAGS, k=draw.randint(1, 9)) for _ in range(size)]
    outputs = [[tag if draw.random() < 0.7 else draw.choice(TAGS) for tag in tags] for tags in references]
    return [" ".join(tags) for tags in outputs], [" ".join(tags) for tags in references]


def test_a_label_is_right_as_a_whole_and_any_of_several_will_do() -> None:
    result = score("accuracy", ["New York", "York", "b "], [["New York"], ["New York"], ["a", "b"]])
    assert (result.name, result.detail) == ("accuracy", "2 of 3")
    assert result.value == pytest.approx(200 / 3)
    assert result.signature.startswith("nrefs:var|case:mixed|spaces:strip|ci:wilson|version:sightline-")


def test_at_0_and_100_percent_the_interval_is_wilson_over_sentences() -> None:
    result = score("token-accuracy", ["N V D"] * 100, single(["N V D"] * 100))
    assert str(result) == "token accuracy 100.00 [96.30, 100.00]"  # 100 / (100 + 1.96²), as of 100 outputs
    assert (result.low, result.high) == tuple(100 * end for end in wilson(100, 100))
    assert result.signature.startswith("nrefs:1|case:mixed|ci:wilson-by-sentence|spaces:squeeze|version:")
    wrong = score("token-accuracy", ["N V D"] * 100, single(["V D N"] * 100))
    assert (wrong.low, wrong.high) == tuple(100 * end for end in wilson(0, 100))
    nearly = score("token-accuracy", ["N V D"] * 100, single([*["N V D"] * 99, "N V V"]))
    assert nearly.signature.startswith("nrefs:1|case:mixed|bs:1000|seed:12345|spaces:squeeze|version:")


def test_sentences_without_spans_say_nothing_of_span_f1() -> None:
    spans, none = ["B-PER I-PER O"] * 20, ["O O O"] * 80
    result = score("span-f1", [*spans, *none], single([*spans, *none]))
    assert (result.value, result.low, result.high) == (100, *(100 * end for end in wilson(20, 20)))
    assert "|ci:wilson-by-sentence|" in result.signature
    nothing = score("span-f1", none, single(none))
    assert (nothing.low, nothing.value, nothing.high) == (0, 0, 0)
    assert measure("span-f1", ["B-PER", "O"], single(["O", "O"])).support == Support("sentence", (1,))  # only given


def test_a_perfect_macro_f1_is_as_sure_as_its_labels_are_frequent() -> None:
    labels = [*["a"] * 90, *["b"] * 10]
    result = score("macro-f1", labels, single(labels))
    assert result.low == pytest.approx(100 * (wilson(90, 90)[0] + wilson(10, 10)[0]) / 2)
    assert (result.value, result.high) == (100, 100)
    assert "|ci:wilson-by-label|" in result.signature
    assert np.isnan(score("macro-f1", labels, single(labels), bootstrap=0).low)
    assert measure("macro-f1", ["a", "a"], single(["b", "c"])).support == Support("label", (2, 1, 1))  # wrong ones too


def test_macro_f1_is_the_plain_mean_over_labels_seen_on_either_side() -> None:
    outputs, expected = ["a", "a", "b", "x", "a", "c"], ["a", "a", "b", "b", "c", "c"]
    result = score("macro-f1", outputs, single(expected))
    # a: tp 2 fp 1; b: tp 1 fn 1; c: tp 1 fn 1; x: fp 1
    assert result.value == pytest.approx(100 * (4 / 5 + 2 / 3 + 2 / 3 + 0) / 4)
    assert result.detail == "4 labels, the lowest F1 0.00 (x)"
    assert result.low < result.value < result.high
    assert result.signature.startswith("nrefs:1|case:mixed|bs:1000|seed:12345|spaces:strip|average:macro|version:")


def test_an_empty_output_is_wrong_and_not_a_class() -> None:
    result = score("macro-f1", ["a", "", "b", "b"], single(["a", "a", "b", "b"]), bootstrap=0)
    assert result.value == pytest.approx((100 * 2 / 3 + 100) / 2)
    assert score("accuracy", ["a", "", "b", "b"], single(["a", "a", "b", "b"]), bootstrap=0).value == 75


def test_a_label_that_does_not_occur_in_a_resample_does_not_count() -> None:
    result = measure("macro-f1", ["a", "b", "c"], single(["a", "b", "d"]))
    only_first = result.statistics[[0, 0, 0]].sum(axis=0)
    first_and_last = result.statistics[[0, 2, 2]].sum(axis=0)
    np.testing.assert_allclose(result.values(np.stack([only_first, first_and_last])), [100, 100 / 3])


def test_token_accuracy_counts_tokens_and_keeps_sentences_together() -> None:
    result = measure("token-accuracy", ["N V", "D N N"], single(["N N", "D N N"]))
    assert (result.value, result.detail) == (80, "4 of 5 tokens")
    np.testing.assert_array_equal(result.statistics, [[1, 2], [3, 3]])
    assert result.outcomes is not None
    assert result.outcomes.tolist() == [True, False, True, True, True]
    assert (result.score().low, result.score().high) == (50, 100)  # all of one sentence, or all of the other


@pytest.mark.parametrize("name", ["token-accuracy", "span-f1"])
def test_another_number_of_labels_than_tokens_is_refused_with_the_sentence(name: str) -> None:
    with pytest.raises(ValueError, match="sentence 2 has 3 labels in the output and 2 in the reference"):
        measure(name, ["O", "O O O"], single(["O", "O O"]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"sentence 1 has no labels; leave the sentence out of {name}"):
        measure(name, [""], single([" "]))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["macro-f1", "token-accuracy", "span-f1"])
def test_several_references_are_refused_where_one_is_needed(name: str) -> None:
    with pytest.raises(ValueError, match=f"output 2 has 2 references; {name} needs exactly one"):
        measure(name, ["O", "O"], [["O"], ["O", "B-PER"]])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("output", "reference"),
    [
        ("B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC"),
        ("B-PER I-PER I-PER", "B-PER I-PER O"),
        ("I-PER I-PER O", "B-PER I-PER O"),  # an I- that continues nothing begins a span
        ("B-PER I-LOC O", "B-PER I-PER O"),  # a change of type ends one
        ("B-PER B-PER", "B-PER I-PER"),
        ("O I-LOC B-LOC", "O I-LOC I-LOC"),
        ("B I O", "B I O"),  # spans without a type
        ("S-PER O B-LOC E-LOC", "S-PER O B-LOC I-LOC"),
        ("B-A-B I-A-B", "B-A-B I-A-C"),
        ("O O", "O O"),
    ],
)
def test_span_f1_is_seqevals(seqeval: Any, output: str, reference: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of F1 without spans
        theirs = seqeval.f1_score([reference.split()], [output.split()])
    assert score("span-f1", [output], [[reference]], bootstrap=0).value == pytest.approx(100 * theirs)


@pytest.mark.parametrize("seed", range(5))
def test_span_f1_of_many_sentences_is_seqevals_micro_average(seqeval: Any, seed: int) -> None:
    outputs, references = tagged(40, seed)
    theirs = seqeval.f1_score([text.split() for text in references], [text.split() for text in outputs])
    result = score("span-f1", outputs, single(references))
    assert result.value == pytest.approx(100 * theirs)
    assert result.low < result.value < result.high
    assert "|tags:conlleval|average:micro|" in result.signature


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_entities_are_seqevals_whatever_follows_whatever(seqeval: Any, length: int) -> None:
    get_entities = seqeval.sequence_labeling.get_entities
    labels = ["O", "B-A", "I-A", "I-B", "B", "I", "E-A", "S-B", "NOUN", "I-A-B", "."][: 11 if length < 4 else 8]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels that are no tags
        for tags in product(labels, repeat=length):
            assert entities(tags) == get_entities(list(tags)), tags


def test_entities_read_ill_formed_tags_as_the_most_that_can_be_meant() -> None:
    assert entities(["B-PER", "I-PER", "O", "I-LOC"]) == [("PER", 0, 1), ("LOC", 3, 3)]
    assert entities(["B-PER", "I-LOC", "B-LOC"]) == [("PER", 0, 0), ("LOC", 1, 1), ("LOC", 2, 2)]
    assert entities(["O", "B", "I"]) == [("_", 1, 2)]
    assert entities([]) == []


def test_folding_case_leaves_the_tags_readable() -> None:
    assert score("span-f1", ["B-per I-PER"], [["B-PER I-Per"]], lowercase=True, bootstrap=0).value == 100
    assert score("span-f1", ["B-per I-per"], [["B-PER I-PER"]], bootstrap=0).value == 0
    assert score("span-f1", ["B-per B-per"], [["B-PER I-PER"]], lowercase=True, bootstrap=0).value == 0


def test_labels_that_are_no_tags_are_pointed_out_once() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = measure("span-f1", ["NOUN B-PER"], single(["VERB B-PER"]))
    assert result.detail.endswith("2 labels beside B-, I- and O (the first: NOUN)")
    assert "beside B-" not in measure("span-f1", ["O B-PER"], single(["O B-PER"])).detail
    assert measure("span-f1", ["BAD O"], single(["O O"])).detail.endswith(
        "; 1 label beside B-, I- and O (the first: BAD)"
    )


def test_labels_that_a_model_does_not_know_are_never_right() -> None:
    assert count_unknown_labels(single(["N V X", "X N"]), ["N", "V"], of_words=True, lowercase=False) == 2
    assert count_unknown_labels(single(["New York", "York"]), ["New York"], of_words=False, lowercase=False) == 1
    assert count_unknown_labels(single(["n", "N"]), ["N"], of_words=True, lowercase=False) == 1
    assert count_unknown_labels(single(["n", "N"]), ["N"], of_words=True, lowercase=True) == 0


def test_bits_per_character_are_nats_shared_by_characters() -> None:
    result = measure_bits_per_character([math.log(2) * 6, math.log(2) * 2], [2, 2])
    assert (result.name, result.better) == ("bits/char", "lower")
    assert result.value == pytest.approx(2)
    assert result.detail == f"{2 * math.log(2):.4f} nats per character, 4 characters"
    assert (result.score().low, result.score().high) == pytest.approx((1, 3))
    with pytest.raises(ValueError, match="bits-per-character needs at least one sentence, and at least one character"):
        measure_bits_per_character([1.0], [0])
    with pytest.raises(ValueError, match="call measure_bits_per_character with them"):
        score("bits-per-character", ["a"], [["a"]])


# --- between systems ---------------------------------------------------------------------------------------------


def labelled(seed: int, labels: str) -> Measurement:
    """A system that gives one of `labels` where it errs."""
    draw = random.Random(seed)
    expected = random.Random(0).choices("abc", k=80)
    return measure("macro-f1", [w if draw.random() < 0.7 else draw.choice(labels) for w in expected], single(expected))


def test_alignment_changes_no_score() -> None:
    measurements = [labelled(1, "abcx"), labelled(2, "abcyz")]
    wide = align_classes(measurements)
    assert wide[0].classes == wide[1].classes == ("a", "b", "c", "x", "y", "z")
    for before, after in zip(measurements, wide, strict=True):
        assert after.statistics.shape == (80, 18)
        assert after.score() == before.score()


def test_systems_that_give_different_labels_are_tested_label_by_label() -> None:
    baseline, system = labelled(1, "abcx"), labelled(1, "abcy")  # as many columns, of other labels
    renamed = replace(system, classes=baseline.classes)  # the same errors under one name: no difference at all
    for test in (paired_bootstrap, approximate_randomization):
        assert test(baseline, renamed).difference == test(baseline, system).difference == 0
    swapped = approximate_randomization(labelled(1, "abcx"), labelled(2, "aaay"), trials=500)
    by_hand = approximate_randomization(*align_classes([labelled(1, "abcx"), labelled(2, "aaay")]), trials=500)
    assert swapped == by_hand


def test_unaligned_label_columns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"over 4 labels and over 4 that are not the same.*align_classes"):
        check_comparable(labelled(1, "abcx"), labelled(1, "abcy"))


def test_runs_of_several_seeds_with_different_labels_are_judged() -> None:
    verdict = judge([labelled(1, "abcx"), labelled(2, "abcy")], [labelled(3, "abc"), labelled(4, "abz")])
    assert verdict.mcnemar is None
    assert 0 < verdict.p <= 1


def test_mcnemar_goes_over_the_tokens_of_taggers_and_the_texts_of_classifiers() -> None:
    references = single(["N V D", "N N", "D"])
    baseline, system = (
        measure("token-accuracy", outputs, references) for outputs in (["N N N", "N N", "D"], ["N V D", "N V", "D"])
    )
    result = judge([baseline], [system]).mcnemar
    assert result is not None
    assert (result.metric, result.only_baseline_right, result.only_system_right) == ("token accuracy", 1, 2)
    assert result.difference == pytest.approx(system.value - baseline.value)
    whole = [measure("accuracy", outputs, single(["a", "b", "c"])) for outputs in (["a", "x", "x"], ["a", "b", "c"])]
    assert judge(whole[:1], whole[1:]).mcnemar == mcnemar([1, 0, 0], [1, 1, 1], metric="accuracy")
    spans = [measure("span-f1", ["B-PER"], [["B-PER"]])]
    assert judge(spans, spans).mcnemar is None


OUTPUTS, WANTED = ["a", "a", "b", "x", "a", "c"], [["a"], ["a"], ["b"], ["b"], ["c"], ["c"]]


def test_rows_are_right_labels_and_columns_predicted_ones() -> None:
    result = Confusion.of(OUTPUTS, WANTED)
    assert result.labels == ("a", "b", "c", "x")
    assert result.counts.tolist() == [[2, 0, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0]]


def test_precision_recall_f1_and_support_of_each_label() -> None:
    result = Confusion.of(OUTPUTS, WANTED)
    np.testing.assert_allclose(result.precision, [200 / 3, 100, 100, 0])
    np.testing.assert_allclose(result.recall, [100, 50, 50, 0])
    np.testing.assert_allclose(result.f1, [80, 200 / 3, 200 / 3, 0])
    assert result.support.tolist() == [2, 2, 2, 0]


def test_the_mean_f1_is_macro_f1_and_the_diagonal_is_accuracy() -> None:
    result = Confusion.of(OUTPUTS, WANTED)
    assert result.f1.mean() == pytest.approx(score("macro-f1", OUTPUTS, WANTED, bootstrap=0).value)
    share = 100 * result.counts.trace() / result.counts.sum()
    assert share == pytest.approx(score("accuracy", OUTPUTS, WANTED, bootstrap=0).value)


def test_labels_stand_in_the_order_given_and_unexpected_ones_behind() -> None:
    result = Confusion.of(OUTPUTS, WANTED, labels=["c", "b", "a", "never"])
    assert result.labels == ("c", "b", "a", "never", "x")
    assert result.counts.sum() == 6


def test_labels_may_have_spaces_and_lowercase_folds_case() -> None:
    assert Confusion.of(["New York"], [["new york"]]).labels == ("New York", "new york")
    assert Confusion.of(["New York "], [["new york"]], lowercase=True).counts.tolist() == [[1]]
    assert Confusion.of_tokens(["N v"], [["n V"]], lowercase=True).counts.tolist() == [[1, 0], [0, 1]]


def test_mistakes_are_the_most_frequent_confusions_and_nothing_that_is_right() -> None:
    result = Confusion(("a", "b", "c"), np.array([[9, 1, 0], [3, 9, 2], [0, 0, 9]]))
    assert result.mistakes(9) == [("b", "a", 3), ("b", "c", 2), ("a", "b", 1)]
    assert result.mistakes(2) == [("b", "a", 3), ("b", "c", 2)]


def test_invalid_labels_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="output 1 has 2 references; a confusion needs exactly one"):
        Confusion.of(["a"], [["a", "b"]])
    with pytest.raises(TypeError, match=r"references of output 1 are a text; write a list of texts: \['a'\]"):
        Confusion.of(["a"], ["a"])
    with pytest.raises(ValueError, match="2 outputs and references for 1"):
        Confusion.of(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match=r"counts \(1, 2\) must be \(labels, labels\), here \(2, 2\)"):
        Confusion(("a", "b"), np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match="label 'a' occurs in labels twice"):
        Confusion.of(["a"], [["a"]], labels=["b", "a", "a"])
