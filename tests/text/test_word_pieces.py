"""Words and their pieces, detokenizing and restoring case."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.text.word_pieces import align_pieces, detokenize, learn_casing, restore_case, word_groups


def test_word_groups() -> None:
    assert word_groups(["▁Ein", "▁Ap", "fel", "kuchen", ".", "</s>"]) == [[0], [1, 2, 3], [4], [5]]
    assert word_groups(["a", "b", "▁", "c"]) == [[0, 1], [2, 3]]
    assert word_groups([]) == []


def test_unknown_text_is_one_word_with_the_space_before_it() -> None:
    assert word_groups(["▁a", "▁", "<unk 犬>", "b", "<unk>", "▁c"]) == [[0], [1, 2], [3], [4], [5]]


def test_a_mark_of_noise_is_no_part_of_the_word_before_it() -> None:
    assert word_groups(["▁Two", "<mask>", "▁pl", "ay", "<gap-0>", "s"]) == [[0], [1], [2, 3], [4], [5]]


def test_where_there_are_no_marks_groups_are_the_words_that_the_pieces_spell() -> None:
    pieces = ["▁Ein", "▁Ap", "fel", "▁", "ku", "chen"]
    cut = align_pieces(list(range(6)), pieces)
    letters = [[place for place in group if pieces[place] != "▁"] for group in word_groups(pieces)]
    assert letters == [np.flatnonzero(column).tolist() for column in cut.members.T]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("mr president , commissioner , firstly !", "mr president, commissioner, firstly!"),
        ('( so ) he said : " yes " .', '(so) he said: "yes".'),
        ("the council 's view is n't mine", "the council's view isn't mine"),
        (", and then", ", and then"),
        ("", ""),
    ],
)
def test_detokenize(tokens: str, text: str) -> None:
    assert detokenize(tokens.split()) == text


def test_restore_case() -> None:
    casing = learn_casing(["Das ist der Hund.", "Ein Hund, der hund!", "Und Der ist es"])
    assert casing["hund"] == "Hund"
    assert "der" not in casing and "das" not in casing
    assert restore_case(["der", "hund", "."], casing) == ["Der", "Hund", "."]
    assert restore_case(["ja", "!", "der", "hund"], casing) == ["Ja", "!", "Der", "Hund"]


@given(st.lists(st.text("aßäB,.\"'()漢🙂", min_size=1, max_size=4), max_size=8))
def test_detokenize_and_restore_case_keep_letters(words: list[str]) -> None:
    casing = learn_casing(["x AB ab Aß"])
    assert "".join(detokenize(words).split()) == "".join(words)
    assert "".join(restore_case(words, casing)).lower() == "".join(words).lower()
