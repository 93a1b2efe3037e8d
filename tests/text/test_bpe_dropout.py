"""BPE-dropout."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.recipe.tokenizer import BpeTokenizer, WordTokenizer
from sightline.text.bpe_dropout import BpeDropoutEncoder
from sightline.text.tokenizer import Tokenizer, TokenizerError
from sightline.text.vocabulary import Vocabulary

LINES = ["low lower lowest", "new newer newest wide wider widest", "the lowest newest widest!"] * 3
TOKENIZER = Tokenizer.train(BpeTokenizer(size=60), LINES)
WORDS = st.lists(st.text("lowernsthid! Ж", max_size=12), max_size=5)


@given(texts=WORDS)
@settings(deadline=None)
def test_tiny_dropout_equals_plain_bpe(texts: list[str]) -> None:
    assert TOKENIZER.encode_dropout(texts, dropout=1e-15, seed=0) == TOKENIZER.encode_many(texts)
    assert TOKENIZER.encode_dropout(texts, dropout=0.0, seed=0) == TOKENIZER.encode_many(texts)


@given(texts=WORDS, dropout=st.floats(0.01, 0.99), seed=st.integers(0, 2**64))
@settings(deadline=None)
def test_dropout_is_deterministic_and_lossless(texts: list[str], dropout: float, seed: int) -> None:
    cut = TOKENIZER.encode_dropout(texts, dropout=dropout, seed=seed)
    fresh = Tokenizer.parse(TOKENIZER.content)
    assert fresh.encode_dropout(texts, dropout=dropout, seed=seed) == cut
    plain = TOKENIZER.encode_many(texts)
    assert TOKENIZER.decode_many(cut) == TOKENIZER.decode_many(plain)
    assert all(len(row) >= len(usual) for row, usual in zip(cut, plain, strict=True))


def test_each_occurrence_is_segmented_independently() -> None:
    cuts = TOKENIZER.encode_dropout(["lowest"] * 200, dropout=0.3, seed=1)
    assert len({tuple(cut) for cut in cuts}) > 5
    assert cuts != TOKENIZER.encode_dropout(["lowest"] * 200, dropout=0.3, seed=2)


def test_segmentation_frequencies_match_the_paper() -> None:
    """a b c with merges ab, then (ab)c and bc: worked out by hand for one step at a time."""
    vocabulary = {"?": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "bc": 5, "abc": 6}
    merges = BpeDropoutEncoder(vocabulary=vocabulary, merges=[("a", "b"), ("b", "c"), ("ab", "c")], unknown=0)
    p, total = 0.3, 20_000
    counts = Counter(tuple(cut) for cut in merges.encode([["abc"]] * total, dropout=p, seed=5))
    expected = {
        (6,): (1 - p) ** 2,  # ab kept, then abc kept
        (4, 3): (1 - p) * p,  # ab kept, abc left out
        (1, 5): p * (1 - p),  # ab left out, bc kept; nothing joins a and bc
        (1, 2, 3): p * p,
    }
    assert set(counts) == set(expected)
    for cut, probability in expected.items():
        assert counts[cut] / total == pytest.approx(probability, abs=0.015)


def test_source_and_target_have_separate_seeds() -> None:
    texts, both = ["lowest newest"] * 20, Vocabulary(TOKENIZER, TOKENIZER)
    result = both.encode_pairs(texts, texts, dropout=0.5, seeds=(1, 2))
    assert result == tuple(TOKENIZER.encode_dropout(texts, dropout=0.5, seed=seed) for seed in (1, 2))
    assert result[0] != result[1]


def merging(*pairs: tuple[str, str]) -> tuple[BpeDropoutEncoder, list[str]]:
    """These merges in their order, and the pieces by their ids."""
    pieces = ["?", *"abcd", *(left + right for left, right in pairs)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return BpeDropoutEncoder(vocabulary=vocabulary, merges=pairs, unknown=0), pieces


def test_merges_of_merged_pieces_apply() -> None:
    merges, pieces = merging(("a", "b"), ("c", "d"), ("ab", "cd"))
    ids, keep = merges._merged("abcd", 9, iter(()))
    assert ([pieces[number] for number in ids], keep) == (["abcd"], 9 - 3)


def test_skipped_merge_returns_while_its_pieces_exist() -> None:
    """ab is left out, then bc is merged: a bc is no better than it was, and bc d comes before it."""
    merges, pieces = merging(("a", "b"), ("b", "c"), ("bc", "d"), ("a", "bc"))
    ids, keep = merges._merged("abcd", 0, iter([9]))
    assert ([pieces[number] for number in ids], keep) == (["a", "bcd"], 9 - 2)


def test_skipped_merge_is_retried_after_the_next_merge() -> None:
    merges, pieces = merging(("a", "b"), ("c", "d"))
    ids, keep = merges._merged("abcd", 0, iter([9]))
    assert ([pieces[number] for number in ids], keep) == (["ab", "cd"], 9 - 2)


def test_segmentation_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    merges, _ = merging(("a", "b"))
    monkeypatch.setattr("sightline.text.bpe_dropout._TABLE", 3)
    for words in (["ab", "ba", "aab"], ["abb", "bab", "aa", "bb"]):
        list(merges.encode([words], dropout=0.5, seed=1))
        assert len(merges._table) <= 3


@given(texts=st.lists(st.lists(st.text("lowest!Ж", max_size=60), max_size=4), max_size=4), seed=st.integers(0, 2**64))
@settings(deadline=None)
def test_long_words_are_segmented_like_cached_words(texts: list[list[str]], seed: int) -> None:
    cuts = []
    for long in (0, 10, 1_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sightline.text.bpe_dropout._LONG", long)
            merges = Tokenizer.parse(TOKENIZER.content)._merges
            cuts.append(list(merges.encode(texts, dropout=0.3, seed=seed)))
    assert cuts[0] == cuts[1] == cuts[2]


def test_very_long_word_is_fast() -> None:
    """As in a script without spaces, or in what is no language: ten seconds for 1,000 characters would be days."""
    endless = "lowestnewestwidest" * 2_000
    (cut,) = TOKENIZER.encode_dropout([endless], dropout=0.1, seed=1)
    assert TOKENIZER.decode(cut) == endless
    assert len(TOKENIZER.encode(endless)) <= len(cut) < len(endless)


def test_dropout_requires_bpe() -> None:
    words = Tokenizer.train(WordTokenizer(min_count=1), LINES)
    with pytest.raises(TokenizerError, match="BPE-dropout needs a BPE tokenizer, not WordLevel"):
        words.encode_dropout(["low"], dropout=0.1, seed=1)
