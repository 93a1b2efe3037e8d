"""Copying of source words, known or unknown, with and without a space before them."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.recipe.tokenizer import AnyTokenizer, BpeTokenizer, CharacterTokenizer, UnigramTokenizer, WordTokenizer
from sightline.text.copying import CopyForms, ReadSource, number_copied, read_sources, with_unknown
from sightline.text.tokenizer import UNK, Tokenizer

KNOWN = ["the cat sat on the mat ( again ) ."] * 2
COMMANDS = [f"find the user named {name} with id {n}" for n, name in enumerate(["anna", "bob", "petra", "paul"])]
QUERIES = ["select * from users where name = 'anna bob' and id = (0123456789)"]
SECTIONS: dict[str, AnyTokenizer] = {
    "word": WordTokenizer(size=100, min_count=1),
    "bpe": BpeTokenizer(size=90, min_count=1),
    "unigram": UnigramTokenizer(size=60),
    "character": CharacterTokenizer(min_count=1),
}


@cache
def trained(kind: str) -> Tokenizer:
    return Tokenizer.train(SECTIONS[kind], COMMANDS + QUERIES)


def tokenizer(**changes: bool) -> Tokenizer:
    return Tokenizer.train(WordTokenizer(size=100, min_count=2, **changes), KNOWN)


def read(own: Tokenizer, text: str, forms: CopyForms | None = None) -> ReadSource:
    (source,) = read_sources(own, [text], own.encode_many([text]), forms)
    return source


def text_of(own: Tokenizer, ids: list[int], source: ReadSource) -> str:
    return own.decode_pieces([own.all_pieces[n] if n < own.size else source.text_of(n, own.size) for n in ids])


def test_copied_words_are_numbered_by_source_position() -> None:
    own = tokenizer()
    pair = ("Zorba sat on Quux , the Zorba .", "the Quux Zorba Xyzzy")
    sources, targets = with_unknown(own, [pair], own.encode_many(pair[:1]), own.encode_many(pair[1:]))
    size = own.size
    assert [number for number in sources[0] if number >= size] == [size, size + 2 * 3, size + 2 * 4, size]
    assert targets[0][1:] == [size + 2 * 3, size, UNK]  # what is not in the source stays unknown
    assert targets[0][0] == own.encode("the")[0]


def test_exact_copying_requires_the_same_form() -> None:
    own = tokenizer()
    pair = ("the Zorba sat", "(Zorba) sat")
    _, (target,) = with_unknown(own, [pair], own.encode_many(pair[:1]), own.encode_many(pair[1:]))
    assert target[1] == UNK


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("find the user named petra with id 7474", "name = 'petra' and id = (7474)"),
        ("find 'petra' (7474)", "petra 7474"),
        ("find zorbaquux 犬", "('zorbaquux') (犬) 犬"),
        ("find ('zorbaquux')", "zorbaquux 'zorbaquux'"),
    ],
)
def test_a_word_of_the_source_is_never_unknown_in_the_target(kind: str, source: str, target: str) -> None:
    own = trained(kind)
    forms = CopyForms.of(own.all_pieces)
    known = read(own, source, forms)
    (ids,) = number_copied(own, [target], own.encode_many([target]), [known], forms)
    assert UNK not in ids and UNK not in known.ids
    assert text_of(own, ids, known) == target


@pytest.mark.parametrize("kind", list(SECTIONS))
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_copied_target_round_trip(kind: str, data: st.DataObject) -> None:
    own = trained(kind)
    words = data.draw(st.lists(st.sampled_from(["petra", "7474", "犬", "zorba", "anna", "0"]), min_size=1, max_size=5))
    marks = data.draw(st.lists(st.sampled_from(["{}", "'{}'", "({})", "('{}')"]), min_size=len(words)))
    source = " ".join(words)
    target = " ".join(mark.format(word) for mark, word in zip(marks, words, strict=False))
    forms = None if kind == "character" else CopyForms.of(own.all_pieces)
    known = read(own, source, forms)
    (ids,) = number_copied(own, [target], own.encode_many([target]), [known], forms)
    assert UNK not in ids
    assert text_of(own, ids, known) == target
    assert text_of(own, known.ids, known) == source
    copies = {own.size + 2 * place + joined for place in range(len(known.ids)) for joined in (0, 1)} | set(known.ids)
    if forms is not None:
        copies |= {form for n in known.ids if n < own.size for form in (forms.spaced[n], forms.joined[n])}
    others = text_of(own, [number for number in ids if number not in copies], known)
    assert not any(letter.isalnum() for letter in others)  # every piece of a word can be copied


def test_unknown_form_of_a_known_word_uses_the_known_form() -> None:
    own = Tokenizer.train(SECTIONS["word"], ["the petra (anna)"])
    forms = CopyForms.of(own.all_pieces)
    known = read(own, "petra (petra", forms)
    assert known.ids == [own.encode("petra")[0], own.encode("(")[0], own.encode("petra")[0]]
    (ids,) = number_copied(own, ["(petra petra"], own.encode_many(["(petra petra"]), [known], forms)
    assert ids[1:] == [own.size + 1, own.encode("petra")[0]]


def test_copied_word_keeps_its_spaces() -> None:
    own = tokenizer()
    for text in ("Zorba sat (Quux) on the mat.", "(Zorba) sat", "the Éclair—sat"):
        known = read(own, text)
        assert UNK not in known.ids
        assert text_of(own, known.ids, known) == text


def test_a_tokenizer_that_lowers_case_copies_in_lower_case() -> None:
    own = tokenizer(lowercase=True)
    known = read(own, "The ZORBA zorba")
    assert known.ids[1] == known.ids[2] >= own.size
    assert text_of(own, known.ids, known) == "the zorba zorba"


def test_truncated_words_cannot_be_copied() -> None:
    own = tokenizer()
    text = "the Zorba Quux"
    (known,) = read_sources(own, [text], [own.encode(text)[:2]])
    assert [each.text for each in known.surfaces] == ["▁the", "▁Zorba"] and known.ids[1] == own.size + 2
    assert number_copied(own, ["Quux"], own.encode_many(["Quux"]), [known]) == [[UNK]]


def test_copied_words_in_the_vocabulary_are_source_pieces() -> None:
    own = Tokenizer.train(SECTIONS["word"], ["the petra (anna)"])
    known = read(own, "petra zorba", CopyForms.of(own.all_pieces))
    assert known.known([own.size + 1, own.size + 3, 5], own.size) == [known.ids[0], UNK, 5]
