"""Labels to ids and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.text.tokenizer import END, PAD, SPECIALS, START, UNK, Tokenizer, TokenizerError
from sightline.text.vocabulary import label_tokenizer

ODD = [
    "▁", "▁NOUN", "NOUN", "noun", "##x", "B\u00a0LOC", "\u00a0", "é", "e\u0301", "ﬁ", "B-PER", ".", ",", "n't",
    "\u200b", "👍🏽", "Case=Nom|Number=Sing", "\\", "[UNK]", "Ġ", "\t", "\x0b", "\u3000",
    *SPECIALS, "<\\s>", "<\\\\s>", "\\<s>", "<s>x", "x<s>", "<\\x>", "<", "<s", "<<s>>",
]  # fmt: skip
LABEL = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.sampled_from(ODD))
DENSE = LABEL.filter(lambda label: " " not in label)


def test_ids_go_by_falling_frequency_and_then_by_the_alphabet() -> None:
    tokenizer = label_tokenizer(["D C C", "B b B", "", "C"], whole=False)
    assert tokenizer.pieces(range(tokenizer.size)) == [*SPECIALS, "C", "B", "D", "b"]
    assert tokenizer.encode("b D B C") == [7, 6, 5, 4]
    assert tokenizer.encode("") == []


def test_a_whole_text_can_be_one_label() -> None:
    tokenizer = label_tokenizer(["very good", "bad", "very good", " bad "], whole=True)
    assert tokenizer.encode_many(["very good", " bad ", "bad"]) == [[4], [5], [6]]
    assert tokenizer.decode_many([[4], [START, 5, END, PAD], [6]]) == ["very good", " bad ", "bad"]
    assert tokenizer.encode("very") == tokenizer.encode("very  good") == tokenizer.encode("bad bad") == [UNK]


def test_a_label_never_seen_is_unknown() -> None:
    tokenizer = label_tokenizer(["NOUN VERB é"], whole=False)
    unseen = ["noun", "e\u0301", "NOUNVERB", "NOUN\u00a0VERB", "▁NOUN", *SPECIALS]
    assert tokenizer.encode(" ".join(unseen)) == [UNK] * len(unseen)
    assert tokenizer.unknown("NOUN noun VERB <s>") == ["noun", "<s>"]
    assert tokenizer.decode(tokenizer.encode("NOUN noun")) == "NOUN <unk>"


def test_starts_ends_and_pads_leave_no_space() -> None:
    tokenizer = label_tokenizer(["A B"], whole=False)
    assert tokenizer.decode([START, 4, PAD, 5, END, PAD]) == "A B"
    assert tokenizer.decode([START, END]) == ""


def test_a_whole_label_may_hold_the_name_of_a_special() -> None:
    tokenizer = label_tokenizer(["say <s> now", "<s>"], whole=True)
    assert [tokenizer.decode(tokenizer.encode(label)) for label in ("say <s> now", "<s>")] == ["say <s> now", "<s>"]


@pytest.mark.parametrize("whole", [False, True])
def test_odd_labels_survive_and_stay_apart(whole: bool, tmp_path: Path) -> None:
    made = label_tokenizer(ODD, whole=whole)
    made.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.content == made.content
    for tokenizer in (made, loaded):
        assert tokenizer.size == len(SPECIALS) + len(ODD)
        ids = [tokenizer.encode(label) for label in ODD]
        assert all(len(one) == 1 for one in ids)
        assert sorted(number for (number,) in ids) == list(range(len(SPECIALS), tokenizer.size))
        assert [tokenizer.decode(one) for one in ids] == ODD
    if not whole:
        assert loaded.decode(loaded.encode(" ".join(ODD))) == " ".join(ODD)
        assert len(loaded.encode(" ".join(ODD))) == len(ODD)


@given(st.lists(st.lists(DENSE), min_size=1).filter(any))
def test_labels_come_back_byte_for_byte(texts: list[list[str]]) -> None:
    lines = [" ".join(labels) for labels in texts]
    tokenizer = Tokenizer.parse(label_tokenizer(lines, whole=False).content)
    ids = tokenizer.encode_many(lines)
    assert [len(one) for one in ids] == [len(labels) for labels in texts]
    assert all(number > END for one in ids for number in one)
    assert tokenizer.decode_many(ids) == lines


@given(st.lists(LABEL, min_size=1))
def test_whole_labels_come_back_byte_for_byte(texts: list[str]) -> None:
    tokenizer = Tokenizer.parse(label_tokenizer(texts, whole=True).content)
    assert tokenizer.size == len(SPECIALS) + len(set(texts))
    ids = tokenizer.encode_many(texts)
    assert all(len(one) == 1 and one[0] > END for one in ids)
    assert tokenizer.decode_many(ids) == texts


@pytest.mark.parametrize(
    ("texts", "whole", "message"),
    [
        ([], True, "no labels can be learned"),
        (["", ""], False, "no labels can be learned"),
        (["a", ""], True, r"text 2 \(''\) has an empty label"),
        (["a b", "a  b"], False, r"text 2 \('a  b'\) has an empty label"),
        ([" a"], False, r"text 1 \(' a'\) has an empty label"),
    ],
)
def test_texts_without_labels_are_refused(texts: list[str], whole: bool, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        label_tokenizer(texts, whole=whole)
