"""Any number of sentences: in batches, side by side, out in the order they came in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from threading import Thread
from typing import Any

import pytest
import torch
from made_sources import many_sources

from sightline.decoding.engine import _threads, decode, few_of, on_tensor_cores, side_by_side, size_for
from sightline.decoding.request import Demands, Edges, Hypothesis, Ids, make_requests
from sightline.layers.tap import TapModule, Tapped, on_taps
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Decoding

END = 3


@pytest.mark.parametrize(("beam", "alpha"), [(1, 1.0), (2, 1.5), (4, 0.0)])
def test_outputs_do_not_depend_on_the_batch(model: Seq2Seq, beam: int, alpha: float) -> None:
    sources = many_sources(14)
    shape = {"beam": beam, "nbest": beam, "length_penalty": alpha, "max_length": 12}
    one, all_ = (decode(model, make_requests(sources), Decoding(**shape, batch_tokens=size)) for size in (1, 9999))
    assert [[h.tokens for h in beams] for beams in one] == [[h.tokens for h in beams] for beams in all_]


def test_a_beginning_that_leaves_a_model_no_room_is_refused_by_the_line(script: type[Any]) -> None:
    model = script(lambda first, prefix: {6: 0.6, END: 0.4})
    model.longest = 3
    assert decode(model, make_requests([[5]], [[6, 6]]), Decoding(beam=2))[0][0].tokens == [6, 6]
    with pytest.raises(ValueError, match="line 2 has a prefix of 3 tokens, and this model can write 2 there"):
        decode(model, make_requests([[5], [5]], [[6], [6, 6, 6]]), Decoding(beam=2))


@pytest.mark.parametrize(
    ("options", "required"),
    [
        ({"beam": 1}, ()),
        ({"beam": 4, "nbest": 4}, ()),
        ({"beam": 4, "groups": 2, "nbest": 3}, ()),
        ({"sample": {"seed": 2}, "nbest": 2}, ()),
        ({"beam": 1}, ((5, 9), (7,))),
        ({"beam": 4, "nbest": 4}, ((5, 9), (7,))),
    ],
    ids=str,
)
def test_when_sentences_are_moved_together_changes_no_output(
    model: Seq2Seq, options: dict[str, Any], required: tuple[Ids, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, as on a CPU, as on a GPU, and never, so that some are long done beside others that go on."""
    chosen = Decoding.model_validate({"max_length": 12, "max_ratio": 1.0, **options})
    demands = [Demands(required=required[: number % 3]) for number in range(40)]
    request = make_requests(many_sources(40), demands=demands, edges=Edges.none(13))
    policies = [
        lambda alive, size, device: alive,
        size_for,
        lambda alive, size, device: size_for(alive, size, torch.device("cuda")),
        lambda alive, size, device: size if alive else 0,
    ]
    result = []
    for policy in policies:
        monkeypatch.setattr("sightline.decoding.engine.size_for", policy)
        result.append([[each.tokens for each in several] for several in decode(model, request, chosen)])
    assert all(each == result[0] for each in result)


def test_tensor_cores_are_for_the_search_alone_and_for_gpus() -> None:
    with on_tensor_cores("cpu"):
        assert torch.get_float32_matmul_precision() == "highest"
    with on_tensor_cores("cuda"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.cuda
@pytest.mark.parametrize("beam", [1, 4])
def test_a_gpu_gives_the_same_outputs_as_a_cpu(
    cuda: torch.device, model: Seq2Seq, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word for word, with factors that are not rounded."""
    monkeypatch.setattr("sightline.decoding.engine.on_tensor_cores", lambda _: nullcontext())
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    sources, options = many_sources(40), Decoding(beam=beam, max_length=12)
    here = [result[0] for result in decode(model, make_requests(sources), options)]
    there = [result[0] for result in decode(model.to(cuda), make_requests(sources), options, device=cuda)]
    assert [h.tokens for h in there] == [h.tokens for h in here]
    assert [h.log_probability for h in there] == pytest.approx([h.log_probability for h in here], abs=1e-3)


@pytest.mark.cuda
@pytest.mark.parametrize("beam", [1, 4])
def test_with_rounded_factors_few_words_change_places(cuda: torch.device, model: Seq2Seq, beam: int) -> None:
    """Only some that are nearly even (and then what follows them); all others are as likely as they were.

    With factors cut to ten bits on a CPU, 4 of the 40 outputs change at most, and log-probabilities of others by 0.03.
    """
    sources, options = many_sources(40), Decoding(beam=beam, max_length=12)
    here = [result[0] for result in decode(model, make_requests(sources), options)]
    there = [result[0] for result in decode(model.to(cuda), make_requests(sources), options, device=cuda)]
    equal = [(h, t) for h, t in zip(here, there, strict=True) if h.tokens == t.tokens]
    assert len(equal) >= 32
    for first, second in equal:
        assert first.log_probability == pytest.approx(second.log_probability, abs=0.07)


@pytest.mark.parametrize("tokens", [60, 8_192])
def test_on_done_counts_every_sentence_once(model: Seq2Seq, tokens: int) -> None:
    """Those that were set aside, too; empty ones need no decoding."""
    sources, reported = [*many_sources(40), []], list[int]()
    decode(model, make_requests(sources), Decoding(beam=1, max_length=12, batch_tokens=tokens), on_done=reported.append)
    assert sum(reported) == 40
    assert tokens == 8_192 or len(reported) > 3


def test_a_gpu_decodes_more_at_once_unless_batch_tokens_is_set() -> None:
    assert Decoding().tokens_at_once("cuda") > Decoding().tokens_at_once("cpu")
    assert {Decoding(batch_tokens=77).tokens_at_once(device) for device in ("cpu", "cuda")} == {77}


def runs_on(first: int, prefix: list[int]) -> dict[int, float]:
    """Sentence 5 says thirty tokens more than all others."""
    return {END: 1.0} if len(prefix) == (32 if first == 5 else 2) else {4: 1.0}


@pytest.mark.parametrize("beam", [1, 2])
def test_the_last_sentences_of_batches_finish_together(
    script: type[Any], beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches of ten; one sentence of each runs on."""
    monkeypatch.setattr("sightline.decoding.engine._threads", lambda *_: 1)  # several would even the batches out
    sources, model, done = [[5 if number % 10 == 3 else 6] for number in range(40)], script(runs_on), list[int]()
    options = Decoding(beam=beam, batch_tokens=20 * beam, max_ratio=50.0)  # a word and an end each
    result = decode(model, make_requests(sources), options, on_done=done.append)
    assert [len(beams[0].tokens) for beams in result] == [32 if source == [5] else 2 for source in sources]
    assert len(model.rows) <= 4 * 3 + 30  # steps; one batch after the other would take 4 · 33
    assert done == [9, 9, 9, 9, 4]


def test_many_set_aside_rows_continue_before_the_next_batch(script: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.decoding.engine._threads", lambda *_: 1)
    sources, model = [[5 if number % 10 == 3 else 6] for number in range(200)], script(runs_on)
    result = decode(model, make_requests(sources), Decoding(beam=1, batch_tokens=20, max_ratio=50.0))
    assert [len(beams[0].tokens) for beams in result] == [32 if source == [5] else 2 for source in sources]
    assert max(model.rows) == 10


def test_a_slow_batch_is_decoded_though_all_others_are_long_done(
    script: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        if first == 5:
            time.sleep(0.005)
        return {END: 1.0} if len(prefix) == (30 if first == 5 else 2) else {4: 1.0}

    monkeypatch.setattr("sightline.decoding.engine._threads", lambda *_: 2)
    sources = [[5, 6], *[[6, 6]] * 15, *[[6]] * 24]  # the longest come first
    result = decode(script(rule), make_requests(sources), Decoding(beam=1, batch_tokens=48, max_ratio=50.0))
    assert [len(beams[0].tokens) for beams in result] == [30, *[2] * 39]


@pytest.mark.parametrize(
    ("options", "rows"), [({"beam": 2, "batch_tokens": 8}, 2), ({"sample": {}, "nbest": 4, "batch_tokens": 16}, 8)]
)
def test_all_hypotheses_count_among_the_tokens_of_a_batch(
    script: type[Any], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], rows: int
) -> None:
    """Two sentences of a word and an end, two or four hypotheses each (a beam begins with one)."""
    monkeypatch.setattr("sightline.decoding.engine._threads", lambda *_: 1)
    model = script(lambda first, prefix: {END: 1.0})
    decode(model, make_requests([[5]] * 6), Decoding.model_validate(options))
    assert model.rows[0] == rows


def test_where_there_are_no_sources_nothing_is_gone_on_with_too(script: type[Any]) -> None:
    model = script(lambda first, prefix: {4: 0.9, 5: 0.1} if len(prefix) < 2 else {END: 1.0})
    result = decode(model, make_requests(prefixes=[[], [5]]), Decoding(beam=2))
    assert [beams[0].tokens for beams in result] == [[4, 4], [5, 4]]


def test_a_sentence_without_an_output_is_decoded_and_reported_once(script: type[Any]) -> None:
    model, reported = script(lambda first, prefix: {4: 0.5, END: 0.5}), list[int]()
    request = make_requests([[5]], demands=[Demands(required=((7, 8),))], edges=Edges.none(12))
    assert decode(model, request, Decoding(beam=2, max_length=4), on_done=reported.append) == [[]]
    assert reported == [1]
    assert model.rows[0] == 1 and model.rows.count(1) == 1  # a search begins with one hypothesis


@pytest.mark.parametrize(
    ("sentences", "width", "few"), [(7, 1, 0), (16, 1, 2), (118, 1, 8), (640, 1, 20), (40, 5, 1), (118, 5, 3)]
)
def test_a_few_rows_are_not_worth_a_step_unless_the_batch_is_small(sentences: int, width: int, few: int) -> None:
    assert few_of(sentences, width) == few


def test_outputs_come_in_the_order_of_the_sources(script: type[Any]) -> None:
    """Each sentence says its first word over and over, as often as that word's number."""

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        return {END: 1.0} if len(prefix) == first else {first: 1.0}

    sources = [[first] * length for first, length in [(5, 2), (9, 7), (4, 1), (8, 7), (6, 30), (4, 3)]]
    for beam in (1, 3):
        result = decode(script(rule), make_requests(sources), Decoding(beam=beam, batch_tokens=20))
        assert [beams[0].tokens for beams in result] == [[source[0]] * source[0] for source in sources]


@pytest.mark.parametrize("beam", [1, 3])
def test_finished_sentences_leave_the_batch(script: type[Any], beam: int) -> None:
    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        return {END: 1.0} if len(prefix) == first - 4 else {4: 1.0}

    model = script(rule)
    decode(model, make_requests([[first] for first in range(4, 12)]), Decoding(beam=beam))  # 0 to 7 words
    alive = [sum(first - 4 >= step for first in range(4, 12)) for step in range(8)]  # 8, 7, ... 1
    width = [1, *[beam] * 7]
    assert model.rows == [rows * wide for rows, wide in zip(alive, width, strict=True)]


def test_a_sentence_that_is_done_but_not_yet_gone_gains_nothing(script: type[Any]) -> None:
    """With few of many done, rows stay in the batch for a while; what they say there must not count.

    Sentence 5 has its two finished hypotheses after two steps; the third, longer one would score better.
    """

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        if first == 5:
            if not prefix:
                return {END: 0.4, 6: 0.35, 7: 0.25}
            if len(prefix) == 1:
                return {END: 0.9, 8: 0.1} if prefix == [6] else {8: 1.0}
            return {END: 1.0}
        return {4: 1.0} if len(prefix) < 6 else {END: 1.0}

    options = Decoding(beam=2, nbest=2, length_penalty=2.0, stopping="count")
    (alone,) = decode(script(rule), make_requests([[5]]), options)
    assert sorted(h.tokens for h in alone) == [[], [6]]
    result = decode(script(rule), make_requests([[5], *[[9]] * 30]), options)[0]
    assert [h.tokens for h in result] == [h.tokens for h in alone]


def test_an_empty_source_gives_an_empty_output_without_any_decoding(script: type[Any]) -> None:
    model = script(lambda first, prefix: {END: 1.0} if prefix else {6: 1.0})
    result = decode(model, make_requests([[], [5], []]), Decoding(beam=2))
    assert [[h.tokens for h in beams] for beams in result] == [[[]], [[6]], [[]]]
    assert model.rows[0] == 1
    assert decode(model, make_requests([[], []]), Decoding()) == [[Hypothesis([], 0.0, 0.0)]] * 2
    assert decode(model, make_requests([]), Decoding()) == []


# --- side by side ------------------------------------------------------------------------------------------------


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3, "nbest": 3}, {"sample": {"seed": 2}, "nbest": 2}])
def test_batches_decoded_side_by_side_come_out_as_one_after_the_other(model: Seq2Seq, options: dict[str, Any]) -> None:
    sources = [[word] * length for word in (5, 8, 11) for length in (1, 2, 3)]
    chosen = Decoding.model_validate({**options, "max_length": 8, "batch_tokens": 12})
    together = decode(model, make_requests(sources), chosen)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    alone = decode(model, make_requests(sources), chosen)
    assert [[h.tokens for h in beams] for beams in together] == [[h.tokens for h in beams] for beams in alone]


@pytest.mark.usefixtures("two_threads")
def test_several_batches_have_a_core_each_and_one_alone_has_all(script: type[Any]) -> None:
    cores: set[int] = set()

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        cores.add(torch.get_num_threads())
        return {END: 1.0}

    decode(script(rule), make_requests([[5]] * 2), Decoding(beam=1, batch_tokens=2))
    assert cores == {1}
    cores.clear()
    decode(script(rule), make_requests([[5]] * 2), Decoding(beam=1))
    assert cores == {2}
    other = Thread(target=lambda: cores.add(10 * torch.get_num_threads()))
    other.start()
    other.join()
    assert cores == {2, 20}  # who comes later has them all again


@pytest.mark.usefixtures("two_threads")
def test_coverage_decodes_one_batch_at_a_time(model: Seq2Seq) -> None:
    plain, covered = (make_requests([[5]], options=Decoding(coverage_penalty=beta)) for beta in (0.0, 0.1))
    assert _threads(model, "cpu", plain) == 2
    assert _threads(model, "cpu", covered) == _threads(model, "cuda", plain) == 1


@pytest.mark.usefixtures("two_threads")
def test_a_recorded_model_decodes_one_batch_at_a_time() -> None:
    order: list[str] = []

    class Heard(TapModule):
        looks, longest = (), None

        def encode(self, source: torch.Tensor, layout: Any) -> torch.Tensor:
            order.append("begin")
            time.sleep(0.02)
            self.tap("source", source)
            order.append("end")
            return source

        def begin(self, memory: torch.Tensor) -> Any:
            return None

        def advance(self, tokens: torch.Tensor, state: Any, layout: Any = None) -> tuple[torch.Tensor, Any]:
            features = torch.zeros(len(tokens), 1, 6)
            features[..., END] = 9.0
            return features, state

        def logits(self, features: torch.Tensor) -> torch.Tensor:
            return features

    tapped: list[Tapped] = []
    model = Heard()
    with on_taps(model, tapped.append):
        decode(model, make_requests([[5]] * 4), Decoding(beam=1, batch_tokens=1))
    assert order == ["begin", "end"] * 4
    assert len(tapped) == 4


def test_after_an_error_no_item_is_started_and_threads_are_restored() -> None:
    started: list[int] = []

    def work(item: int) -> None:
        started.append(item)
        time.sleep(0.02)
        if item == 0:
            raise ValueError("the first one fails")

    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="the first one fails"):
        side_by_side(work, range(50), threads=2)
    assert len(started) < 10
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("threads", [1, 3])
def test_all_the_work_is_done_once(threads: int) -> None:
    done: list[int] = []
    side_by_side(done.append, range(20), threads=threads)
    assert sorted(done) == list(range(20))
