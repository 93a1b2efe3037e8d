"""Words of any script, their alignment, and the marks of what changed between two texts."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sightline.evaluation.word_differences import Segment, align_words, word_differences, word_frequencies, words

FEW_WORDS = st.lists(st.sampled_from("abcd"), max_size=9)
SPACED = st.text(alphabet="ab ,\u00a0ü\u0308日ではกี่'1.", max_size=14)
LAYOUT = {"\u200b", "\u200e", "\u200f", "\ufeff", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2060, 0x206A))}


def joined(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def kinds(segments: list[Segment]) -> list[tuple[str, str]]:
    return [(segment.text, segment.kind) for segment in segments]


def longest_common(first: list[str], second: list[str]) -> int:
    """The textbook table."""
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, left in enumerate(first):
        for j, right in enumerate(second):
            table[i + 1][j + 1] = table[i][j] + 1 if left == right else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Die grünen Bäume, nicht?", ["Die", "grünen", "Bäume", ",", "nicht", "?"]),
        ("Bäume", ["Bäume"]),
        (unicodedata.normalize("NFD", "Bäume"), [unicodedata.normalize("NFD", "Bäume")]),
        ("don't say ‘no’", ["don't", "say", "‘", "no", "’"]),
        ("l’été, 1,000.5 (3.) 7:30", ["l’été", ",", "1,000.5", "(", "3", ".", ")", "7", ":", "30"]),
        ("2009-03-12 a.b v.2", ["2009", "-", "03", "-", "12", "a", ".", "b", "v", ".", "2"]),
        ("Zucker\u00adrübe", ["Zucker\u00adrübe"]),  # a soft hyphen joins
        ("GPUで2回、東京。", ["GPU", "で", "2", "回", "、", "東", "京", "。"]),
        ("か\u3099く", ["か\u3099", "く"]),  # a decomposed が is one character
        ("ที่นี่", ["ที่", "นี่"]),
        ("كِتابٌ، می\u200cخواهم؟", ["كِتابٌ", "،", "می\u200cخواهم", "؟"]),
        ("हिन्दी में।", ["हिन्दी", "में", "।"]),
        ("한국어 문장.", ["한국어", "문장", "."]),
        ("𠮷𠮷 ok", ["𠮷", "𠮷", "ok"]),
        ("\u200ea\u200bb \ufeff", ["a", "b"]),
        (" \t\n", []),
        ("", []),
    ],
)
def test_a_text_of_any_script_has_these_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text())
def test_every_visible_character_is_in_exactly_one_word(text: str) -> None:
    kept = "".join(character for character in text if not character.isspace() and character not in LAYOUT)
    assert "".join(words(text)) == kept


@given(st.text(), st.text())
def test_words_do_not_depend_on_the_text_beyond_a_space(first: str, second: str) -> None:
    assert words(f"{first} {second}") == words(first) + words(second)


def test_frequencies_count_words_with_their_case() -> None:
    assert word_frequencies(["The cat, the", "cat 猫猫"]) == {"The": 1, "the": 1, "cat": 2, ",": 1, "猫": 2}


@given(FEW_WORDS, FEW_WORDS)
def test_an_alignment_pairs_as_many_equal_words_as_can_be_paired_in_order(first: list[str], second: list[str]) -> None:
    pairs = align_words(first, second)
    assert all(first[i] == second[j] for i, j in pairs)
    assert all(i < next_i and j < next_j for (i, j), (next_i, next_j) in pairwise(pairs))
    assert len(pairs) == longest_common(first, second)


@given(FEW_WORDS, FEW_WORDS)
def test_an_alignment_does_not_depend_on_which_text_is_first(first: list[str], second: list[str]) -> None:
    assert align_words(second, first) == [(j, i) for i, j in align_words(first, second)]


def test_removed_added_and_changed_words_are_distinguished() -> None:
    before, after = word_differences("the old cat sat down  on it.", "the cat  stood on it today.")
    assert kinds(before) == [
        ("the ", "same"),
        ("old", "removed"),
        (" cat ", "same"),
        ("sat down", "changed"),
        ("  on it.", "same"),
    ]
    assert kinds(after) == [
        ("the cat  ", "same"),
        ("stood", "changed"),
        (" on it ", "same"),
        ("today", "added"),
        (".", "same"),
    ]


@pytest.mark.parametrize(
    ("baseline", "system", "before", "after"),
    [
        ("", "", [], []),
        ("", "a b", [], [("a b", "added")]),
        (" a ", "", [(" ", "same"), ("a", "removed"), (" ", "same")], []),
        (" ", "a", [(" ", "same")], [("a", "added")]),
        ("a  b", "a b", [("a  b", "same")], [("a b", "same")]),
    ],
)
def test_empty_texts_and_spaces_have_segments_too(
    baseline: str, system: str, before: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    result = word_differences(baseline, system)
    assert (kinds(result[0]), kinds(result[1])) == (before, after)


@given(SPACED | st.text(), SPACED | st.text())
@example(" a", "a ")
def test_joined_segments_are_the_texts(baseline: str, system: str) -> None:
    before, after = word_differences(baseline, system)
    assert (joined(before), joined(after)) == (baseline, system)
    assert all(segment.text for segment in before + after)
    assert all(one.kind != other.kind for side in (before, after) for one, other in pairwise(side))


@given(SPACED, SPACED)
def test_each_text_has_the_same_words_outside_its_marks(baseline: str, system: str) -> None:
    before, after = word_differences(baseline, system)
    shared = [
        [word for segment in side if segment.kind == "same" for word in words(segment.text)] for side in (before, after)
    ]
    assert shared[0] == shared[1]
    assert {segment.kind for segment in before} <= {"same", "removed", "changed"}
    assert {segment.kind for segment in after} <= {"same", "added", "changed"}
    changed = [sum(segment.kind == "changed" for segment in side) for side in (before, after)]
    assert changed[0] == changed[1]


@given(SPACED, SPACED)
def test_swapping_the_texts_swaps_the_segments(baseline: str, system: str) -> None:
    before, after = word_differences(baseline, system)
    other = {"removed": "added", "added": "removed", "same": "same", "changed": "changed"}
    swapped = [[(segment.text, other[segment.kind]) for segment in side] for side in (after, before)]
    result = word_differences(system, baseline)
    assert [kinds(result[0]), kinds(result[1])] == swapped


@given(st.text(min_size=1))
def test_a_text_does_not_differ_from_itself(text: str) -> None:
    assert word_differences(text, text) == ([Segment(text, "same")], [Segment(text, "same")])
