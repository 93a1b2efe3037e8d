"""Text to ids and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.recipe.tokenizer import (
    WHOLE_WORDS,
    AnyTokenizer,
    BpeTokenizer,
    CharacterTokenizer,
    UnigramTokenizer,
    WhitespaceTokenizer,
    WordTokenizer,
)
from sightline.text.tokenizer import END, PAD, SPECIALS, START, UNK, Tokenizer, TokenizerError
from sightline.text.vocabulary import Vocabulary

LINES = [
    "The dog runs over the meadow.",
    'He said: "Don\'t (ever) do that - please!"',
    "Ein Hund läuft über die grüne Wiese, 1.234,50 € teuer.",
    "日本語のテスト と 한국어 👍🏽 naïve café",
    "the dog said please to the other dog over there",
]
SECTIONS: dict[str, AnyTokenizer] = {
    "word": WordTokenizer(size=100, min_count=1),
    "whitespace": WhitespaceTokenizer(size=100, min_count=1),
    "character": CharacterTokenizer(size=200),
    "bpe": BpeTokenizer(size=150),
    "unigram": UnigramTokenizer(size=130),
}
KINDS = list(SECTIONS)


@cache
def trained(kind: str) -> Tokenizer:
    return Tokenizer.train(SECTIONS[kind], LINES * 3)


@pytest.mark.parametrize("kind", KINDS)
def test_specials_have_the_first_ids(kind: str) -> None:
    assert trained(kind).pieces([PAD, UNK, START, END]) == list(SPECIALS)


@pytest.mark.parametrize("kind", KINDS)
def test_decode_inverts_encode_on_training_text(kind: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode_many(LINES)
    assert all(UNK not in row for row in ids)
    assert tokenizer.decode_many(ids) == LINES
    assert [tokenizer.decode(row) for row in ids] == LINES
    assert [tokenizer.encode(line) for line in LINES] == ids


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("dog the ▁<s>/.,\"'\u2028\u00a0\t👍"))


@pytest.mark.parametrize("kind", KINDS)
@given(text=ANY_TEXT)
@settings(deadline=None, max_examples=60)
def test_decode_of_encode_is_the_normalized_text(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert not {PAD, START, END} & set(ids)
    assert (UNK in ids) == bool(tokenizer.unknown(text))
    if UNK not in ids:
        assert tokenizer.decode(ids) == tokenizer.normalize(text)
    assert all(0 <= number < tokenizer.size for number in ids)


@pytest.mark.parametrize("kind", KINDS)
@given(text=ANY_TEXT)
@settings(deadline=None, max_examples=30)
def test_training_text_round_trip(kind: str, text: str) -> None:
    section = SECTIONS[kind].model_copy(update={"size": 400})
    tokenizer = Tokenizer.train(section, [text, "the dog", "the dog"])
    ids = tokenizer.encode(text)
    if kind in ("word", "character"):
        assert UNK not in ids
    if UNK not in ids:
        assert tokenizer.decode(ids) == tokenizer.normalize(text)


@pytest.mark.parametrize("kind", KINDS)
def test_special_names_in_a_text_are_text(kind: str) -> None:
    tokenizer = Tokenizer.train(SECTIONS[kind], ["a <s> b </s> <pad> <unk> ▁ c"] * 3)
    ids = tokenizer.encode("<s>a</s> <pad><unk>")
    assert not {PAD, UNK, START, END} & set(ids) or kind in WHOLE_WORDS
    assert tokenizer.decode(tokenizer.encode("a <s> b </s> <pad> <unk> c")) == "a <s> b </s> <pad> <unk> c"
    own = "▁ ▁" if kind == "whitespace" else "_ _"
    assert tokenizer.decode(tokenizer.encode("▁ ▁")) == own  # an own ▁ would come back as a space


@pytest.mark.parametrize("kind", KINDS)
def test_empty_text_has_no_ids(kind: str) -> None:
    assert trained(kind).encode_many(["", "  \t\u2003"]) == [[], []]
    assert trained(kind).decode([]) == ""
    assert trained(kind).decode([START, END, PAD, PAD]) == ""


def test_spaces_are_collapsed_and_text_is_composed_and_lowered() -> None:
    tokenizer = Tokenizer.train(CharacterTokenizer(lowercase=True, normalize="nfkc"), ["abcdefé fi"])
    assert tokenizer.decode(tokenizer.encode("  De\u0301\u2003\u2028 \ufb01 ")) == "dé fi"


def test_without_normalization_characters_stay_as_they_are() -> None:
    text = "e\u0301 ﬁ A"
    tokenizer = Tokenizer.train(BpeTokenizer(normalize="none"), [text, text])
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(deadline=None)
@given(st.sampled_from(KINDS), st.text(alphabet="the dog犬猫x(❤)'.  7e\u0301", max_size=20))
def test_the_surfaces_of_a_text_are_the_text_even_where_it_is_unknown(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    ids, surfaces = tokenizer.encode(text), tokenizer.surfaces(text)
    assert len(surfaces) == len(ids)
    assert tokenizer.decode_with(ids, surfaces) == tokenizer.normalize(text)
    assert tokenizer.decode_with([*ids, *tokenizer.encode("dog")], surfaces).startswith(tokenizer.normalize(text))


def test_an_unknown_word_keeps_its_space() -> None:
    tokenizer = trained("word")
    assert tokenizer.decode(tokenizer.encode("The zebra runs.")) == "The <unk> runs."
    assert tokenizer.unknown("The zebra, the gnu") == ["zebra", "gnu"]
    assert tokenizer.pieces(tokenizer.encode("The zebra.")) == ["▁The", "<unk>", "."]


def test_unknown_returns_substrings_of_the_text() -> None:
    assert trained("bpe").unknown("the ЖЖ dog ∑") == ["ЖЖ", "∑"]
    assert trained("character").unknown("the ЖД") == ["Ж", "Д"]
    assert trained("unigram").unknown("the dog") == []


def test_show_unknown_names_the_text() -> None:
    tokenizer = trained("word")
    pieces = [*tokenizer.pieces(tokenizer.encode("The zebra, the 犬.")), "<unk>"]
    assert tokenizer.show_unknown(pieces, "The zebra, the 犬.") == [
        "▁The",
        "<unk zebra>",
        ",",
        "▁the",
        "<unk 犬>",
        ".",
        "<unk>",
    ]


def test_pieces_show_spaces() -> None:
    assert trained("character").pieces(trained("character").encode("a d")) == ["a", "▁", "d"]
    with pytest.raises(TokenizerError, match="id 9999 is not in the vocabulary"):
        trained("character").pieces([9999])


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same_file(kind: str) -> None:
    assert Tokenizer.train(SECTIONS[kind], LINES * 3).content == trained(kind).content


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_one_that_hugging_face_loads(kind: str, tmp_path: Path) -> None:
    trained(kind).save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [theirs.encode(line).ids for line in LINES] == trained(kind).encode_many(LINES)
    assert [theirs.decode(row) for row in trained(kind).encode_many(LINES)] == LINES
    assert [token["content"] for token in json.loads(theirs.to_str())["added_tokens"]] == list(SPECIALS)
    assert Tokenizer.load(tmp_path / "tokenizer.json").content == trained(kind).content


def test_a_vocabulary_has_at_most_the_given_size() -> None:
    assert trained("word").size <= 100
    small = Tokenizer.train(BpeTokenizer(size=12), LINES)
    assert small.size == 12
    assert small.unknown(LINES[0])


def test_pieces_that_are_seen_too_seldom_are_not_learned() -> None:
    bpe = Tokenizer.train(BpeTokenizer(size=100, min_count=3), ["ab ab", "cd cd cd"])
    words = Tokenizer.train(WordTokenizer(min_count=3), ["ab ab", "cd cd cd"])
    for tokenizer in (bpe, words):
        pieces = tokenizer.pieces(range(tokenizer.size))
        assert "▁cd" in pieces and "▁ab" not in pieces


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(path)
    path.write_text(trained("bpe").content[:-100])
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer\.json"):
        Tokenizer.load(path)
    path.write_text(trained("bpe").content.replace('"<pad>"', '"[PAD]"'))
    with pytest.raises(TokenizerError, match="<pad> as id None, and it must be 0"):
        Tokenizer.load(path)


def test_no_vocabulary_can_come_from_no_text() -> None:
    with pytest.raises(TokenizerError, match=r"no word vocabulary can be learned from 2 lines.*min_count"):
        Tokenizer.train(WordTokenizer(min_count=2), ["one", "two"])
    with pytest.raises(TokenizerError, match="from 0 lines"):
        Tokenizer.train(BpeTokenizer(), [])
    with pytest.raises(TokenizerError, match="from 0 lines"):
        Tokenizer.train(UnigramTokenizer(), [])


def test_errors_of_the_lines_are_not_wrapped() -> None:
    def lines() -> Iterator[str]:
        yield "one"
        raise KeyError("line 2")

    with pytest.raises(KeyError, match="line 2"):
        Tokenizer.train(BpeTokenizer(), lines())


def test_a_size_without_room_for_the_characters_is_refused_by_name() -> None:
    match = r"no unigram vocabulary of tokenizer\.size \(8\) can be learned: .* raise tokenizer\.size, or take"
    with pytest.raises(TokenizerError, match=match):
        Tokenizer.train(UnigramTokenizer(size=8), ["the quick brown fox"] * 4)


def test_a_shared_vocabulary_is_one_file_and_separate_ones_are_two(tmp_path: Path) -> None:
    def pairs() -> Iterator[tuple[str, str]]:
        return iter([("ab ab", "cd cd"), ("ab", "cd")])

    for shared in (True, False):
        folder = tmp_path / str(shared)
        folder.mkdir()
        vocabulary = Vocabulary.train(BpeTokenizer(shared=shared, min_count=1), pairs)
        vocabulary.save(folder)
        loaded = Vocabulary.load(folder)
        assert loaded.shared == shared
        assert (loaded.source is loaded.target) == shared
        assert loaded.source.encode("ab") == vocabulary.source.encode("ab")
        assert (UNK in loaded.source.encode("cd")) == (not shared)
    assert sorted(path.name for path in tmp_path.rglob("*.json")) == [
        "tokenizer.json",
        "tokenizer.source.json",
        "tokenizer.target.json",
    ]


def test_a_folder_without_tokenizer_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        Vocabulary.load(tmp_path)


def test_written_returns_the_text_of_each_id() -> None:
    tokenizer = Tokenizer.train(WordTokenizer(min_count=1, lowercase=True), ["the old dog"])
    text = " The  OLD\u00a0Ångström, dog"
    (words,) = tokenizer.written([text])
    assert words == ["The", "OLD", "Ångström", ",", "dog"]
    assert len(words) == len(tokenizer.encode(text))


def test_decode_filled_replaces_unknown_words() -> None:
    tokenizer = Tokenizer.train(WordTokenizer(min_count=1), ["the old dog ( )"])
    ids = [START, *tokenizer.encode("Zzz the (Qqq) dog"), END, PAD]
    assert tokenizer.decode_filled(ids, {}) == tokenizer.decode(ids)
    unknown = [place for place, number in enumerate(ids) if number == UNK]
    filled = tokenizer.decode_filled(ids, dict(zip(unknown, ["Ada", "Bo", "Cy"], strict=False)))
    assert filled == tokenizer.decode(ids).replace("<unk>", "{}").format("Ada", "Bo", "Cy")
    assert filled.startswith("Ada the")


def test_bpe_is_trained_on_parts_of_very_long_words() -> None:
    """Merging is quadratic in the length of a word."""
    endless = "lowest" * 5_000
    split = " ".join(endless[start : start + 10_000] for start in range(0, len(endless), 10_000))
    tokenizer = Tokenizer.train(BpeTokenizer(size=40), ["the lowest", endless])
    assert tokenizer.content == Tokenizer.train(BpeTokenizer(size=40), ["the lowest", split]).content
    assert tokenizer.decode(tokenizer.encode(endless)) == endless


def test_whitespace_keeps_every_token_as_it_is() -> None:
    lines = ["don't  U.S.A. 1.234,50\tlow@@ er", "▁the ▁▁cat cafe\u0301"]
    tokenizer = Tokenizer.train(WhitespaceTokenizer(min_count=1), lines)
    tokens = [line.split() for line in lines]
    assert [tokenizer.pieces(tokenizer.encode(line)) for line in lines] == [
        ["▁" + each for each in row] for row in tokens
    ]
    assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == [" ".join(row) for row in tokens]
    assert [tokenizer.normalize(line) for line in lines] == [" ".join(row) for row in tokens]
    assert tokenizer.decode(tokenizer.encode("the don't")) == "<unk> don't"
    assert tokenizer.unknown("▁cat don't") == ["▁cat"]
