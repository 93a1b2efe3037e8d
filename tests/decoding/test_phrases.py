"""Phrases of text: how tokenizers write them, and that outputs keep to them as texts."""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Any

import pytest

from sightline.decoding.engine import decode
from sightline.decoding.phrases import PhraseCutter, PhraseWarning, _changed, decode_with_phrases, occurrences
from sightline.decoding.request import Hypothesis, Phrases, Request, make_requests
from sightline.recipe import Decoding
from sightline.recipe.tokenizer import BpeTokenizer, CharacterTokenizer, UnigramTokenizer, WordTokenizer
from sightline.text.tokenizer import END, START, Tokenizer

LINES = [
    "the cat sat on the mat.",
    "the cats and the concat (cat) said: a cat, the dog!",
    "dogs in the education of cats",
    "a new york cat in new york city",
] * 8
SECTIONS = {
    "bpe": BpeTokenizer(size=120),
    "unigram": UnigramTokenizer(size=60),
    "word": WordTokenizer(size=60, min_count=1),
    "character": CharacterTokenizer(size=60),
}


@cache
def cutter(kind: str) -> PhraseCutter:
    return PhraseCutter(Tokenizer.train(SECTIONS[kind], LINES))  # type: ignore[arg-type]


def parrot(script: type[Any], kind: str, text: str) -> Any:
    """A model that wants to say a text piece by piece, but would say any other piece too."""
    size = cutter(kind).tokenizer.size
    wish = [*cutter(kind).tokenizer.encode(text), END]

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        shares = dict.fromkeys(range(4, size), 0.1 / size)
        return {**shares, wish[min(len(prefix), len(wish) - 1)]: 0.9}

    return script(rule, size)


def written(
    model: Any, kind: str, phrases: Phrases, *, prefix: list[int] | None = None, **options: Any
) -> tuple[str, list[str]]:
    """The best output for one source and the warnings that came with it."""
    shape = {"beam": 6, "max_length": 60, "max_ratio": 60.0, "length_penalty": 1.0, **options}
    chosen = Decoding.model_validate(shape)
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        prefixes = None if prefix is None else [prefix]
        requests = make_requests([[5]], prefixes, first=6, options=chosen, phrases=phrases)
        result = decode_with_phrases(model, requests, cutter(kind))
    return cutter(kind).tokenizer.decode(result[0][0].tokens), [str(each.message) for each in messages]


@pytest.mark.parametrize(
    ("phrase", "text", "count"),
    [
        ("cat", "the cat sat", 1),
        ("cat", "cats concat cat_ cat2", 0),
        ("cat", "(cat), cat! cat", 3),
        ("new york", "new york, new yorker", 1),
        (".", "a. b.", 2),
        (".", "a.b", 1),
        ("cat", "猫cat猫", 1),
        ("(a", "x(a y", 1),
        ("猫", "小猫在", 1),
        ("Cat", "cat", 0),
    ],
)
def test_phrases_match_whole_words(phrase: str, text: str, count: int) -> None:
    assert len(occurrences(phrase, text)) == count


@pytest.mark.parametrize("kind", list(SECTIONS))
@pytest.mark.parametrize("beam", [1, 6])
def test_outputs_do_not_contain_forbidden_phrases(script: type[Any], kind: str, beam: int) -> None:
    text = "the cat and the dog (cat)"
    model = parrot(script, kind, text)
    plain = decode(model, make_requests([[5]]), Decoding(beam=beam, max_length=60, max_ratio=60.0))[0][0].tokens
    assert occurrences("cat", cutter(kind).tokenizer.decode(plain))
    result, messages = written(model, kind, Phrases(forbidden=("cat",)), beam=beam)
    assert not occurrences("cat", result) and "the dog" in result and not messages


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_words_that_hold_a_forbidden_one_inside_are_allowed(script: type[Any], kind: str) -> None:
    result, messages = written(parrot(script, kind, "the education"), kind, Phrases(forbidden=("cat",)))
    assert result == "the education" and not messages


def speller(script: type[Any]) -> Any:
    """A model that likes the letters of "cat", which its tokenizer would never cut so."""
    tokenizer = cutter("bpe").tokenizer
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces(range(tokenizer.size)))}
    letters = [ids["▁"] if "▁" in ids else ids["▁c"], ids["c"], ids["a"], ids["t"]]
    letters = letters if "▁" in ids else [ids["▁c"], *letters[2:]]
    assert tokenizer.decode(letters) == "cat" and letters != tokenizer.encode("cat")

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        shares = dict.fromkeys(range(3, tokenizer.size), 0.1 / tokenizer.size)
        return {**shares, [*letters, END][min(len(prefix), len(letters))]: 0.9}

    return script(rule, tokenizer.size)


def test_a_forbidden_word_put_together_from_other_pieces_is_searched_for_again(script: type[Any]) -> None:
    result, messages = written(speller(script), "bpe", Phrases(forbidden=("cat",)))
    assert not occurrences("cat", result) and not messages


def test_every_way_to_write_a_forbidden_word_is_forbidden_in_its_turn(script: type[Any]) -> None:
    """Three that the tokenizer would not take, and its own; then there is a dog."""
    tokenizer = cutter("bpe").tokenizer
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces(range(tokenizer.size)))}
    cuts = [
        ("▁c", "a", "t"),
        ("▁c", "at"),
        ("▁", "c", "a", "t"),
        ("▁", "c", "at"),
        ("▁ca", "t"),
        ("▁", "cat"),
        ("▁cat",),
    ]
    ways = [[ids[piece] for piece in cut] for cut in cuts if set(cut) <= set(ids)]
    assert len(ways) >= 3 and ways[-1] == tokenizer.encode("cat")
    ways.append(tokenizer.encode("dog"))

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        shares = {4: 1e-12, END: 1e-12}
        for place, way in enumerate(ways):
            if way[: len(prefix)] == prefix:
                word = [*way, END][len(prefix)]
                shares[word] = shares.get(word, 0.0) + 0.1**place
        return shares

    result, messages = written(script(rule, tokenizer.size), "bpe", Phrases(forbidden=("cat",)))
    assert result == "dog" and not messages


def test_phrases_are_taken_as_the_tokenizer_sees_text(script: type[Any]) -> None:
    own = PhraseCutter(Tokenizer.train(WordTokenizer(min_count=1, lowercase=True), LINES))
    wish = [*own.tokenizer.encode("the cat sat"), END]

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        return {**dict.fromkeys(range(4, own.tokenizer.size), 0.01), wish[min(len(prefix), 3)]: 0.5}

    options = Decoding(beam=4, forbid=("SAT",), max_length=9, length_penalty=1.0)
    phrases = Phrases(required=("  DOG ", " "), forbidden=("Cat", " "))
    model = script(rule, own.tokenizer.size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = decode_with_phrases(model, make_requests([[5]], options=options, phrases=phrases), own)
    words = own.tokenizer.decode(result[0][0].tokens).split()
    assert "dog" in words and not {"cat", "sat"} & set(words)
    requests = make_requests([[5]], options=options, phrases=Phrases(required=("Sat",)))
    with pytest.raises(ValueError, match="'sat' is both required and forbidden"):
        decode_with_phrases(model, requests, own)


def test_every_hypothesis_is_checked_for_required_phrases() -> None:
    encode = cutter("character").tokenizer.encode
    guesses = [Hypothesis(encode(text), 0.0, 0.0) for text in ("the cat", "the cats")]
    phrases = Phrases(required=("cat",))
    request = Request(number=6, phrases=phrases, demands=cutter("character").demands(phrases)[0])
    with pytest.warns(PhraseWarning, match="line 7: the output does not contain 'cat' as whole words"):
        assert _changed(cutter("character"), request, guesses, last=False) is None


def test_forbidden_phrases_left_after_the_last_round_give_a_warning(
    script: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.decoding.phrases.ROUNDS", 0)
    result, messages = written(speller(script), "bpe", Phrases(forbidden=("cat",)))
    assert result == "cat"
    assert messages == ["line 7: the output contains 'cat' all the same; no other was found"]


def test_a_sentence_that_is_decoded_again_is_reported_once(script: type[Any]) -> None:
    messages, options = list[int](), Decoding(beam=6, forbid=("cat",), max_length=60, max_ratio=60.0)
    decode_with_phrases(speller(script), make_requests([[5]], options=options), cutter("bpe"), on_done=messages.append)
    assert messages == [1]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_a_word_is_forbidden_after_a_space_and_after_punctuation(kind: str) -> None:
    encode = cutter(kind).tokenizer.encode
    spaced, bare = tuple(encode("a cat")[len(encode("a")) :]), tuple(encode("(cat")[len(encode("(")) :])
    assert spaced != bare
    demands, unknown = cutter(kind).demands(Phrases(forbidden=("cat", "cat")))
    assert (demands.required, demands.forbidden, demands.apart, unknown) == ((), (spaced,), (bare,), [])


def test_a_phrase_is_written_behind_a_space_unless_one_writes_it_without() -> None:
    own = PhraseCutter(Tokenizer.train(WordTokenizer(min_count=1), ["a cat . ) »", "a. a) a» (cat (dog", "a ;"]))
    ids = {piece: number for number, piece in enumerate(own.tokenizer.pieces(range(own.tokenizer.size)))}
    assert {"▁cat", "cat", "▁.", ".", "▁)", ")", "▁»", "»"} <= set(ids)
    assert own.required("cat") == (ids["▁cat"],)
    assert [own.required(mark) for mark in ".)»"] == [(ids[mark],) for mark in ".)»"]
    assert own.required("dog") == (ids["dog"],)  # it is known so alone
    assert own.required(";") == (ids["▁;"],)
    assert own.required("zebra") is None


def test_a_script_without_spaces_is_written_without() -> None:
    own = PhraseCutter(Tokenizer.train(CharacterTokenizer(), ["a 猫 (cat"]))
    assert own.required("猫") == tuple(own.tokenizer.encode("猫"))
    assert own.required("cat") == tuple(own.tokenizer.encode("a cat")[1:])


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_token_spans_of_a_phrase_start_after_the_prefix(kind: str) -> None:
    own, encode = cutter(kind), cutter(kind).tokenizer.encode
    tokens, head = encode("a new york cat"), len(encode("a"))
    phrase = tuple(tokens[head : len(encode("a new york"))])
    assert own.token_spans("new york", tokens, 0) == [phrase]
    assert own.token_spans("new york", tokens, head + len(phrase) - 1) == [phrase]  # only its end is the model's own
    assert own.token_spans("new york", tokens, head + len(phrase)) == []


def test_pieces_meet_where_letters_do() -> None:
    edges, tokenizer = cutter("bpe").edges, cutter("bpe").tokenizer
    pieces = dict(zip(tokenizer.pieces(range(tokenizer.size)), range(tokenizer.size), strict=True))
    names = ("▁cat", "s", ".", "<s>")
    assert [bool(edges.within[pieces[name]]) for name in names] == [True, True, False, False]
    assert [bool(edges.continues_word[pieces[name]]) for name in names] == [False, True, False, False]
    characters = cutter("character")
    assert characters.edges.space == characters.tokenizer.encode("a a")[1]
    assert cutter("word").edges.space == START


@pytest.mark.parametrize("kind", list(SECTIONS))
@pytest.mark.parametrize("beam", [1, 2, 6])
def test_required_phrases_are_whole_words(script: type[Any], kind: str, beam: int) -> None:
    phrases = Phrases(required=("new york", "dog", "cat"))
    result, messages = written(parrot(script, kind, "the cats sat"), kind, phrases, beam=beam)
    assert all(occurrences(phrase, result) for phrase in phrases.required), result
    assert not messages


def test_impossible_phrases_give_a_warning_with_the_line(script: type[Any]) -> None:
    model = parrot(script, "word", "the cat")
    result, messages = written(model, "word", Phrases(required=("zebra", "dog")))
    assert occurrences("dog", result)
    assert messages == ["line 7: the vocabulary cannot write 'zebra', so the output need not contain it"]
    result, messages = written(model, "word", Phrases(required=("the dog said a cat",)), max_length=4)
    assert result == "the cat"
    assert len(messages) == 1 and messages[0].startswith(
        "line 7: no output can contain 'the dog said a cat' (max_length"
    )


def test_forbidden_phrases_may_be_in_a_forced_prefix(script: type[Any]) -> None:
    prefix = cutter("bpe").tokenizer.encode("a cat")
    result, messages = written(
        parrot(script, "bpe", "a cat and a cat"), "bpe", Phrases(forbidden=("cat",)), prefix=prefix
    )
    assert result.startswith("a cat") and len(occurrences("cat", result)) == 1 and not messages


@pytest.mark.parametrize("beam", [1, 2, 6])
def test_a_prefix_that_continues_a_phrase_into_a_longer_word_does_not_satisfy_it(script: type[Any], beam: int) -> None:
    """By characters, "cats" begins as "cat" does."""
    prefix = cutter("character").tokenizer.encode("the cats")
    model = parrot(script, "character", "the cats sat")
    result, messages = written(model, "character", Phrases(required=("cat",)), prefix=prefix, beam=beam)
    assert result.startswith("the cats") and occurrences("cat", result) and not messages


@pytest.mark.parametrize("rounds", [0, 1])
def test_impossible_phrases_are_dropped_in_the_last_round(
    script: type[Any], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.decoding.phrases.ROUNDS", rounds)
    result, messages = written(
        parrot(script, "word", "the cat"), "word", Phrases(required=("a dog said",)), max_length=3
    )
    assert result == "the cat"
    assert len(messages) == 1 and "no output can contain 'a dog said'" in messages[0]


def test_decoding_forbid_applies_to_every_sentence(script: type[Any]) -> None:
    model, options = parrot(script, "word", "the cat"), Decoding(beam=3, forbid=("cat",))
    result = decode_with_phrases(model, make_requests([[5], [6], []], options=options), cutter("word"))
    texts = cutter("word").tokenizer.decode_many([guesses[0].tokens for guesses in result])
    assert texts[0] == texts[1] and "the" in texts[0] and not occurrences("cat", texts[0])
    assert texts[2] == ""


def test_samples_with_phrases_do_not_depend_on_the_batches(script: type[Any]) -> None:
    model = parrot(script, "bpe", "the cat sat")
    options = Decoding.model_validate({"forbid": ["cat"], "sample": {"seed": 4}, "max_length": 9})
    sources = [[5], [6], [7], [8]]
    whole = decode_with_phrases(model, make_requests(sources, options=options), cutter("bpe"))
    parts = [
        decode_with_phrases(model, make_requests([each], first=n, options=options), cutter("bpe"))
        for n, each in enumerate(sources)
    ]
    assert whole == [guesses for part in parts for guesses in part]


def test_greedy_search_keeps_to_phrases_without_scores_too(script: type[Any]) -> None:
    model, options = parrot(script, "word", "the cat sat"), Decoding(beam=1, forbid=("cat",), max_length=9)
    plain, quick = (
        decode_with_phrases(model, make_requests([[5], [6]], scored=scored, options=options), cutter("word"))
        for scored in (True, False)
    )
    assert [result.tokens for (result,) in quick] == [result.tokens for (result,) in plain]
    assert all(math.isnan(result.score) for (result,) in quick)


def test_contradictions_are_refused(script: type[Any]) -> None:
    model = parrot(script, "word", "the cat")

    def ask(phrases: Phrases, **options: Any) -> None:
        requests = make_requests([[5]], options=Decoding.model_validate(options), phrases=phrases)
        decode_with_phrases(model, requests, cutter("word"))

    with pytest.raises(ValueError, match="line 1: 'cat' is both required and forbidden"):
        ask(Phrases(required=("cat",)), forbid=("cat",))
    with pytest.raises(ValueError, match="required phrases need beam search"):
        ask(Phrases(required=("cat",)), sample={})
    with pytest.raises(ValueError, match=r"groups \(2\) both divide the beam"):
        ask(Phrases(required=("cat",)), beam=4, groups=2)


def test_phrase_warnings_have_their_own_class() -> None:
    assert issubclass(PhraseWarning, UserWarning)
