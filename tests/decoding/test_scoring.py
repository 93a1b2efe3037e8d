"""What a model thinks of a given output, and where it looked."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sightline.decoding.generate import generate, length_batches, make_batch, pad_tokens, side_by_side
from sightline.decoding.scoring import attention_to_source, log_probabilities
from sightline.layers.layout import Padded
from sightline.layers.tap import TapModule, Tapped, listen
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Decoding

START, END = 2, 3
SOURCES = [[5, 9, 4], [6], [12, 8, 5, 7, 10], []]
TARGETS = [[7, 4], [8, 8, 9, 4, 10, 11], [], [5]]


def test_the_log_probability_is_the_sum_over_words_and_the_end(model: Seq2Seq) -> None:
    wanted = []
    with torch.no_grad():
        for source, target in zip(SOURCES, TARGETS, strict=True):
            state = model.begin(model.encode(torch.tensor([[*source, END]]), Padded.of([len(source) + 1])))
            total, before = 0.0, START
            for word in [*target, END]:
                features, state = model.advance(torch.tensor([[before]]), state)
                total += model.logits(features)[0, 0].double().log_softmax(-1)[word].item()
                before = word
            wanted.append(total)
    for tokens in (1, 4096):
        found = log_probabilities(model, SOURCES, TARGETS, tokens=tokens)
        assert found.tolist() == pytest.approx(wanted, rel=0, abs=2e-5)  # float32 logits, seven of them at most


def test_the_probabilities_of_all_short_outputs_add_up(script: type[Any]) -> None:
    """A model that must end after at most two words: its outputs are a distribution."""
    model = script(lambda first, said: {4: 0.5, 5: 0.25, END: 0.25} if len(said) < 2 else {END: 1.0})
    outputs = [[], [4], [5], [4, 4], [4, 5], [5, 4], [5, 5]]
    totals = []
    for output in outputs:
        state, total = model.begin(model.encode(torch.tensor([[6]]), Padded.of([1]))), 0.0
        for before, word in zip([START, *output], [*output, END], strict=True):
            features, state = model.advance(torch.tensor([[before]]), state)
            total += model.logits(features)[0, 0].log_softmax(-1)[word].item()
        totals.append(math.exp(total))
    assert sum(totals) == pytest.approx(1.0, abs=1e-6)


def test_attention_is_a_row_for_each_word_and_the_end(model: Seq2Seq) -> None:
    weights = attention_to_source(model, SOURCES[0], TARGETS[0])
    if not model.looks:
        assert weights is None
        return
    assert weights.shape == (3, 4)
    np.testing.assert_allclose(weights.sum(1), 1.0, rtol=0, atol=1e-6)  # float32 sums of four


def test_of_several_layers_the_last_but_one_is_shown(looking_model: Seq2Seq) -> None:
    model = looking_model
    heard: list[Tapped] = []
    with torch.no_grad(), listen(model, heard.append, model.looks):
        state = model.begin(model.encode(torch.tensor([[*SOURCES[0], END]]), Padded.of([4])))
        model.advance(torch.tensor([[START, *TARGETS[0]]]), state)
    layer = model.looks[-2:][0]
    weights = torch.cat([t.tensor[0].mean(0) for t in heard if t.name == f"{layer}.weights"])
    np.testing.assert_allclose(attention_to_source(model, SOURCES[0], TARGETS[0]), weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("tokens", "fewest"), [(1, 8), (7, 7), (40, 2), (1000, 1)])
def test_batches_by_length_hold_every_sentence_once_within_the_budget(tokens: int, fewest: int) -> None:
    lengths = [3, 9, 1, 4, 4, 12, 2, 9]
    batches = list(length_batches(lengths, tokens))
    assert sorted(index for batch in batches for index in batch) == list(range(8))
    flat = [lengths[index] for batch in batches for index in batch]
    assert flat == sorted(lengths, reverse=True)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= tokens
    assert len(batches) == fewest


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_several_batches_are_as_many_for_each_thread_and_even(threads: int) -> None:
    lengths = [1 + 7 * number % 23 for number in range(200)]
    batches = length_batches(lengths, 300, threads)
    assert len(batches) % threads == 0
    sizes = [len(batch) * lengths[batch[0]] for batch in batches]
    assert max(sizes) <= 300
    assert min(sizes) > 0.6 * max(sizes)
    assert len(length_batches(lengths[:9], 300, threads)) == 1


def test_a_batch_to_search_has_its_end_marks_limits_and_prefixes() -> None:
    batch = make_batch([[5, 6], [7]], Decoding(max_ratio=2.0, max_length=15), "cpu", prefixes=[[], [8] * 20])
    assert batch.source.tolist() == [[5, 6, END], [7, END, 0]]
    assert batch.layout.lengths.tolist() == [3, 2]
    assert batch.limits.tolist() == [15, 21]  # 2 · 3 + 10 = 16 is cut to 15; a prefix needs room for itself and the end
    assert batch.prefixes.tolist() == [[0] * 20, [8] * 20]


# --- batches side by side ----------------------------------------------------------------------------------------


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
    together = generate(model, sources, chosen)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    alone = generate(model, sources, chosen)
    assert [[h.tokens for h in beams] for beams in together] == [[h.tokens for h in beams] for beams in alone]


@pytest.mark.usefixtures("two_threads")
def test_who_listens_hears_one_batch_after_the_other() -> None:
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

    heard: list[Tapped] = []
    model = Heard()
    with listen(model, heard.append):
        generate(model, [[5]] * 4, Decoding(beam=1, batch_tokens=1))
    assert order == ["begin", "end"] * 4
    assert len(heard) == 4


def test_after_an_error_no_more_is_begun_and_the_threads_are_as_before() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        time.sleep(0.02)
        if item == 0:
            raise ValueError("the first one fails")

    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="the first one fails"):
        side_by_side(work, range(50), threads=2)
    assert len(begun) < 10
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("threads", [1, 3])
def test_all_the_work_is_done_once(threads: int) -> None:
    done: list[int] = []
    side_by_side(done.append, range(20), threads=threads)
    assert sorted(done) == list(range(20))


def test_tokens_are_padded_behind() -> None:
    assert pad_tokens([[5], [6, 7, 8]], "cpu").tolist() == [[5, 0, 0], [6, 7, 8]]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("beam", [1, 3])
def test_the_last_of_a_batch_are_decoded_with_the_last_of_others(
    script: type[Any], monkeypatch: pytest.MonkeyPatch, beam: int, threads: int
) -> None:
    """One of each batch says many more words than the others."""
    words = {4: 4, 5: 5, 11: 50}

    def rule(first: int, said: list[int]) -> dict[int, float]:
        return {END: 1.0} if len(said) == words[first] else {first: 1.0}

    monkeypatch.setattr("sightline.decoding.generate._FEW", 4)
    monkeypatch.setattr("sightline.decoding.generate._threads", lambda *_: threads)
    sources = [[first] for first in [5, 4, 11, 4, 5, 5, 11, 4, 4, 5, 5, 11, 11, 4, 5, 4]]
    model, options = script(rule), Decoding(beam=beam, batch_tokens=8 * beam, max_ratio=100)  # four a batch
    found = generate(model, sources, options)
    assert [beams[0].tokens for beams in found] == [source * words[source[0]] for source in sources]
    alone = script(rule)
    for start in range(0, 16, 4):
        generate(alone, sources[start : start + 4], options)
    assert threads == 2 or len(model.rows) < len(alone.rows)  # with two, it depends on who is first
