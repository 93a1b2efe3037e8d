"""Vocabularies: label sets, labels of words, extension by new tokens."""

from __future__ import annotations

import json
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sightline.decoding.request import Request
from sightline.layers.layout import Padded
from sightline.models.build import build_model
from sightline.recipe import Recipe
from sightline.recipe.tokenizer import AnyTokenizer
from sightline.tasks.base import build_task
from sightline.text.tokenizer import END, PAD, SPECIALS, START, UNK, Tokenizer, TokenizerError
from sightline.text.vocabulary import Vocabulary, extend_tokenizer, label_tokenizer

ODD = [
    "▁", "▁NOUN", "NOUN", "noun", "##x", "B\u00a0LOC", "\u00a0", "é", "e\u0301", "ﬁ", "B-PER", ".", ",", "n't",
    "\u200b", "👍🏽", "Case=Nom|Number=Sing", "\\", "[UNK]", "Ġ", "\t", "\x0b", "\u3000",
    *SPECIALS, "<\\s>", "<\\\\s>", "\\<s>", "<s>x", "x<s>", "<\\x>", "<", "<s", "<<s>>",
]  # fmt: skip
LABEL = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.sampled_from(ODD))
DENSE = LABEL.filter(lambda label: " " not in label)


def test_label_ids_are_sorted_by_frequency() -> None:
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
def test_labels_like_special_tokens_are_distinct(whole: bool, tmp_path: Path) -> None:
    labels = label_tokenizer(ODD, whole=whole)
    labels.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.content == labels.content
    for tokenizer in (labels, loaded):
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


PAIRS = [
    ("the cat sat on the mat .", "DET NOUN VERB ADP DET NOUN PUNCT"),
    ("a cat , a mat !", "DET NOUN PUNCT DET NOUN PUNCT"),
    ("the mat sat", "DET NOUN VERB"),
]
TOKENIZERS: dict[str, dict[str, Any]] = {
    "word": {"kind": "word", "min_count": 1},
    "lower-case words": {"kind": "word", "min_count": 1, "lowercase": True, "normalize": "nfkc"},
    "character": {"kind": "character"},
    "character, spaces kept": {"kind": "character", "spaces": "keep", "normalize": "none"},
    "bpe": {"kind": "bpe", "size": 40, "normalize": "nfkc"},
    "unigram": {"kind": "unigram", "size": 30},
}
STRANGE = [
    "\u200b",  # zero-width space
    "\u00a0",  # no-break space, alone: nothing is left of it
    "a\u00a0b",
    "\t",
    "\n",
    "\u2028",
    "\u3000",
    "\ufeff",
    "\u0301",  # a combining mark with nothing to stand on
    "e\u0301\u0301",
    "👩‍👩‍👧‍👦",
    "🇸🇪",
    "▁",
    "▁▁the",
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    "ﷺ",  # one character that nfkc makes four words
    "½",
    "...",
    "the-cat,sat",
    "\x00",
    "the" * 40,
]
WORDS = st.one_of(
    st.sampled_from(STRANGE), st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1)
)


@cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary.train(_recipe(kind).tokenizer, lambda: iter(PAIRS), "words")


def _recipe(kind: str) -> Recipe:
    source = {"kind": "tsv", "file": "a"}
    return Recipe.model_validate(
        {
            "task": "tagging",
            "data": {"train": [source], "validation": source},
            "tokenizer": TOKENIZERS[kind],
            "model": {"width": 4, "encoder": {"kind": "recurrent", "cell": "gru"}},
        }
    )


@cache
def tagger(kind: str) -> Any:
    model = build_model(_recipe(kind), vocabulary(kind)).eval()
    return build_task(_recipe(kind), vocabulary(kind), model, torch.device("cpu"))


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40)
@given(sentences=st.lists(st.lists(WORDS, max_size=6), min_size=1, max_size=4))
@example(sentences=[[word] for word in STRANGE])
@example(sentences=[STRANGE])
def test_one_label_for_each_word(kind: str, sentences: list[list[str]]) -> None:
    texts = [" ".join(words) for words in sentences]
    pieces = vocabulary(kind).encode_words(texts)
    assert [len(each) for each in pieces] == [len(words) for words in sentences]
    assert all(word for each in pieces for word in each)  # a word always has a piece to put its label on
    answers = tagger(kind).predict([Request(text) for text in texts])
    known = {"DET", "NOUN", "VERB", "ADP", "PUNCT"}
    for words, (result,) in zip(sentences, answers, strict=True):
        labels = result.text.split(" ") if result.text else []
        assert len(labels) == len(result.tokens) == len(words)
        assert set(labels) <= known


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40)
@given(
    words=st.lists(WORDS, min_size=1, max_size=6),
    tags=st.lists(st.sampled_from(["DET", "NOUN", "NEW"]), min_size=6),
    dropout=st.sampled_from([0.0, 0.5]),
)
def test_labels_are_at_the_first_pieces_of_words(kind: str, words: list[str], tags: list[str], dropout: float) -> None:
    if kind != "bpe":
        dropout = 0.0
    own, tags = vocabulary(kind), tags[: len(words)]
    (source,), (target,) = own.encode_pairs([" ".join(words)], [" ".join(tags)], dropout=dropout, seeds=(3, 4))
    (pieces,) = own.encode_words([" ".join(words)], dropout=dropout, seed=3)
    assert source == list(chain.from_iterable(pieces))
    assert len(target) == len(source)
    heads = [sum(len(word) for word in pieces[:place]) for place in range(len(pieces))]
    assert [target[head] for head in heads] == [UNK if tag == "NEW" else own.target.encode(tag)[0] for tag in tags]
    assert sum(number != PAD for number in target) == len(words)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_same_word_is_cut_the_same_in_any_sentence(kind: str) -> None:
    (one,), (other,) = (vocabulary(kind).encode_words([text]) for text in ("cat sat", "the mat , cat !"))
    assert one[0] == other[3]


def test_word_that_normalizes_to_nothing_is_unknown() -> None:
    assert vocabulary("word").encode_words(["cat \u00a0 sat", ""])[0][1] == [UNK]
    assert vocabulary("word").encode_words([""]) == [[]]


def test_a_sentence_without_words_gets_no_label_and_too_many_spaces_make_no_words() -> None:
    empty, spaces, wide, narrow = tagger("bpe").predict(
        [Request(text) for text in ("", "   ", "  the   cat ", "the cat")]
    )
    assert [each[0].text for each in (empty, spaces)] == ["", ""]
    assert wide[0].text == narrow[0].text
    assert len(wide[0].text.split(" ")) == 2


def test_a_label_is_the_prediction_at_the_first_piece() -> None:
    answerer = tagger("character")
    (result,) = answerer.predict([Request("cat sat")])[0]
    ids = answerer.vocabulary.encode_words(["cat sat"])[0]
    tokens = torch.tensor([list(chain.from_iterable(ids))])
    with torch.no_grad():
        logits = answerer.model.logits(answerer.model(tokens, Padded.of([tokens.shape[1]])))[0]
    best = [int(logits[place, 4:].argmax()) + 4 for place in (0, len(ids[0]))]
    assert result.tokens == best
    assert result.text == answerer.vocabulary.target.decode(best)


@pytest.mark.parametrize(("text", "tags"), [("the cat", "DET"), ("cat", "DET NOUN"), ("", "DET"), ("the  cat", "A B")])
def test_uneven_labels_are_an_error(text: str, tags: str) -> None:
    with pytest.raises(TokenizerError, match=r"\d labels? \('.*'\) for \d words? \('.*'\); give each word one label"):
        vocabulary("word").encode_pairs(["the mat", text], ["DET NOUN", tags])


OLD = ["the cat sat on the mat", "the dog sat on the cat"] * 3
NEW = ["der Hund saß auf der Matte", "the Hund sat", "日本"] * 3


def trained(kind: str, lines: list[str]) -> Tokenizer:
    section = {"kind": kind, "size": 60} | ({} if kind == "unigram" else {"min_count": 1})
    return Tokenizer.train(TypeAdapter(AnyTokenizer).validate_python(section), lines)


@pytest.mark.parametrize("kind", ["word", "character", "bpe", "unigram"])
def test_old_tokens_keep_their_numbers_and_new_text_is_known(kind: str) -> None:
    old, new = trained(kind, OLD), trained(kind, NEW)
    both = extend_tokenizer(old, new)
    assert both.size > old.size
    assert both.pieces(range(old.size)) == old.pieces(range(old.size))
    assert set(both.pieces(range(both.size))) == {*old.pieces(range(old.size)), *new.pieces(range(new.size))}
    for text in NEW:
        assert UNK in old.encode(text)
        assert UNK not in both.encode(text)
        assert both.decode(both.encode(text)) == text
    assert Tokenizer.parse(both.content).content == both.content


@pytest.mark.parametrize("kind", ["word", "character", "bpe"])
def test_new_tokens_come_in_the_order_they_had(kind: str) -> None:
    old, new = trained(kind, OLD), trained(kind, NEW)
    both = extend_tokenizer(old, new)
    known = old.pieces(range(old.size))
    expected = [piece for piece in new.pieces(range(new.size)) if piece not in known]
    assert both.pieces(range(old.size, both.size)) == expected


@pytest.mark.parametrize("kind", ["word", "character"])
def test_extended_tokenizer_segments_old_text_the_same(kind: str) -> None:
    old = trained(kind, OLD)
    both = extend_tokenizer(old, trained(kind, NEW))
    assert both.encode_many(OLD) == old.encode_many(OLD)


def test_merges_of_the_new_text_come_after_the_old_ones() -> None:
    old = trained("bpe", OLD)
    both = extend_tokenizer(old, trained("bpe", NEW))
    assert both.pieces(both.encode("Hund")) == ["▁Hund"]
    mine, whole = (json.loads(each.content)["model"]["merges"] for each in (old, both))
    assert whole[: len(mine)] == mine  # also those that the new text has too
    assert both.encode_dropout(["Hund sat"], dropout=0.5, seed=1)[0]  # which reads the merges itself
    assert extend_tokenizer(old, trained("bpe", OLD)).content == old.content


def test_kinds_cannot_be_mixed() -> None:
    with pytest.raises(TokenizerError, match="a BPE tokenizer cannot be extended by a WordLevel one"):
        extend_tokenizer(trained("bpe", OLD), trained("word", NEW))


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram"])
def test_extended_tokenizer_keeps_marks(kind: str) -> None:
    section = TypeAdapter(AnyTokenizer).validate_python({"kind": kind, "size": 60})
    old = Tokenizer.train(section, OLD, ["<mask>"])
    both = extend_tokenizer(old, trained(kind, NEW))
    assert both.marks == old.marks
    assert both.size > old.size
    assert both.mark("<mask>") not in both.encode("<mask>")
