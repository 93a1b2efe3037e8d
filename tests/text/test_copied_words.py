"""Words outside the vocabulary have ids beside their own source, and come back as they stood there."""

from __future__ import annotations

from sightline.recipe.data import WordTokenizer
from sightline.text.copying import number_unknown, with_unknown, without_unknown
from sightline.text.tokenizer import UNK, Tokenizer

KNOWN = ["the cat sat on the mat ( again ) ."] * 2


def tokenizer(**changes: bool) -> Tokenizer:
    return Tokenizer.train(WordTokenizer(size=100, min_count=2, **changes), KNOWN)


def test_unknown_words_of_a_source_are_numbered_as_they_come_and_alike_in_its_target() -> None:
    own = tokenizer()
    pair = ("Zorba sat on Quux , the Zorba .", "the Quux Zorba Xyzzy")
    sources, targets = with_unknown(own, [pair], own.encode_many(pair[:1]), own.encode_many(pair[1:]))
    first = own.size
    assert [number for number in sources[0] if number >= first] == [first, first + 1, first + 2, first]
    assert targets[0][1:] == [first + 1, first, UNK]  # what is not in the source stays unknown
    assert targets[0][0] == own.encode("the")[0]


def test_a_copied_word_comes_back_with_the_spaces_it_had() -> None:
    own = tokenizer()
    for text in ("Zorba sat (Quux) on the mat.", "(Zorba) sat", "the Éclair—sat"):
        numbered, words = number_unknown(own, [text], own.encode_many([text]))
        assert UNK not in numbered[0]
        assert own.decode_copied(numbered[0], words[0]) == text


def test_a_tokenizer_that_lowers_case_copies_in_lower_case() -> None:
    own = tokenizer(lowercase=True)
    numbered, words = number_unknown(own, ["The ZORBA zorba"], own.encode_many(["The ZORBA zorba"]))
    assert words == [["▁zorba"]]
    assert own.decode_copied(numbered[0], words[0]) == "the zorba zorba"


def test_words_that_were_cut_off_are_not_numbered() -> None:
    own = tokenizer()
    text = "the Zorba Quux"
    numbered, words = number_unknown(own, [text], [own.encode(text)[:2]])
    assert words == [["▁Zorba"]] and numbered[0][1:] == [own.size]


def test_without_their_numbers_they_are_unknown_again() -> None:
    own = tokenizer()
    text = "the Zorba Quux"
    ((numbered,), _) = number_unknown(own, [text], own.encode_many([text]))
    assert without_unknown(numbered, own.size) == own.encode(text)
