"""Tokenizers that spell out text."""

from __future__ import annotations

from pathlib import Path

import pytest

from sightline.recipe.tokenizer import (
    AnyTokenizer,
    BpeTokenizer,
    CharacterTokenizer,
    UnigramTokenizer,
    WhitespaceTokenizer,
    WordTokenizer,
)
from sightline.text.tokenizer import Tokenizer, spell_out, unspelled_offsets
from sightline.text.vocabulary import Vocabulary

SECTIONS: list[AnyTokenizer] = [
    WordTokenizer(min_count=1, lowercase=True),
    WhitespaceTokenizer(min_count=1),
    CharacterTokenizer(lowercase=True),
    BpeTokenizer(min_count=1, size=40, lowercase=True),
    UnigramTokenizer(size=40, lowercase=True),
]
TEXTS = ["abandon", "Ab  xy", "a", "", " ", "to be?", "e\u0301a", "a b c", "日本"]


def test_spelled_text_stays_as_it_is() -> None:
    assert spell_out("to be") == "t o b e"
    for text in TEXTS:
        assert spell_out(spell_out(text)) == spell_out(text)
        places = unspelled_offsets(text)
        letters = [(character, text[at]) for character, at in zip(spell_out(text), places, strict=False)]
        assert all(one == other or one == " " for one, other in letters)
        assert places[-1] == len(text)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.kind)
def test_raw_text_is_cut_as_spelled_text_is(section: AnyTokenizer) -> None:
    plain = Tokenizer.train(section, ["a b a n d o n t e x y", "A B ?"] * 2)
    spelling = plain.with_spelling(True)
    for text in TEXTS:
        assert spelling.encode(text) == spelling.encode(spell_out(text)) == plain.encode(spell_out(text))
        assert spelling.encode_many([text]) == [plain.encode(spell_out(text))]
        assert spelling.unknown(text) == plain.unknown(spell_out(text))
        assert spelling.written([text]) == plain.written([spell_out(text)])
        assert spelling.words(text) == plain.words(spell_out(text))
        assert spelling.normalize(text) == plain.normalize(spell_out(text))
    assert spelling.with_spelling(True) is spelling
    assert Tokenizer.parse(spelling.content).spells and not plain.spells
    assert spelling.with_spelling(False).encode_many(TEXTS) == plain.encode_many(TEXTS)


def test_spans_refer_to_the_unspelled_text() -> None:
    tokenizer = Tokenizer.train(WordTokenizer(min_count=1), ["a b c"]).with_spelling(True)
    assert [("ab ca"[start:stop]).strip() for start, stop in tokenizer.spans("ab ca")] == ["a", "b", "c", "a"]


def test_one_side_of_a_shared_vocabulary_spells(tmp_path: Path) -> None:
    vocabulary = Vocabulary.train(WordTokenizer(min_count=1), lambda: iter([("a b", "ab a")]))
    source = vocabulary.with_spelling("source")
    assert source.source.encode("ab") == source.source.encode("a b")
    assert source.target.encode("ab") != source.target.encode("a b")
    both = vocabulary.with_spelling("both")
    assert both.source is both.target
    source.save(tmp_path)
    assert not Vocabulary.load(tmp_path).source.spells
    assert Vocabulary.load(tmp_path).with_spelling("source").source.content == source.source.content
