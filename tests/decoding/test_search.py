"""Greedy and beam search: against exhaustive search, against a beam search written with lists, and by script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_sources import many_sources

from sightline.decoding.engine import decode
from sightline.decoding.ranking import coverage_penalty, normalized
from sightline.decoding.request import Demands, Edges, Hypothesis, make_requests, pad_tokens
from sightline.decoding.scoring import log_probabilities
from sightline.decoding.search import staying
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Decoding

PAD, UNK, START, END = 0, 1, 2, 3
WORDS = [UNK, *range(4, 13)]  # all that may stand in an output
SOURCES = [[5, 9, 4], [6], [12, 8, 5, 7, 10]]
# Log-probabilities of some words, each near −3, added in float32 in two orders.
CLOSE = 2e-5

PENALTIES = (0.0, 0.6, 1.0, 2.0)


def outputs(limit: int, prefix: Sequence[int] = ()) -> Iterator[list[int]]:
    """Every output of less than `limit` words that begins with the prefix."""
    for length in range(limit - len(prefix)):
        for rest in product(WORDS, repeat=length):
            yield [*prefix, *rest]


def coverages(model: Seq2Seq, source: list[int], targets: list[list[int]], beta: float) -> list[float]:
    """β Σ_j log min(Σ_t α_tj, 1) of each target, α the mean over layers and heads, from the explicit weights."""
    taps: list[Tapped] = []
    rows = torch.tensor([[*source, END]] * len(targets))
    with torch.no_grad(), on_taps(model, taps.append, model.cross_attention_paths):
        state = model.begin(model.encode(rows, Padded.of([len(source) + 1] * len(targets))))
        model.advance(pad_tokens([[START, *target] for target in targets], "cpu"), state)
    layers: dict[str, list[torch.Tensor]] = {}
    for tapped in taps:
        if tapped.name.endswith(".weights"):
            layers.setdefault(tapped.name, []).append(tapped.tensor.mean(1))  # (B, T, S), or (B, 1, S) at each step
    weights = sum(torch.cat(parts, dim=1) for parts in layers.values()) / len(layers)
    totals = [row[: len(target) + 1].sum(0).tolist() for row, target in zip(weights, targets, strict=True)]
    return [beta * sum(math.log(min(max(total, 1e-6), 1.0)) for total in row) for row in totals]


def exhaustive(
    model: Seq2Seq, source: list[int], limit: int, alpha: float, prefix: Sequence[int] = (), beta: float = 0.0
) -> list[Hypothesis]:
    """Every output, best first."""
    every = list(outputs(limit, prefix))
    logs = log_probabilities(model, [source] * len(every), every).tolist()
    penalties = coverages(model, source, every, beta) if beta else [0.0] * len(every)
    result = [
        Hypothesis(output, log / ((5 + len(output) + 1) / 6) ** alpha + penalty, log)
        for output, log, penalty in zip(every, logs, penalties, strict=True)
    ]
    return sorted(result, key=lambda hypothesis: -hypothesis.score)


def assert_same(result: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [hypothesis.tokens for hypothesis in result] == [hypothesis.tokens for hypothesis in expected]
    for ours, theirs in zip(result, expected, strict=True):
        assert ours.score == pytest.approx(theirs.score, rel=0, abs=CLOSE)
        assert ours.log_probability == pytest.approx(theirs.log_probability, rel=0, abs=CLOSE)


# --- against exhaustive search -----------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", PENALTIES)
def test_a_beam_wide_enough_is_an_exhaustive_search(model: Seq2Seq, alpha: float) -> None:
    options = Decoding(beam=111, nbest=10, length_penalty=alpha, max_length=3)  # 1 + 10 + 100 outputs
    for source, result in zip(SOURCES, decode(model, make_requests(SOURCES), options), strict=True):
        assert_same(result, exhaustive(model, source, 3, alpha)[:10])


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all_longer_outputs(seed: int, build_model: Callable[..., Seq2Seq]) -> None:
    body = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0}
    model = build_model(body, body, seed=seed)
    options = Decoding(beam=1111, nbest=20, length_penalty=1.5, max_length=4)
    (result,) = decode(model, make_requests(SOURCES[:1]), options)
    assert_same(result, exhaustive(model, SOURCES[0], 4, 1.5)[:20])


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_with_a_forced_prefix_it_searches_all_that_begins_so(model: Seq2Seq, alpha: float) -> None:
    prefixes = [[7, UNK], [9], []]
    options = Decoding(beam=111, nbest=6, length_penalty=alpha, max_length=3)
    results = decode(model, make_requests(SOURCES, prefixes=prefixes), options)
    for source, prefix, result in zip(SOURCES, prefixes, results, strict=True):
        expected = exhaustive(model, source, 3, alpha, prefix)[:6]
        assert_same(result, expected)
        assert all(hypothesis.tokens[: len(prefix)] == prefix for hypothesis in result)


def test_with_a_coverage_penalty_too(looking_model: Seq2Seq) -> None:
    options = Decoding(beam=111, nbest=10, length_penalty=0.8, coverage_penalty=0.4, max_length=3)
    (result,) = decode(looking_model, make_requests(SOURCES[:1]), options)
    expected = exhaustive(looking_model, SOURCES[0], 3, 0.8, beta=0.4)
    assert_same(result, expected[:10])
    plain = exhaustive(looking_model, SOURCES[0], 3, 0.8)
    assert [h.tokens for h in plain[:10]] != [h.tokens for h in expected[:10]]  # it made a difference


# --- against a beam search written with lists --------------------------------------------------------------------


def next_logs(model: Seq2Seq, source: list[int], past: list[list[int]]) -> list[list[float]]:
    rows = torch.tensor([[*source, END]] * len(past))
    with torch.no_grad():
        state = model.begin(model.encode(rows, Padded.of([len(source) + 1] * len(past))))
        features, _ = model.advance(torch.tensor(past), state)
        return model.logits(features[:, -1]).double().log_softmax(-1).tolist()


def beam_by_lists(
    model: Seq2Seq, source: list[int], beam: int, alpha: float, limit: int, count: int, rule: str
) -> list[Hypothesis]:
    """Of the 2W best continuations, the ends among the first W are finished, the first W others go on."""
    alive: list[tuple[float, list[int]]] = [(0.0, [START])]
    finished: list[Hypothesis] = []
    for step in range(limit):
        logs = next_logs(model, source, [past for _, past in alive])
        allowed = [END] if step + 1 == limit else [END, *WORDS]
        every = [
            (total + row[word], [*past, word])
            for (total, past), row in zip(alive, logs, strict=True)
            for word in allowed
        ]
        best = sorted(every, key=lambda pair: -pair[0])[: 2 * beam]
        for total, past in best[:beam]:
            if past[-1] == END:
                score = total / ((5 + step + 1) / 6) ** alpha
                finished.append(Hypothesis(past[1:-1], score, total))
        alive = [pair for pair in best if pair[1][-1] != END][:beam]
        ranked = sorted(finished, key=lambda hypothesis: -hypothesis.score)
        if not alive:
            break
        if len(ranked) >= count and alive[0][0] / ((5 + limit) / 6) ** alpha <= ranked[count - 1].score:
            break
        horizon = min(limit, 1.25 * (step + 2)) if rule == "horizon" else 0.0
        hopeless = (
            alive[0][0] / ((5 + horizon) / 6) ** alpha <= ranked[count - 1].score if ranked[count - 1 :] else False
        )
        if len(finished) >= beam and (rule == "count" or hopeless):
            break
    return sorted(finished, key=lambda hypothesis: -hypothesis.score)[:count]


@pytest.mark.parametrize(("beam", "count"), [(2, 1), (3, 3), (5, 2)])
@pytest.mark.parametrize(("alpha", "rule"), [(0.0, "horizon"), (1.0, "horizon"), (1.0, "count")])
def test_a_narrow_beam_is_the_one_written_with_lists(
    model: Seq2Seq, beam: int, count: int, alpha: float, rule: Any
) -> None:
    options = Decoding(beam=beam, nbest=count, length_penalty=alpha, max_length=9, stopping=rule)
    for source, result in zip(SOURCES, decode(model, make_requests(SOURCES), options), strict=True):
        assert_same(result, beam_by_lists(model, source, beam, alpha, 9, count, rule))


# --- greedy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", PENALTIES)
def test_a_beam_of_one_is_greedy(model: Seq2Seq, alpha: float) -> None:
    options = Decoding(beam=1, length_penalty=alpha, max_length=12)
    recorded = make_requests(many_sources(24), on_step=lambda step: None)  # by a beam
    for ours, theirs in zip(
        decode(model, recorded, options), decode(model, make_requests(many_sources(24)), options), strict=True
    ):
        assert_same(ours, theirs)


def test_greedy_takes_the_most_likely_word_each_time(model: Seq2Seq) -> None:
    options = Decoding(beam=1, max_length=9)
    for source, (result,) in zip(SOURCES, decode(model, make_requests(SOURCES), options), strict=True):
        past = [START]
        while past[-1] != END and len(past) < 9:
            (logs,) = next_logs(model, source, [past])
            past.append(max([END, *WORDS], key=lambda word: logs[word]))
        assert result.tokens == [word for word in past[1:] if word != END]


@pytest.mark.parametrize("more", [{}, {"min_length": 6}, {"no_repeat": 2}])
@pytest.mark.parametrize("prefixes", [None, [[number % 9 + 4] * (number % 3) for number in range(24)]])
def test_greedy_without_scores_gives_the_same_tokens(
    model: Seq2Seq, more: dict[str, Any], prefixes: list[list[int]] | None
) -> None:
    options, sources = Decoding(beam=1, max_length=12, batch_tokens=40, **more), many_sources(24)
    plain, quick = (
        decode(model, make_requests(sources, prefixes=prefixes, scored=scored), options) for scored in (True, False)
    )
    assert [result.tokens for (result,) in quick] == [result.tokens for (result,) in plain]
    assert all(math.isnan(result.score) and math.isnan(result.log_probability) for (result,) in quick)


def test_tapped_logits_are_unmasked(model: Seq2Seq) -> None:
    taps: list[Tapped] = []
    with on_taps(model, taps.append, points=("logits",)):
        decode(model, make_requests(SOURCES, scored=False), Decoding(beam=1, max_length=8))
    assert taps and all(tapped.tensor.isfinite().all() for tapped in taps)


def test_samples_have_log_probabilities_with_and_without_scores(model: Seq2Seq) -> None:
    options = Decoding(nbest=3, sample={"seed": 5}, max_length=8)
    assert decode(model, make_requests(SOURCES, scored=False), options) == decode(
        model, make_requests(SOURCES), options
    )


@pytest.mark.parametrize("beam", [1, 4])
def test_the_log_probability_of_an_output_equals_its_score(model: Seq2Seq, beam: int) -> None:
    sources = many_sources(10)
    options = Decoding(beam=beam, nbest=beam, max_length=10)
    result = decode(model, make_requests(sources), options)
    pairs = [(source, hypothesis) for source, beams in zip(sources, result, strict=True) for hypothesis in beams]
    logs = log_probabilities(model, [source for source, _ in pairs], [hypothesis.tokens for _, hypothesis in pairs])
    for (_, hypothesis), log in zip(pairs, logs, strict=True):
        assert hypothesis.log_probability == pytest.approx(log, rel=0, abs=5e-5)  # ten words, not three
        assert hypothesis.score == pytest.approx(
            normalized(hypothesis.log_probability, len(hypothesis.tokens) + 1, options), rel=1e-6
        )


# --- what may be said --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 4, "nbest": 4}, {"sample": {"seed": 3}, "nbest": 4}])
def test_pad_and_start_are_never_output(script: type[Any], options: dict[str, Any]) -> None:
    model = script(lambda first, prefix: {PAD: 0.5, START: 0.4, 6: 0.05, 7: 0.03, END: 0.02})
    for beams in decode(model, make_requests([[5], [6, 6]]), Decoding.model_validate({**options, "max_length": 8})):
        assert all(word in (6, 7) for hypothesis in beams for word in hypothesis.tokens)


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3, "nbest": 3}, {"sample": {"seed": 3}, "nbest": 3}])
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_no_output_is_longer_than_the_limit(script: type[Any], options: dict[str, Any], limit: int) -> None:
    """The end mark counts, and its probability is part of the output's even where it was forced."""
    model = script(lambda first, prefix: {6: 0.6, 7: 0.39, END: 0.01})
    result = decode(model, make_requests([[5], [6, 6]]), Decoding.model_validate({**options, "max_length": limit}))
    for hypothesis in (hypothesis for beams in result for hypothesis in beams):
        assert len(hypothesis.tokens) <= limit - 1
        logs = [math.log(0.6 if word == 6 else 0.39) for word in hypothesis.tokens]
        assert hypothesis.log_probability == pytest.approx(sum(logs) + math.log(0.01), abs=1e-5)
    assert any(len(hypothesis.tokens) == limit - 1 for beams in result for hypothesis in beams)


@pytest.mark.parametrize("beam", [1, 3])
def test_each_output_has_a_limit_from_its_own_source(script: type[Any], beam: int) -> None:
    """At most max_ratio tokens for each of the source (its end counted), plus ten."""
    model = script(lambda first, prefix: {6: 0.5, 7: 0.3, 8: 0.1, 9: 0.09, END: 0.01})  # no beam of three takes the end
    result = decode(model, make_requests([[5], [5] * 9, [5] * 3]), Decoding(beam=beam, max_ratio=1.5))
    assert [len(beams[0].tokens) + 1 for beams in result] == [3 + 10, 15 + 10, 6 + 10]


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3, "nbest": 3}, {"sample": {"seed": 3}, "nbest": 3}])
def test_no_output_is_longer_than_the_model_can_write(script: type[Any], options: dict[str, Any]) -> None:
    model = script(lambda first, prefix: {6: 0.6, 7: 0.39, 8: 0.005, 9: 0.004, END: 0.001})
    model.longest = 4
    result = decode(model, make_requests([[5], [6, 6]]), Decoding.model_validate(options))
    assert {len(beams[0].tokens) for beams in result} == {3}  # and the end
    assert len(model.rows) == 4  # the start and three words were given


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3, "nbest": 3}, {"sample": {"seed": 3}, "nbest": 3}])
def test_a_forced_prefix_is_honoured_however_unlikely_and_long(script: type[Any], options: dict[str, Any]) -> None:
    model = script(lambda first, prefix: {6: 0.9, 8: 0.001, END: 0.099})
    prefixes = [[8, 8, 8, 8], [], [8]]
    result = decode(
        model, make_requests([[5], [5], [5]], prefixes=prefixes), Decoding.model_validate({**options, "max_length": 3})
    )
    for beams, prefix in zip(result, prefixes, strict=True):
        for hypothesis in beams:
            assert hypothesis.tokens[: len(prefix)] == prefix
            assert len(hypothesis.tokens) <= max(2, len(prefix))
            logs = {6: math.log(0.9), 8: math.log(0.001)}
            expected = sum(logs[word] for word in hypothesis.tokens) + math.log(0.099)
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-4)  # float32, sums near −30


# --- penalties ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 2}, {"beam": 2, "no_repeat": 2}, {"sample": {}}], ids=str)
def test_a_forced_prefix_may_contain_noise_marks(script: type[Any], options: dict[str, Any]) -> None:
    model = script(lambda first, prefix: {4: 0.6, END: 0.3, 6: 0.1})
    request = make_requests([[5]], prefixes=[[4, 6, 4]], marks=1)
    (result, *_) = decode(model, request, Decoding.model_validate({"max_length": 9, **options}))[0]
    assert result.tokens[:3] == [4, 6, 4] and 4 not in result.tokens[3:]
    assert result.log_probability <= 2 * math.log(0.6) + math.log(0.1)


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 2}, {"beam": 2, "groups": 2}, {"sample": {}}], ids=str)
def test_scores_that_are_no_numbers_are_refused_by_the_line(
    script: type[Any], options: dict[str, Any], scored: bool
) -> None:
    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        return dict.fromkeys(range(12), math.nan) if first == 8 and len(prefix) == 1 else {5: 0.8, END: 0.2}

    model, chosen = script(rule), Decoding.model_validate({"max_length": 5, "min_length": 1, **options})
    assert all(decode(model, make_requests([[6], [7]], scored=scored), chosen))
    with pytest.raises(ValueError, match=r"line 12: the scores of the model are NaN"):
        decode(model, make_requests([[6], [8], [7]], scored=scored, first=10), chosen)


@pytest.mark.parametrize(
    ("form", "alpha", "expected"),
    [
        ("gnmt", 1.0, -3.0),  # (5 + 7) / 6 = 2
        ("gnmt", 2.0, -1.5),
        ("gnmt", 0.0, -6.0),
        ("length", 1.0, -6.0 / 7),
        ("length", 0.5, -6.0 / math.sqrt(7)),
        ("length", 0.0, -6.0),
        ("reward", 0.5, -2.5),
        ("reward", 0.0, -6.0),
    ],
)
def test_log_probabilities_are_normalized_by_length(form: str, alpha: float, expected: float) -> None:
    options = Decoding.model_validate({"length_normalization": form, "length_penalty": alpha})
    assert normalized(-6.0, 7, options) == pytest.approx(expected)
    assert normalized(torch.tensor([-6.0]), torch.tensor([7]), options).tolist() == pytest.approx([expected])


def test_the_coverage_penalty_counts_each_source_position_up_to_one() -> None:
    covered = torch.tensor([[0.5, 2.0, 0.25, 9.0], [1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    result = coverage_penalty(covered, mask, 0.3).tolist()
    assert result == pytest.approx([0.3 * (math.log(0.5) + math.log(0.25)), 0.3 * math.log(1e-6)], rel=1e-12)


def test_the_score_of_an_output_is_its_formula_with_coverage(model: Seq2Seq) -> None:
    options = Decoding(beam=4, nbest=4, length_penalty=0.7, coverage_penalty=0.3, max_length=8)
    if not model.cross_attention_paths:
        with pytest.raises(ValueError, match="coverage_penalty needs a decoder with attention"):
            decode(model, make_requests(SOURCES), options)
        return
    sources = many_sources(12)
    for source, beams in zip(sources, decode(model, make_requests(sources), options), strict=True):
        penalties = coverages(model, source, [hypothesis.tokens for hypothesis in beams], 0.3)
        for hypothesis, penalty in zip(beams, penalties, strict=True):
            expected = hypothesis.log_probability / ((5 + len(hypothesis.tokens) + 1) / 6) ** 0.7 + penalty
            assert hypothesis.score == pytest.approx(expected, rel=0, abs=1e-4)  # logs of float32 sums of ten weights


def test_a_beam_of_one_has_the_same_score_beside_constrained_requests(looking_model: Seq2Seq) -> None:
    """What one sentence must say is searched for by a beam, and greedy search knows of no coverage."""
    demands = [Demands(required=((7,),)), Demands()]
    options = Decoding(beam=1, coverage_penalty=0.5, max_length=6)
    requests = make_requests(SOURCES[:2], demands=demands, edges=Edges.none(13))
    assert_same(decode(looking_model, requests, options)[1], decode(looking_model, requests[1:], options)[0])


def test_a_search_leaves_no_recording_behind(model: Seq2Seq) -> None:
    options = Decoding(beam=2, coverage_penalty=0.3 if model.cross_attention_paths else 0.0, max_length=4)
    decode(model, make_requests(SOURCES), options)
    assert not any(getattr(part, "recorded", False) for part in model.modules())


def test_the_search_is_greedy_with_a_beam_of_one(script: type[Any]) -> None:
    """And beam search finds what greedy misses: 0.4 · 0.9 is more than 0.6 · 0.5."""

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        return {(): {6: 0.6, 7: 0.4}, (6,): {8: 0.5, 9: 0.3, 10: 0.2}, (7,): {8: 0.9, 9: 0.1}}.get(
            tuple(prefix), {END: 1.0}
        )

    for beam, expected in ((1, [6, 8]), (2, [7, 8])):
        options = Decoding(beam=beam)
        (beams,) = decode(script(rule), make_requests([[5]]), options)
        assert beams[0].tokens == expected


def test_a_beam_continues_while_a_longer_output_could_be_the_best(script: type[Any]) -> None:
    """log 0.6 is more than log 0.4 over the penalty of two words, and less over that of seven."""

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        return {END: 0.6, 6: 0.4} if not prefix else {6: 1.0} if len(prefix) < 6 else {END: 1.0}

    (result,) = decode(script(rule), make_requests([[5]]), Decoding(beam=2, length_penalty=2.0))
    assert result[0].tokens == [6] * 6


@given(done=st.lists(st.booleans(), min_size=1, max_size=12), room=st.integers(0, 3))
def test_those_who_stay_keep_their_places_and_the_last_fill_the_holes(done: list[bool], room: int) -> None:
    alive = [row for row, finished in enumerate(done) if not finished]
    count = min(len(done), len(alive) + room)
    rows = staying(torch.tensor(done), count).tolist()
    assert len(set(rows)) == len(rows) == count
    assert set(alive) <= set(rows)
    assert all(row == place for place, row in enumerate(rows) if not done[place])
