"""Vocabularies with more tokens."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter

from sightline.recipe.data import AnyTokenizer
from sightline.text.tokenizer import UNK, Tokenizer, TokenizerError
from sightline.text.vocabulary import extend_tokenizer

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
    wanted = [piece for piece in new.pieces(range(new.size)) if piece not in known]
    assert both.pieces(range(old.size, both.size)) == wanted


@pytest.mark.parametrize("kind", ["word", "character"])
def test_old_text_is_cut_as_before(kind: str) -> None:
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
def test_marks_that_noise_puts_in_stay(kind: str) -> None:
    section = TypeAdapter(AnyTokenizer).validate_python({"kind": kind, "size": 60})
    old = Tokenizer.train(section, OLD, ["<mask>"])
    both = extend_tokenizer(old, trained(kind, NEW))
    assert both.marks == old.marks
    assert both.size > old.size
    assert both.mark("<mask>") not in both.encode("<mask>")
