"""Long texts are encoded in parts, with the same ids."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from sightline.recipe.tokenizer import AnyTokenizer, BpeTokenizer, CharacterTokenizer, UnigramTokenizer, WordTokenizer
from sightline.text import tokenizer
from sightline.text.tokenizer import Tokenizer, encode_texts, parts

LINES = [
    "The dog runs over the meadow, 1.5 km away.",
    "Ein Hund läuft\nüber die Wiese.",
    "café ´x ½ 日本語 の",
    "a _ a",
]
SECTIONS: dict[str, AnyTokenizer] = {
    "word": WordTokenizer(size=100, min_count=1),
    "character": CharacterTokenizer(size=100),
    "kept-spaces": CharacterTokenizer(size=100, spaces="keep"),
    "bpe": BpeTokenizer(size=80, min_count=1),
    "bpe-nfkc": BpeTokenizer(size=80, min_count=1, normalize="nfkc", lowercase=True),
    "unigram": UnigramTokenizer(size=90),
}
TEXTS = st.text(st.sampled_from("aeé´½ᾳΣ\u0301\u00a0\u2003▁_.,日 Thdog \n\r\t "), max_size=40) | st.text(max_size=20)


@cache
def inner(name: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(Tokenizer.train(SECTIONS[name], LINES * 3).content)


@pytest.mark.parametrize("name", SECTIONS)
@given(texts=st.lists(TEXTS, max_size=4), longest=st.integers(1, 12), together=st.integers(1, 30))
def test_parts_have_the_ids_of_the_whole(name: str, texts: list[str], longest: int, together: int) -> None:
    whole = [inner(name).encode(text, add_special_tokens=False).ids for text in texts]
    assert encode_texts(inner(name), texts, longest=longest, together=together) == whole


@given(text=TEXTS, longest=st.integers(1, 12))
def test_parts_are_the_text_and_cut_no_word(text: str, longest: int) -> None:
    result = list(parts(text, longest))
    assert "".join(result) == text
    assert all(len(part) >= longest for part in result[:-1])
    assert all(part[0] in " \r\n" for part in result[1:])


def test_long_texts_are_encoded_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[int] = []
    encode = tokenizer._encode

    def watched(inner: tokenizers.Tokenizer, texts: Any) -> list[list[int]]:
        handed.append(sum(map(len, texts)))
        return encode(inner, texts)

    monkeypatch.setattr(tokenizer, "_encode", watched)
    text = "The dog runs. " * 800_000  # 11 million characters
    trained = Tokenizer.train(SECTIONS["bpe"], LINES)
    (result,) = trained.encode_many([text])
    assert len(result) == 800_000 * len(trained.encode("The dog runs."))
    assert max(handed) < 5_000_000


def test_a_vocabulary_is_the_same_from_one_long_line_as_from_many(monkeypatch: pytest.MonkeyPatch) -> None:
    long = " ".join(LINES * 40)
    whole = Tokenizer.train(SECTIONS["bpe"], [long]).content
    monkeypatch.setattr(parts, "__defaults__", (100,))
    assert Tokenizer.train(SECTIONS["bpe"], [long]).content == whole
