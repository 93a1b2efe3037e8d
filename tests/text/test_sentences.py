"""Sentences, and scripts without spaces."""

from __future__ import annotations

import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.noise import PieceTable
from sightline.decoding.phrases import occurrences
from sightline.evaluation import rouge, word_differences
from sightline.inspection.word_senses import places_of
from sightline.recipe.tokenizer import CharacterTokenizer
from sightline.text.sentences import sentence_ends, sentences, unspaced
from sightline.text.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one. two! three? four", ["one.", "two!", "three?", "four"]),
        ("spaces stand before it . and behind it .", ["spaces stand before it .", "and behind it ."]),
        (
            "grown in e. coli, e.g. at 3.5 degrees (see fig. 2). then",
            ["grown in e. coli, e.g. at 3.5 degrees (see fig. 2).", "then"],
        ),
        ('he said "no." and left', ['he said "no."', "and left"]),
        ("a line\nanother line\n", ["a line", "another line"]),
        ("\n\na line.\n\nanother. \n", ["a line.", "another."]),
        ("no end", ["no end"]),
        ("...", ["..."]),
        ("", []),
    ],
)
def test_a_text_is_cut_where_its_sentences_end(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "It weighs 3.5 kg at 21.10.2016 and costs $1.20 more.",
        "Mr. Smith met Dr. J. R. R. Miller, cf. fig. 2 of Berg et al. 2004.",
        "The U.S. Army, i.e. all of it, came at 5 p.m. with z.B. drums.",
        "Das gilt z. B. bzw. u. a. auch in Nr. 5 und vgl. Abb. 3 dort.",
        "Files, links etc. are kept, resp. moved.",
        '"Why?" he asked, and "Stop!" she cried.',
        "Well... maybe it is (or so etc.) a search on Yahoo! today.",
        "1. First comes this.",
        "(2) Then that.",
        "ACRONYMS like PNG. ",
        "It takes approx. Five of them.",
        "Das dauert 3 Std. und mehr.",
    ],
)
def test_abbreviations_do_not_end_sentences(sentence: str) -> None:
    assert sentences(sentence) == [sentence.strip()]
    assert sentences(f"{sentence} The next one begins. So does another.") == [
        sentence.strip(),
        "The next one begins.",
        "So does another.",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It reads PNG. libpng does. pywebview too.", ["It reads PNG.", "libpng does.", "pywebview too."]),
        ("It was 5. The rest was 1999. So.", ["It was 5.", "The rest was 1999.", "So."]),
        ("The cat . the dog . The end", ["The cat .", "the dog .", "The end"]),
        ("He came (late). She left.” They slept.", ["He came (late).", "She left.”", "They slept."]),
        ("Was it? It was! “Oh…” Good.", ["Was it?", "It was!", "“Oh…”", "Good."]),
    ],
)
def test_sentences_may_begin_with_small_letters_and_end_with_numbers_and_quotes(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_abbreviations_before_numbers() -> None:
    assert sentences("He looked at the art. It was good.") == ["He looked at the art.", "It was good."]


def test_a_line_end_is_no_part_of_the_sentence_before_it() -> None:
    assert sentence_ends("One line\nAnother") == [len("One line")]


def test_lowercase_text_is_split_at_full_stops() -> None:
    """Titles in capitals do not make a text one that begins its sentences with them."""
    assert sentences("BACKGROUND is it? we asked. RESULTS it is! we found etc. and so on.") == [
        "BACKGROUND is it?",
        "we asked.",
        "RESULTS it is!",
        "we found etc.",
        "and so on.",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("これは本です。それも。", ["これは本です。", "それも。"]),
        ("「行く！」と言った？はい。", ["「行く！」", "と言った？", "はい。"]),
        ("他说：“好。”“不。”", ["他说：“好。”", "“不。”"]),
        ("هل هذا كتاب؟ نعم. حسنا", ["هل هذا كتاب؟", "نعم.", "حسنا"]),
        ("یہ کتاب ہے۔ وہ بھی۔", ["یہ کتاب ہے۔", "وہ بھی۔"]),
        ("यह किताब है। वह भी॥ ठीक", ["यह किताब है।", "वह भी॥", "ठीक"]),
    ],
)
def test_sentence_marks_of_other_scripts(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet="aBé1 .!?…\n()\"'”。؟।“", max_size=60))
def test_sentence_ends_are_increasing_and_lossless(text: str) -> None:
    ends = sentence_ends(text)
    assert ends == sorted(set(ends)) and all(0 < end <= len(text) for end in ends)
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize("mark", [".", "\n"])
def test_repeated_marks_and_empty_lines_are_fast(mark: str) -> None:
    """It grows with their number, not with its square, which would be minutes of work here."""
    started = time.process_time()
    sentence_ends("a" + 80_000 * mark + "b")
    assert time.process_time() - started < 5


NAMES = ("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "BOPOMOFO")
NAMES += ("HENTAIGANA", "IDEOGRAPHIC", "THAI", "LAO", "KHMER", "MYANMAR")
TEXTS = ["本を読む", "人々", "カタカナー", "ｶﾀｶﾅ", "𠮷野家", "ไทย", "ລາວ", "ខ្មែរ", "မြန်မာ", "ㄅㄆ"]
SPACED = ["नमस्ते", "한국어", "བོད", "grün", "Привет"]


def test_unspaced_scripts_by_unicode_name() -> None:
    letters = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Lo", "Nd")]
    named = {letter for letter in letters if unicodedata.name(letter, "").startswith(NAMES)}
    assert {letter for letter in letters if unspaced(letter)} == named
    assert unspaced("々") and unspaced("ー")  # which have names of their own


@pytest.mark.parametrize("text", TEXTS)
def test_metrics_split_unspaced_scripts_into_characters(text: str) -> None:
    assert all(map(unspaced, text))
    assert rouge.rouge_words(text) == list(text)
    marked = sum(not unicodedata.category(letter).startswith("M") for letter in text)
    assert len(word_differences.words(text)) == marked
    assert occurrences(text[0], text * 2) and places_of(text, text * 2)
    tokenizer = Tokenizer.train(CharacterTokenizer(kind="character"), [text])
    begins = PieceTable.of(tokenizer, ()).begins
    assert begins[tokenizer.encode(text)].all()


@pytest.mark.parametrize("text", SPACED)
def test_metrics_split_spaced_scripts_into_words(text: str) -> None:
    assert not any(map(unspaced, text))
    assert rouge.rouge_words(text) == [text.lower()]
    assert word_differences.words(text) == [text]
    assert not places_of(text[:1], text)
    assert not occurrences(text[:1], text) or unicodedata.category(text[1])[0] == "M"


def test_syllables_of_tibetan_are_words_of_rouge() -> None:
    assert rouge.rouge_words("བོད་སྐད") == ["བོད", "སྐད"]
