"""Quality by length, frequency and position, counted by hand and held together by sums."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.evaluation.breakdowns import (
    Recall,
    WordQuality,
    quality_by_frequency,
    quality_by_length,
    quality_by_position,
)
from sightline.evaluation.word_differences import words

SENTENCE = st.lists(st.sampled_from(["a", "b", "c", "Ä", "猫", "."]), max_size=8).map(" ".join)
SENTENCES = st.lists(st.tuples(st.lists(SENTENCE, min_size=1, max_size=3), SENTENCE, SENTENCE), min_size=1, max_size=30)


def parted(sentences: list[tuple[list[str], str, str]]) -> tuple[list[list[str]], dict[str, list[str]]]:
    references = [several for several, _, _ in sentences]
    return references, {"one": [one for _, one, _ in sentences], "two": [two for _, _, two in sentences]}


def share_equal(outputs: list[str], references: list[list[str]]) -> float:
    return sum(output in several for output, several in zip(outputs, references, strict=True)) / len(outputs)


# --- by length ----------------------------------------------------------------------------------------------


def test_each_system_is_scored_on_the_sentences_of_each_length() -> None:
    references = [["a"], ["a b"], ["a b c d"], ["a b c d"], ["a b c d e f"], ["a b c d e f g h i"]]
    outputs = ["a", "x", "a b c d", "a b c d", "x", "x"]
    result = quality_by_length(
        references, {"A": outputs, "B": [several[0] for several in references]}, share_equal, least=2
    )
    assert [(each.label, each.sentences, each.scores) for each in result] == [
        ("1-2", 2, {"A": 0.5, "B": 1.0}),
        ("3-4", 2, {"A": 1.0, "B": 1.0}),
        ("5-9", 2, {"A": 0.0, "B": 1.0}),
    ]


def test_the_length_of_a_sentence_is_the_rounded_average_of_its_references() -> None:
    result = quality_by_length(
        [["a", "a b"], ["a", "a b", "a b"], ["a b c d", "a"]], {"A": ["", "", ""]}, share_equal, least=1
    )
    assert [(each.label, each.sentences) for each in result] == [("2", 2), ("3", 1)]


def test_a_bucket_too_small_is_joined_with_the_next() -> None:
    references = [["a"]] * 35 + [["a b"]] * 5 + [["a b c"]] * 20
    result = quality_by_length(references, {"A": [""] * 60}, share_equal, least=10)
    assert [(each.label, each.sentences) for each in result] == [("1", 35), ("2-3", 25)]


@pytest.mark.parametrize(("count", "sizes"), [(59, [59]), (60, [30, 30]), (100, [34, 33, 33])])
def test_buckets_have_at_least_thirty_sentences_and_equal_sizes(count: int, sizes: list[int]) -> None:
    references = [["a " * length] for length in range(1, count + 1)]
    result = quality_by_length(references, {"A": [""] * count}, share_equal)
    assert [each.sentences for each in result] == sizes


@given(SENTENCES, st.integers(1, 6), st.integers(1, 10))
def test_length_buckets_hold_every_sentence_once_and_none_is_nearly_empty(
    sentences: list[tuple[list[str], str, str]], most: int, least: int
) -> None:
    references, systems = parted(sentences)
    seen: list[str] = []

    def collect(outputs: list[str], expected: list[list[str]]) -> float:
        assert len(outputs) == len(expected)
        seen.extend(outputs)
        return 0.0

    result = quality_by_length(references, {"one": systems["one"]}, collect, most=most, least=least)
    assert sorted(seen) == sorted(systems["one"])
    assert sum(each.sentences for each in result) == len(sentences)
    assert len(result) <= most
    assert len(result) == 1 or min(each.sentences for each in result) >= least
    assert all(before.high + 1 == after.low <= after.high for before, after in pairwise(result))


# --- by frequency -------------------------------------------------------------------------------------------


def test_words_are_counted_by_how_often_training_had_seen_them() -> None:
    references = [["the cat the dog"], ["a zebra ."]]
    outputs = ["the the the cat", "a horse ."]
    frequencies = {"the": 5000, ".": 1000, "a": 999, "cat": 10, "dog": 9, "horse": 1}
    result = quality_by_frequency(references, {"A": outputs}, frequencies)
    assert {each.label: each.systems["A"] for each in result} == {
        "0": WordQuality(count=1, produced=0, matched=0, precision=0.0, recall=0.0, f1=0.0),  # zebra
        "1-9": WordQuality(1, 1, 0, 0.0, 0.0, 0.0),  # dog was wanted, horse produced
        "10-99": WordQuality(1, 1, 1, 1.0, 1.0, 1.0),  # cat
        "100-999": WordQuality(1, 1, 1, 1.0, 1.0, 1.0),  # a
        "1000+": WordQuality(3, 4, 3, 0.75, 1.0, pytest.approx(6 / 7)),  # type: ignore[arg-type]
    }
    assert [each.low for each in result] == [0, 1, 10, 100, 1000]


def test_a_word_is_matched_within_its_own_sentence_only() -> None:
    (bucket,) = quality_by_frequency([["a"], ["b"]], {"A": ["b", "a"]})
    assert bucket.systems["A"] == WordQuality(2, 2, 0, 0.0, 0.0, 0.0)


def test_without_a_counter_the_references_are_counted_and_unwanted_buckets_left_out() -> None:
    result = quality_by_frequency([["ü " * 10], ["x"]], {"A": ["ü ü", "never-wanted"], "B": ["", "x"]})
    assert [(each.label, each.low, each.high) for each in result] == [("1-9", 1, 9), ("10-99", 10, 99)]
    assert result[1].systems == {
        "A": WordQuality(10, 2, 2, 1.0, 0.2, pytest.approx(1 / 3)),  # type: ignore[arg-type]
        "B": WordQuality(10, 0, 0, 0.0, 0.0, 0.0),
    }
    assert result[0].systems["B"].f1 == 1.0


def test_each_output_is_held_against_its_nearest_reference() -> None:
    references = [["a b c d", "x y", "x y"]]
    (bucket,) = quality_by_frequency(references, {"long": ["a b c"], "short": ["x y"]}, dict.fromkeys("abcdxy", 3))
    assert bucket.systems["long"].count == 4
    assert bucket.systems["short"] == WordQuality(2, 2, 2, 1.0, 1.0, 1.0)


@given(SENTENCES)
def test_frequency_buckets_hold_every_word_once(sentences: list[tuple[list[str], str, str]]) -> None:
    single, systems = parted([([several[0]], one, two) for several, one, two in sentences])
    frequencies = {"a": 5, "b": 50, "c": 500, "Ä": 5000, "猫": 1}
    result = quality_by_frequency([[f"a b c Ä . {several[0]}"] for several in single], systems, frequencies)
    assert len(result) == 5  # all wanted, so none is left out
    for name, outputs in systems.items():
        qualities = [each.systems[name] for each in result]
        assert sum(each.count for each in qualities) == sum(len(words(several[0])) + 5 for several in single)
        assert sum(each.produced for each in qualities) == sum(len(words(output)) for output in outputs)
        assert all(each.matched <= min(each.count, each.produced) for each in qualities)
        for each in qualities:
            if each.matched:
                assert each.f1 == pytest.approx(2 / (1 / each.precision + 1 / each.recall))


@given(SENTENCES)
def test_an_output_equal_to_a_reference_is_perfect_everywhere(sentences: list[tuple[list[str], str, str]]) -> None:
    references, _ = parted(sentences)
    systems = {"copy": [several[-1] for several in references]}
    assert all(each.systems["copy"].f1 == 1.0 for each in quality_by_frequency(references, systems))
    assert all(each.systems["copy"].recall == 1.0 for each in quality_by_position(references, systems))


# --- by position --------------------------------------------------------------------------------------------


def test_matched_words_are_counted_in_each_fifth_of_the_reference() -> None:
    references = [["a b c d e f g h i j"], ["日 本 語 だ ね"]]
    result = quality_by_position(references, {"A": ["a b c x x x i j", "日本語"], "B": ["", "ね"]})
    assert [each.part for each in result] == [1, 2, 3, 4, 5]
    assert [each.systems["A"] for each in result] == [
        Recall(count=3, matched=3, recall=1.0),
        Recall(3, 2, pytest.approx(2 / 3)),  # type: ignore[arg-type]
        Recall(3, 1, pytest.approx(1 / 3)),  # type: ignore[arg-type]
        Recall(3, 0, 0.0),
        Recall(3, 2, pytest.approx(2 / 3)),  # type: ignore[arg-type]
    ]
    assert [each.systems["B"].matched for each in result] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("text", "parts"), [("a", [3]), ("a b", [2, 4]), ("a b c", [1, 3, 5]), ("a b c d", [1, 2, 4, 5])]
)
def test_short_sentences_are_spread_evenly_and_empty_parts_left_out(text: str, parts: list[int]) -> None:
    assert [each.part for each in quality_by_position([[text]], {"A": [text]})] == parts


@given(SENTENCES, st.integers(1, 7))
def test_parts_hold_every_word_of_the_references_once(sentences: list[tuple[list[str], str, str]], parts: int) -> None:
    references, systems = parted([([several[0]], one, two) for several, one, two in sentences])
    result = quality_by_position(references, systems, parts=parts)
    for name in systems:
        assert sum(each.systems[name].count for each in result) == sum(len(words(several[0])) for several in references)
        assert all(each.systems[name].matched <= each.systems[name].count for each in result)


# --- all of them --------------------------------------------------------------------------------------------


def test_texts_that_do_not_belong_together_are_refused_by_name_and_number() -> None:
    with pytest.raises(ValueError, match=r"there are no systems"):
        quality_by_position([["a"]], {})
    with pytest.raises(ValueError, match=r"there are no references"):
        quality_by_position([], {"A": []})
    with pytest.raises(ValueError, match=r"big has 1 output and there are references for 2 sentences"):
        quality_by_length([["a"], ["b"]], {"small": ["a", "b"], "big": ["a"]}, share_equal)
    with pytest.raises(ValueError, match=r"sentence 2 has no reference"):
        quality_by_frequency([["a"], []], {"A": ["a", "b"]})
    with pytest.raises(TypeError, match=r"sentence 1 are a text; write a list of texts: \['ab'\]"):
        quality_by_frequency(["ab"], {"A": ["a"]})
    with pytest.raises(ValueError, match=r"parts \(0\) must be at least 1"):
        quality_by_position([["a"]], {"A": ["a"]}, parts=0)
