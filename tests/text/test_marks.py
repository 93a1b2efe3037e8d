"""Marks in a vocabulary, and [MASK] in texts."""

from __future__ import annotations

import json

import pytest

from sightline.recipe.tokenizer import AnyTokenizer, BpeTokenizer, CharacterTokenizer, UnigramTokenizer, WordTokenizer
from sightline.text.infilling import encode_masked, fill_spans, split_at_masks
from sightline.text.tokenizer import SPECIALS, Tokenizer, TokenizerError

LINES = ["the cat sat on the mat .", "the dog, the mat and the cats", "<mask> is text here"] * 4
MARKS = ("<mask>", "<gap-0>")
SECTIONS: list[AnyTokenizer] = [
    WordTokenizer(min_count=1),
    CharacterTokenizer(),
    BpeTokenizer(size=80, min_count=1),
    UnigramTokenizer(size=40),
]


def kind(section: AnyTokenizer) -> str:
    return section.kind


@pytest.mark.parametrize("section", SECTIONS, ids=kind)
def test_marks_follow_special_tokens_and_are_saved(section: AnyTokenizer) -> None:
    trained = Tokenizer.train(section, LINES, MARKS)
    again = Tokenizer.parse(trained.content)
    assert trained.marks == again.marks == {"<mask>": 4, "<gap-0>": 5}
    assert again.mark("<gap-0>") == 5
    flags = {token["content"]: token["special"] for token in json.loads(trained.content)["added_tokens"]}
    assert flags == dict.fromkeys([*SPECIALS, *MARKS], True)


@pytest.mark.parametrize("section", SECTIONS, ids=kind)
def test_text_is_never_encoded_as_a_mark(section: AnyTokenizer) -> None:
    trained = Tokenizer.train(section, LINES, MARKS)
    assert not {4, 5} & set(trained.encode("the <mask> and <gap-0> <mask>"))


@pytest.mark.parametrize("section", SECTIONS, ids=kind)
def test_missing_mark_is_an_error(section: AnyTokenizer) -> None:
    trained = Tokenizer.train(section, LINES)
    assert trained.marks == {}
    with pytest.raises(TokenizerError, match=r"no mark <mask> .*data\.noise"):
        trained.mark("<mask>")


def test_vocabulary_size_includes_marks() -> None:
    assert Tokenizer.train(BpeTokenizer(size=40, min_count=1), LINES, MARKS).size == 40


@pytest.mark.parametrize("section", SECTIONS, ids=kind)
@pytest.mark.parametrize(
    "text",
    [
        "the [MASK] sat on the mat .",
        "[MASK] cat",
        "the cat[MASK]",
        "the [MASK], the mat",
        "[MASK]",
        "the [MASK][MASK] cat [MASK]",
        "  the   [MASK]   cat  ",
        "the \u2395 [MASK] \u2395",
    ],
)
def test_gap_becomes_one_mark(section: AnyTokenizer, text: str) -> None:
    trained = Tokenizer.train(section, LINES, MARKS)
    words = section.kind != "character"
    ids = encode_masked(trained, text, [4], words=words)
    assert ids.count(4) == text.count("[MASK]")
    if "][" in text or "\u2395" in text:
        return
    before, _, behind = text.partition("[MASK]")
    at = ids.index(4)
    assert trained.decode(ids[:at]).strip() == trained.normalize(before)
    assert trained.decode(ids[at + 1 :]).strip() == trained.normalize(behind)
    if behind.startswith(","):
        assert (
            ids[at + 1] == trained.encode("the cat, the mat")[len(trained.encode("the cat"))]
        )  # with no space before it


@pytest.mark.parametrize("section", SECTIONS, ids=kind)
def test_space_before_a_gap(section: AnyTokenizer) -> None:
    trained = Tokenizer.train(section, LINES, MARKS)
    words = section.kind != "character"
    space = [] if words else trained.encode("a a")[1:2]
    behind = trained.encode("the sat")[len(trained.encode("the")) :]
    ids = encode_masked(trained, "the [MASK] sat", [4], words=words)
    assert ids == [*trained.encode("the"), *space, 4, *behind]


def test_several_gaps_have_different_marks_in_order() -> None:
    trained = Tokenizer.train(BpeTokenizer(size=80, min_count=1), LINES, MARKS)
    ids = encode_masked(trained, "[MASK] cat [MASK]", [5, 4], words=True)
    assert (ids[0], ids[-1]) == (5, 4)
    with pytest.raises(ValueError, match=r"3 gaps .*knows 2"):
        encode_masked(trained, "[MASK] [MASK] [MASK]", [5, 4], words=True)


def test_gaps_are_filled_with_the_tokens_after_each_mark() -> None:
    assert fill_spans([10, 4, 11, 5], [4, 20, 21, 5, 22], [4, 5]) == [10, 20, 21, 11, 22]
    assert fill_spans([10, 4, 11, 5], [99, 5, 22], [4, 5]) == [10, 11, 22]  # what belongs to no gap is left out
    assert fill_spans([10, 4], [4, 20, 4, 21], [4, 5]) == [10, 20, 21]  # a mark that comes twice goes on


def test_split_at_masks() -> None:
    assert split_at_masks([10, 4, 11, 12, 5], [4, 5]) == [[10], [11, 12], []]
    assert split_at_masks([10], [4, 5]) == [[10]]
