"""Requests that join a running batch, leave it and are cancelled: each has the outputs it would have alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from made_sources import many_sources

from sightline.decoding.engine import Engine, decode
from sightline.decoding.processors import PROCESSORS
from sightline.decoding.request import BeamStep, Demands, Edges, Hypothesis, Request
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Decoding

END = 3
CLOSE = 1e-4  # log-probabilities of some words in float32, beside others or alone
EDGES = Edges(torch.arange(13) % 3 == 0, torch.arange(13) % 4 == 0)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3, "nbest": 3},
    "groups": {"beam": 4, "groups": 2, "nbest": 2},
    "samples": {"sample": {"seed": 4, "top_p": 0.9}, "nbest": 2},
    "rules": {"beam": 2, "no_repeat": 2, "min_length": 4},
}


def request(number: int, **more: Any) -> Request:
    """Sources, prefixes and limits that differ from number to number."""
    way = more.pop("way", "beam")
    changes = {"max_length": 5 + number % 9, **WAYS[way], **more.pop("options", {})}
    prefix = [4 + number % 9] * (number % 3)
    source = many_sources(number + 1)[number]
    return Request(options=Decoding.model_validate(changes), source=source, prefix=prefix, number=number, **more)


def run(model: Any, requests: list[Request], *, every: int = 1, bulk: bool = False) -> list[list[Hypothesis]]:
    """Add a request after every so many steps."""
    engine, numbers = Engine(model, bulk=bulk), []
    for each in requests:
        numbers.append(engine.add(each))
        for _ in range(every):
            engine.step()
    outputs = engine.drain()
    assert not engine.unfinished and sorted(outputs) == sorted(numbers)
    return [outputs[number] for number in numbers]


def assert_alike(result: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for ours, theirs in zip(result, expected, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        assert [h.truncated for h in ours] == [h.truncated for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=CLOSE)


def alone(model: Any, requests: list[Request]) -> list[list[Hypothesis]]:
    return [decode(model, [each])[0] for each in requests]


def test_joining_a_running_batch_does_not_change_outputs_of_any_decoder(any_model: Seq2Seq) -> None:
    requests = [request(number, way=way) for number, way in enumerate(["beam", "greedy", "beam", "beam", "greedy"])]
    assert_alike(run(any_model, requests), alone(any_model, requests))


def decoder_states(state: Any) -> list[Any]:
    """The states of all decoders inside a search state."""
    inner = getattr(state, "decoder", None)
    return [state] if inner is None else decoder_states(inner)


def test_the_cache_is_bounded_by_the_longest_running_row(any_model: Seq2Seq) -> None:
    check_bounded_cache(any_model, "beam")


def test_the_cache_of_greedy_search_is_bounded_by_the_longest_running_row(model: Seq2Seq) -> None:
    check_bounded_cache(model, "greedy")


def check_bounded_cache(model: Seq2Seq, way: str) -> None:
    """Each request runs 14 steps and overlaps the next by 3: one leaves while no other joins."""
    lasting = {"min_length": 13, "max_length": 14}
    requests = [request(number, way=way, options=lasting) for number in range(4)]
    engine, numbers, started = Engine(model), list[int](), dict[int, int]()
    for step in range(11 * len(requests) + 3):
        if step % 11 == 0 and len(numbers) < len(requests):
            numbers.append(engine.add(requests[step // 11]))
            started[numbers[-1]] = step
        engine.step()
        running = [step + 1 - started[number] for number in engine.unfinished]
        for search in [search for batch in engine.batches.values() for search in batch.searches()]:
            assert search.time == max(running)
            for state in decoder_states(search.state):
                if hasattr(state, "kv_cache"):
                    assert state.length == len(state.widths) == max(running)
                    assert state.used == sum(state.widths) <= max(running) * search.width
                    caches = [layer.self_attention.buffers for layer in state.kv_cache]
                    assert max(keys.shape[2] for keys, _ in caches) <= max(16, 3 * state.used)
    outputs = engine.collect()
    assert sorted(outputs) == numbers
    assert_alike([outputs[number] for number in numbers], alone(model, requests))


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("way", WAYS)
def test_so_they_have_in_every_kind_of_search(model: Seq2Seq, way: str, every: int) -> None:
    requests = [request(number, way=way) for number in range(7)]
    assert_alike(run(model, requests, every=every), alone(model, requests))


def test_requests_with_different_options_run_side_by_side(model: Seq2Seq) -> None:
    ways = list(WAYS) * 3
    requests = [request(number, way=way) for number, way in enumerate(ways)]
    expected = alone(model, requests)
    assert_alike(run(model, requests), expected)
    assert_alike(run(model, requests, every=0, bulk=True), expected)
    assert_alike(decode(model, requests), expected)


def test_phrases_are_those_of_each_request(model: Seq2Seq) -> None:
    every = [
        Demands(required=((7,), (5, 9))),
        Demands(forbidden=((6,), (8, 4, 5))),
        Demands(required=((4, 5, 6),), forbidden=((9, 9),)),
        Demands(forbidden=((10,),), apart=((5,),)),
        Demands(required=((12,),)),
        Demands(),
    ]
    requests = [
        request(number, way="greedy" if number % 2 else "beam", demands=demands, edges=EDGES)
        for number, demands in enumerate(every * 2)
    ]
    assert_alike(run(model, requests), alone(model, requests))


def test_coverage_is_that_of_each_request(looking_model: Seq2Seq) -> None:
    requests = [request(number, options={"coverage_penalty": 0.4, "nbest": 2}) for number in range(6)]
    assert_alike(run(looking_model, requests), alone(looking_model, requests))


def test_a_cancelled_request_leaves_and_its_neighbours_stay_as_they_are(model: Seq2Seq) -> None:
    requests = [request(number, way=way) for way in ("beam", "greedy") for number in range(8)]
    engine = Engine(model)
    numbers = [engine.add(each) for each in requests[:-1]]
    engine.step()
    engine.cancel(numbers[1])
    numbers.append(engine.add(requests[-1]))
    engine.cancel(numbers[-1])  # before its first step
    engine.step()
    engine.cancel(numbers[10])
    engine.cancel(99)
    outputs = engine.drain()
    gone = {numbers[n] for n in (1, 10, 15)} - set(engine.collect())
    stayed = [n for n, number in enumerate(numbers) if number not in gone]
    assert set(outputs) >= {numbers[n] for n in stayed} and numbers[-1] not in outputs
    assert_alike([outputs[numbers[n]] for n in stayed], alone(model, [requests[n] for n in stayed]))
    engine.cancel(numbers[0])  # which is over
    assert not engine.unfinished and not engine.batches


def test_when_all_are_cancelled_nothing_is_left(model: Seq2Seq) -> None:
    engine = Engine(model)
    numbers = [engine.add(request(number)) for number in range(3)]
    engine.step()
    for number in numbers:
        engine.cancel(number)
    assert engine.drain() == {}
    engine.step()
    assert not engine.batches


def test_requests_wait_while_there_is_no_room(script: type[Any]) -> None:
    """Two tokens each (a word and its end), and room for six."""
    model = script(lambda first, prefix: {END: 1.0} if len(prefix) == 3 else {6: 1.0})
    engine = Engine(model)
    numbers = [engine.add(Request(source=[5], options=Decoding(beam=1, batch_tokens=6))) for _ in range(7)]
    outputs = engine.drain()
    assert [outputs[number][0].tokens for number in numbers] == [[6, 6, 6]] * 7
    assert max(model.rows) == 3


def test_outputs_can_be_collected_as_soon_as_they_are_done(script: type[Any]) -> None:
    model = script(lambda first, prefix: {END: 1.0} if len(prefix) == first - 4 else {6: 1.0})
    engine, order = Engine(model), []
    numbers = {engine.add(Request(source=[first], options=Decoding(beam=1))): first for first in (9, 5, 7, 6)}
    while engine.unfinished:
        engine.step()
        order += [numbers[number] for number in engine.collect()]
    assert order == [5, 6, 7, 9]


def test_tokens_and_steps_are_reported_to_the_request_they_belong_to(model: Seq2Seq) -> None:
    tokens: dict[int, list[int]] = {0: [], 1: []}
    steps: dict[int, list[BeamStep]] = {0: [], 1: []}
    requests = [
        *(request(n, way="greedy", on_token=lambda token, sample, n=n: tokens[n].append(token)) for n in tokens),
        *(request(n, on_step=steps[n].append) for n in steps),
    ]
    result = run(model, requests, every=2)
    for number in (0, 1):
        assert tokens[number] == [*result[number][0].tokens, END]
        assert [step.step for step in steps[number]] == list(range(len(steps[number])))
        assert any(bool(step.done[0]) for step in steps[number][-1:])


def test_a_request_may_be_added_while_another_reports_a_token(script: type[Any]) -> None:
    engine = Engine(script(lambda first, prefix: {END: 1.0} if len(prefix) == 2 else {first: 1.0}))
    numbers: list[int] = []

    def more(token: int, sample: int) -> None:
        if not numbers:
            numbers.append(engine.add(Request(source=[6], options=Decoding(beam=1))))

    first = engine.add(Request(source=[5], options=Decoding(beam=1), on_token=more))
    outputs = engine.drain()
    assert [outputs[number][0].tokens for number in (first, *numbers)] == [[5, 5], [6, 6]]


def test_a_plugin_processor_changes_the_output(script: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other token must be a 7, of the requests that are marked."""

    class EveryOther:
        def __init__(self, rows: int) -> None:
            self.rows = rows

        @staticmethod
        def applies(request: Request) -> bool:
            return request.text == "marked"

        @classmethod
        def build(cls, requests: Any, device: torch.device) -> EveryOther:
            return cls(len(requests))

        def __call__(self, logits: torch.Tensor, tokens: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            assert len(logits) == len(tokens) == len(step) == self.rows
            odd = (step % 2 == 1)[:, None, None] & (torch.arange(logits.shape[2]) != 7)
            return logits.masked_fill(odd, float("-inf"))

        def keep(self, rows: torch.Tensor) -> EveryOther:
            return EveryOther(len(rows))

        def append(self, other: EveryOther) -> EveryOther:
            return EveryOther(self.rows + other.rows)

    monkeypatch.setitem(PROCESSORS, "every-other", EveryOther)
    model = script(lambda first, prefix: {6: 0.6, 7: 0.3, END: 0.1})
    requests = [
        Request(text, Decoding(beam=beam, max_length=4 + n), source=[5])
        for n, (text, beam) in enumerate([("marked", 1), ("", 1), ("marked", 2), ("marked", 1), ("", 2)])
    ]
    result = run(model, requests)
    assert [best.tokens[:4] for best, *_ in result] == [[6, 7, 6], [6] * 4, [6, 7, 6, 7], [6, 7, 6, 7], [6] * 4]
