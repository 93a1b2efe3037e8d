"""A label for every word: no more and no fewer, whatever words are made of."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sightline.decoding.request import Request
from sightline.layers.layout import Padded
from sightline.models.build import build_model
from sightline.recipe import Recipe
from sightline.tasks.base import build_task
from sightline.text.tokenizer import PAD, UNK, TokenizerError
from sightline.text.vocabulary import Vocabulary

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
def test_every_word_gets_one_label_whatever_it_is_made_of(kind: str, sentences: list[list[str]]) -> None:
    texts = [" ".join(words) for words in sentences]
    pieces = vocabulary(kind).encode_words(texts)
    assert [len(each) for each in pieces] == [len(words) for words in sentences]
    assert all(word for each in pieces for word in each)  # a word always has a piece to put its label on
    answers = tagger(kind).predict([Request(text) for text in texts])
    known = {"DET", "NOUN", "VERB", "ADP", "PUNCT"}
    for words, (found,) in zip(sentences, answers, strict=True):
        labels = found.text.split(" ") if found.text else []
        assert len(labels) == len(found.tokens) == len(words)
        assert set(labels) <= known


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40)
@given(
    words=st.lists(WORDS, min_size=1, max_size=6),
    tags=st.lists(st.sampled_from(["DET", "NOUN", "NEW"]), min_size=6),
    dropout=st.sampled_from([0.0, 0.5]),
)
def test_labels_stand_at_the_first_pieces_of_their_words(
    kind: str, words: list[str], tags: list[str], dropout: float
) -> None:
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


def test_a_word_of_which_nothing_is_left_is_unknown() -> None:
    assert vocabulary("word").encode_words(["cat \u00a0 sat", ""])[0][1] == [UNK]
    assert vocabulary("word").encode_words([""]) == [[]]


def test_a_sentence_without_words_gets_no_label_and_too_many_spaces_make_no_words() -> None:
    empty, spaces, wide, narrow = tagger("bpe").predict(
        [Request(text) for text in ("", "   ", "  the   cat ", "the cat")]
    )
    assert [each[0].text for each in (empty, spaces)] == ["", ""]
    assert wide[0].text == narrow[0].text
    assert len(wide[0].text.split(" ")) == 2


def test_a_label_is_what_the_model_says_at_the_first_piece() -> None:
    answerer = tagger("character")
    (found,) = answerer.predict([Request("cat sat")])[0]
    ids = answerer.vocabulary.encode_words(["cat sat"])[0]
    tokens = torch.tensor([list(chain.from_iterable(ids))])
    with torch.no_grad():
        logits = answerer.model.logits(answerer.model(tokens, Padded.of([tokens.shape[1]])))[0]
    best = [int(logits[place, 4:].argmax()) + 4 for place in (0, len(ids[0]))]
    assert found.tokens == best
    assert found.text == answerer.vocabulary.target.decode(best)


@pytest.mark.parametrize(("text", "tags"), [("the cat", "DET"), ("cat", "DET NOUN"), ("", "DET"), ("the  cat", "A B")])
def test_labels_and_words_that_are_not_as_many_are_named(text: str, tags: str) -> None:
    with pytest.raises(TokenizerError, match=r"\d labels? \('.*'\) for \d words? \('.*'\); give each word one label"):
        vocabulary("word").encode_pairs(["the mat", text], ["DET NOUN", tags])
