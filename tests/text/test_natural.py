"""Tokenized, lowercased text, written naturally again: spaces and case change, letters never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.text.word_pieces import detokenize, learn_casing, restore_case


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
def test_spaces_stand_where_a_writer_puts_them(tokens: str, text: str) -> None:
    assert detokenize(tokens.split()) == text


def test_words_get_the_case_they_mostly_have_inside_sentences() -> None:
    casing = learn_casing(["Das ist der Hund.", "Ein Hund, der hund!", "Und Der ist es"])
    assert casing["hund"] == "Hund"
    assert "der" not in casing and "das" not in casing
    assert restore_case(["der", "hund", "."], casing) == ["Der", "Hund", "."]
    assert restore_case(["ja", "!", "der", "hund"], casing) == ["Ja", "!", "Der", "Hund"]


@given(st.lists(st.text("aßäB,.\"'()漢🙂", min_size=1, max_size=4), max_size=8))
def test_no_letter_is_ever_changed(words: list[str]) -> None:
    casing = learn_casing(["x AB ab Aß"])
    assert "".join(detokenize(words).split()) == "".join(words)
    assert "".join(restore_case(words, casing)).lower() == "".join(words).lower()
