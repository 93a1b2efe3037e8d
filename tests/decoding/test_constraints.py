"""Rules of outputs in token ids, against exhaustive search over a tiny vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch

from sightline.decoding import constrained_beam
from sightline.decoding.engine import decode
from sightline.decoding.processors import ForbiddenPhrases, MinLength, RequiredPhrases
from sightline.decoding.request import Demands, Edges, make_requests
from sightline.decoding.scoring import log_probabilities
from sightline.models.seq2seq import CopyingSeq2Seq, Seq2Seq
from sightline.recipe import Decoding
from sightline.recipe.model import ModelConfig

UNK, START, END = 1, 2, 3
WORDS = [UNK, *range(4, 13)]
SOURCES = [[5, 9, 4], [6], [12, 8, 5, 7, 10]]
NOTHING = Edges.none(13)
BODIES = {
    "transformer": ({"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0},) * 2,
    "lstm": (
        {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.0},
        {"kind": "recurrent", "cell": "lstm", "layers": 1, "attention": {"kind": "additive"}, "dropout": 0.0},
    ),
}
DEMANDS = [
    Demands(required=((7,),)),
    Demands(required=((5, 9),)),
    Demands(required=((4,), (8,))),
    Demands(required=((6, 6), (6,))),
    Demands(required=((4, 5), (5, 6))),  # one after the other, or one in the other
    Demands(forbidden=((9,), (10, 4))),
    Demands(required=((9,),), forbidden=((9, 9), (4, 9), (5,))),
    Demands(),
]


@pytest.fixture(params=list(BODIES))
def tiny(request: pytest.FixtureRequest, build_model: Callable[..., Seq2Seq]) -> Seq2Seq:
    return build_model(*BODIES[request.param], seed=3)


def contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(tuple(tokens[at : at + len(phrase)]) == tuple(phrase) for at in range(len(tokens)))


def keeps(tokens: Sequence[int], demands: Demands) -> bool:
    prefix = all(contains(tokens, phrase) for phrase in demands.required)
    return prefix and not any(contains(tokens, phrase) for phrase in demands.forbidden)


def repeats(tokens: Sequence[int], count: int) -> bool:
    grams = [tuple(tokens[at : at + count]) for at in range(len(tokens) - count + 1)]
    return len(set(grams)) < len(grams)


def best(model: Seq2Seq, source: list[int], expected: Callable[[list[int]], bool], limit: int) -> list[list[int]]:
    """Every output of less than `limit` words that is as wanted, best first."""
    every = [list(words) for length in range(limit) for words in product(WORDS, repeat=length)]
    every = [words for words in every if expected(words)]
    logs = log_probabilities(model, [source] * len(every), every).tolist()
    scored = sorted(zip(every, logs, strict=True), key=lambda each: -each[1] / ((5 + len(each[0]) + 1) / 6))
    return [words for words, _ in scored]


def constrained(model: Any, sources: list[list[int]], demands: Sequence[Demands], options: Decoding) -> list[Any]:
    result = decode(model, make_requests(sources, demands=demands, edges=NOTHING), options)
    return [[h.tokens for h in beams] for beams in result]


@pytest.mark.parametrize("demands", DEMANDS)
def test_a_wide_beam_finds_the_best_outputs_that_keep_to_the_rules(tiny: Seq2Seq, demands: Demands) -> None:
    options = Decoding(beam=1111, nbest=8, max_length=4, length_penalty=1.0, stopping="bound")
    for source in SOURCES[:2]:
        (result,) = constrained(tiny, [source], [demands], options)
        assert result == best(tiny, source, lambda words: keeps(words, demands), 4)[:8]


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_a_narrow_beam_contains_all_required_phrases(tiny: Seq2Seq, beam: int) -> None:
    long = Demands(required=((4, 4, 4), (5, 6, 7), (8,), (4, 5), (5, 8, 9), (4, 9)))
    demands = [each for each in [*DEMANDS, long] if not each.forbidden]
    sources = [SOURCES[n % 3] for n in range(len(demands))]
    for result, each in zip(
        constrained(tiny, sources, demands, Decoding(beam=beam, max_length=16)), demands, strict=True
    ):
        assert result and all(keeps(tokens, each) for tokens in result)


def test_sentences_without_demands_are_searched_as_ever_among_others_with_some(tiny: Seq2Seq) -> None:
    options = Decoding(beam=4, nbest=4, max_length=9)
    plain = [[h.tokens for h in beams] for beams in decode(tiny, make_requests(SOURCES), options)]
    free = Demands()
    assert constrained(tiny, SOURCES, [free, DEMANDS[1], free], options)[::2] == plain[::2]
    assert constrained(tiny, SOURCES, [free, DEMANDS[5], free], options)[::2] == plain[::2]


@pytest.mark.parametrize("kind", ["required", "forbidden"])
def test_rules_do_not_depend_on_the_batch(tiny: Seq2Seq, kind: str) -> None:
    chosen = [each for each in DEMANDS if getattr(each, kind)] * 4
    sources = [[4 + (3 * n + k) % 9 for k in range(1 + n % 6)] for n in range(len(chosen))]
    one, all_ = (
        constrained(tiny, sources, chosen, Decoding(beam=4, nbest=2, max_length=10, no_repeat=2, batch_tokens=size))
        for size in (1, 9999)
    )
    assert one == all_


def test_a_phrase_that_has_no_room_leaves_no_output(tiny: Seq2Seq) -> None:
    options = Decoding(beam=3, max_length=4)
    assert constrained(tiny, SOURCES[:1], [Demands(required=((4, 5, 6, 7),))], options) == [[]]
    assert constrained(tiny, SOURCES[:1], [Demands(required=((4, 5, 6),))], options) == [[[4, 5, 6]]]
    conflict = Demands(required=((4, 5),), forbidden=((5,),))
    assert constrained(tiny, SOURCES[:2], [conflict, Demands()], options)[0] == []


def test_required_phrases_lift_the_ratio_to_the_source(tiny: Seq2Seq) -> None:
    long = Demands(required=(tuple(range(4, 13)) * 2,))
    (result,) = constrained(tiny, [[6]], [long], Decoding(beam=3, max_ratio=0.1, max_length=40))  # 10 words otherwise
    assert contains(result[0], long.required[0])


def test_a_word_does_not_continue_after_a_completed_phrase(script: type[Any]) -> None:
    """Piece 6 begins a word, 7 goes on with it: 6 alone must be said, and 6 7 is another word."""

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        if prefix[-1:] == [6]:
            return {7: 0.95, 8: 0.04, END: 0.01}
        return {8: 0.5, 6: 0.2, END: 0.3}

    within, continues_word = (torch.zeros(12, dtype=torch.bool) for _ in range(2))
    within[[6, 7, 8]] = continues_word[7] = True
    demands = [Demands(required=((6,),))]
    for edges, expected in ((NOTHING, True), (Edges(within, continues_word), False)):
        edges = Edges(edges.within[:12], edges.continues_word[:12])
        options = Decoding(beam=4, max_length=6)
        result = decode(script(rule), make_requests([[5]], demands=demands, edges=edges), options)
        assert contains(result[0][0].tokens, [6, 7]) is expected
        assert 6 in result[0][0].tokens


def edges_of(within: Sequence[int], continues_word: Sequence[int]) -> Edges:
    """Of a script's pieces: those after which a word can go on, and those that go on with one."""
    return Edges(*(torch.tensor([piece in some for piece in range(12)]) for some in (within, continues_word)))


def said_with(model: Any, sources: list[list[int]], demands: list[Demands], edges: Edges, **options: Any) -> list[Any]:
    request = make_requests(sources, demands=demands, edges=edges)
    result = decode(model, request, Decoding.model_validate({"beam": 4, "max_length": 8, **options}))
    return [[h.tokens for h in beams] for beams in result]


def test_behind_a_phrase_that_ends_with_a_mark_a_word_may_come_at_once(script: type[Any]) -> None:
    """Piece 6 is a mark, and 7 the letters behind it: no word goes on there."""
    model = script(lambda first, prefix: {7: 0.95, END: 0.05} if prefix == [6] else {END: 1.0} if prefix else {6: 1.0})
    assert said_with(model, [[5]], [Demands(required=((6,),))], edges_of([7], [7])) == [[[6, 7]]]


def test_a_completed_phrase_may_begin_a_longer_word_later(script: type[Any]) -> None:
    wish = [6, 8, 6, 7, END]
    model = script(lambda first, prefix: {wish[min(len(prefix), 4)]: 0.9, 9: 0.06, END: 0.04})
    ((best_, *_),) = said_with(model, [[5]], [Demands(required=((6,),))], edges_of([6, 7, 8, 9], [7]))
    assert best_ == wish[:-1]


def test_completed_phrases_are_kept_when_rows_leave_the_batch(script: type[Any]) -> None:
    """The first is done when the second has said 6, which 7 would make another word."""

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        if first == 4 or len(prefix) == 3:
            return {END: 1.0}
        return {7: 0.9, 8: 0.1} if prefix[-1:] == [6] else {6: 0.9, 8: 0.1}

    demands, edges = [Demands(), Demands(required=((6,),))], edges_of([6, 7, 8], [7])
    together = said_with(script(rule), [[4], [5]], demands, edges)
    assert together[1] == said_with(script(rule), [[5]], demands[1:], edges)[0]
    assert together[1][0][:2] == [6, 8]


def test_a_word_that_begins_two_phrases_is_offered_once_and_counts_once(
    script: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[list[int]] = []
    in_turn = constrained_beam.in_turn

    def watched(totals: torch.Tensor, banks: torch.Tensor, count: int, most: int) -> torch.Tensor:
        alive = totals > float("-inf")
        counted.append(sorted(banks[alive].tolist(), reverse=True))
        return in_turn(totals, banks, count, most)

    monkeypatch.setattr(constrained_beam, "in_turn", watched)
    shares = {**dict.fromkeys(range(5, 12), 0.13), 4: 0.01, END: 0.08}
    demands = [Demands(required=((4, 5), (4, 6)))]
    said_with(script(lambda first, prefix: shares), [[5]], demands, edges_of([], []), beam=2)
    assert counted[0] == [1, 0, 0, 0, 0]  # the four best words, and 4


def test_banks_take_turns_and_missing_candidates_are_skipped() -> None:
    never = float("-inf")
    totals = torch.tensor([[-1.0, -2.0, never, -3.0, -4.0], [-5.0, -1.0, -2.0, -3.0, -4.0]])
    result = constrained_beam.in_turn(totals, torch.tensor([[0, 0, 1, 0, 0], [1, 0, 0, 2, 1]]), 4, 2)
    assert result.tolist() == [[0, 1, 3, 4], [3, 4, 1, 0]]


def test_an_output_begins_as_if_a_space_stood_before_it() -> None:
    edges = Edges(*(torch.zeros(12, dtype=torch.bool) for _ in range(2)), space=5)
    required = RequiredPhrases.of([Demands(required=((5, 6),))], edges, "cpu")
    prefix = torch.tensor([[[START], [5], [6]]])
    assert required.prefix_matches(prefix)[0, :, 0].tolist() == [[True, True], [True, True], [True, False]]


def test_a_phrase_required_twice_counts_once() -> None:
    required = RequiredPhrases.of([Demands(required=((4, 5), (6,), (4, 5)))], NOTHING, "cpu")
    assert required.lengths.tolist() == [[2, 1]]


def test_those_who_stay_in_a_batch_keep_their_own_rules() -> None:
    demands = [Demands(forbidden=((4, 5),)), Demands(apart=((6,),))]
    least = MinLength(torch.tensor([7, 9])).keep(torch.tensor([1]))
    kept = ForbiddenPhrases.of(demands, NOTHING, "cpu").keep(torch.tensor([1]))
    alone = ForbiddenPhrases.of(demands[1:], NOTHING, "cpu")
    assert least.least.tolist() == [9]
    for ours, theirs in ((kept.lasts, alone.lasts), (kept.apart, alone.apart)):
        assert ours.tolist() == theirs.tolist()


def test_phrases_forbidden_at_word_starts_depend_on_the_token_before_them(script: type[Any]) -> None:
    model = script(
        lambda first, prefix: [{7: 0.9, 6: 0.1}, {7: 0.4, 8: 0.6}, {8: 1.0}, {END: 1.0}][min(len(prefix), 3)]
    )
    demands, edges = [Demands(apart=((7, 8),))], edges_of([6, 7], [])
    assert said_with(model, [[5]], demands, edges, beam=1) == [[[7, 7, 8]]]  # not 7 8, which begins a word there


def test_phrases_forbidden_at_word_starts_are_allowed_inside_a_word(script: type[Any]) -> None:
    within = torch.zeros(12, dtype=torch.bool)
    within[[6, 7]] = True
    model = script(lambda first, prefix: {7: 0.9, 6: 0.1} if len(prefix) < 3 else {END: 1.0})
    demands = [Demands(apart=((7,),))]
    edges = Edges(within, torch.zeros(12, dtype=torch.bool))
    (result,) = decode(model, make_requests([[5]], demands=demands, edges=edges), Decoding(beam=1))
    assert result[0].tokens == [6, 7, 7]  # not at the beginning, where no word stands before it


def test_a_forced_prefix_is_above_the_rules(tiny: Seq2Seq) -> None:
    options = Decoding(beam=3, max_length=9, no_repeat=1, min_length=5)
    demands = [Demands(forbidden=((8,),))]
    (result,) = decode(tiny, make_requests(SOURCES[:1], [[8, 8]], demands=demands, edges=NOTHING), options)
    assert result[0].tokens[:2] == [8, 8] and 8 not in result[0].tokens[2:]
    assert torch.isfinite(torch.tensor(result[0].score))


WAYS = [
    {"beam": 1},
    {"beam": 4, "nbest": 4},
    {"beam": 4, "nbest": 4, "groups": 2},
    {"beam": 1, "nbest": 4, "sample": {"seed": 2}},
]


@pytest.mark.parametrize("changes", WAYS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_sequence_comes_twice(tiny: Seq2Seq, changes: dict[str, Any], count: int) -> None:
    sources = [[4 + (3 * n + k) % 9 for k in range(1 + n % 6)] for n in range(12)]
    shape = {"max_length": 16, "min_length": 9 if count > 1 else 0, **changes}
    result = decode(tiny, make_requests(sources), Decoding.model_validate({**shape, "no_repeat": count}))
    assert not any(repeats(h.tokens, count) for beams in result for h in beams)
    plain = decode(tiny, make_requests(sources), Decoding.model_validate(shape))
    assert count == 3 or any(repeats(h.tokens, count) for beams in plain for h in beams)  # else it would show nothing


@pytest.mark.parametrize("count", [1, 2])
def test_without_repeats_and_with_a_least_length_it_is_an_exhaustive_search(tiny: Seq2Seq, count: int) -> None:
    exhaustive = {"length_penalty": 1.0, "stopping": "bound"}
    options = Decoding(beam=1111, nbest=6, max_length=4, no_repeat=count, min_length=2, **exhaustive)
    (result,) = decode(tiny, make_requests(SOURCES[:1]), options)
    expected = best(tiny, SOURCES[0], lambda words: len(words) >= 2 and not repeats(words, count), 4)
    assert [h.tokens for h in result] == expected[:6]


@pytest.mark.parametrize("changes", WAYS)
def test_no_output_is_shorter_than_the_least_length(script: type[Any], changes: dict[str, Any]) -> None:
    """Nor than what the source's length alone would allow: a source of one token may become 13 otherwise."""
    model = script(lambda first, prefix: {END: 0.9, 6: 0.06, 7: 0.04})
    options = {"max_length": 30, "max_ratio": 1.0, **changes}
    result = decode(model, make_requests([[5], [6, 6]]), Decoding.model_validate({**options, "min_length": 20}))
    assert {len(h.tokens) for beams in result for h in beams} & {20} and all(
        len(h.tokens) >= 20 for beams in result for h in beams
    )


def test_an_output_that_has_nothing_left_to_say_ends(script: type[Any]) -> None:
    model = script(lambda first, prefix: {6: 0.6, 7: 0.3, END: 0.1})
    options = Decoding(beam=1, no_repeat=1, min_length=5, max_length=9)
    (result,) = decode(model, make_requests([[5]]), options)
    assert result[0].tokens == [6, 7]


def test_the_least_length_of_a_continuation_counts_new_tokens(script: type[Any]) -> None:
    model = script(lambda first, prefix: {END: 0.9, 6: 0.08, 7: 0.01, 8: 0.01})
    options = Decoding(beam=2, min_length=3, max_length=8, length_penalty=0.0)
    result = decode(model, make_requests(prefixes=[[7, 7], [8]]), options)
    assert [beams[0].tokens for beams in result] == [[7, 7, 6, 6, 6], [8, 6, 6, 6]]


def test_no_repeat_goes_with_words_that_only_a_sentence_since_done_could_copy() -> None:
    """Behind a forced prefix a beam has hypotheses of no worth, which may hold any word."""
    torch.manual_seed(0)
    encoder, decoder = BODIES["transformer"]
    recipe = ModelConfig.model_validate({"width": 8, "encoder": encoder, "decoder": decoder, "copying": True})
    model = CopyingSeq2Seq(recipe, 13).eval()
    options = Decoding(beam=3, no_repeat=1, max_length=6, max_ratio=0.1)
    request = make_requests([[16], [4]], prefixes=[[], [5, 6, 7]])
    both = decode(model, request, options)
    assert [both[0][0].tokens, both[1][0].tokens] == [decode(model, [one], options)[0][0].tokens for one in request]
