"""Scripts that set no spaces between words: one definition for all who count words."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from sightline.data.noise import PieceTable
from sightline.decoding.phrases import occurrences
from sightline.evaluation import rouge, word_differences
from sightline.inspection.word_senses import places_of
from sightline.recipe.data import CharacterTokenizer
from sightline.text.sentences import unspaced
from sightline.text.tokenizer import Tokenizer

NAMES = ("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "BOPOMOFO")
NAMES += ("HENTAIGANA", "IDEOGRAPHIC", "THAI", "LAO", "KHMER", "MYANMAR")
TEXTS = ["本を読む", "人々", "カタカナー", "ｶﾀｶﾅ", "𠮷野家", "ไทย", "ລາວ", "ខ្មែរ", "မြန်မာ", "ㄅㄆ"]
SPACED = ["नमस्ते", "한국어", "བོད", "grün", "Привет"]


def test_every_letter_of_them_is_told_by_its_name_and_no_other_is() -> None:
    letters = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Lo", "Nd")]
    named = {letter for letter in letters if unicodedata.name(letter, "").startswith(NAMES)}
    assert {letter for letter in letters if unspaced(letter)} == named
    assert unspaced("々") and unspaced("ー")  # which have names of their own


@pytest.mark.parametrize("text", TEXTS)
def test_whoever_counts_words_takes_such_text_letter_by_letter(text: str) -> None:
    assert all(map(unspaced, text))
    assert rouge.rouge_words(text) == list(text)
    marked = sum(not unicodedata.category(letter).startswith("M") for letter in text)
    assert len(word_differences.words(text)) == marked
    assert occurrences(text[0], text * 2) and places_of(text, text * 2)
    tokenizer = Tokenizer.train(CharacterTokenizer(kind="character"), [text])
    begins = PieceTable.of(tokenizer, ()).begins
    assert begins[tokenizer.encode(text)].all()


@pytest.mark.parametrize("text", SPACED)
def test_and_text_of_other_scripts_word_by_word(text: str) -> None:
    assert not any(map(unspaced, text))
    assert rouge.rouge_words(text) == [text.lower()]
    assert word_differences.words(text) == [text]
    assert not places_of(text[:1], text)
    assert not occurrences(text[:1], text) or unicodedata.category(text[1])[0] == "M"


def test_syllables_of_tibetan_are_words_of_rouge() -> None:
    assert rouge.rouge_words("བོད་སྐད") == ["བོད", "སྐད"]
