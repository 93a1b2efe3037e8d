"""What a model thinks of a given output, and where it looked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from sightline.decoding import scoring
from sightline.decoding.scoring import attention_to_source, log_probabilities
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.seq2seq import Seq2Seq

START, END = 2, 3
SOURCES = [[5, 9, 4], [6], [12, 8, 5, 7, 10], []]
TARGETS = [[7, 4], [8, 8, 9, 4, 10, 11], [], [5]]


def test_the_log_probability_is_the_sum_over_words_and_the_end(model: Seq2Seq) -> None:
    expected = []
    with torch.no_grad():
        for source, target in zip(SOURCES, TARGETS, strict=True):
            state = model.begin(model.encode(torch.tensor([[*source, END]]), Padded.of([len(source) + 1])))
            total, before = 0.0, START
            for word in [*target, END]:
                features, state = model.advance(torch.tensor([[before]]), state)
                total += model.logits(features)[0, 0].double().log_softmax(-1)[word].item()
                before = word
            expected.append(total)
    for tokens in (1, 4096):
        result = log_probabilities(model, SOURCES, TARGETS, tokens=tokens)
        assert result.tolist() == pytest.approx(expected, rel=0, abs=2e-5)  # float32 logits, seven of them at most


def test_a_pair_that_is_too_long_is_named_by_its_number_in_the_whole_input(
    model: Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "model_limits", lambda model: [(8, True)])
    with pytest.raises(ValueError, match="pair 2050 has 9 tokens, marks included, and this model takes 8"):
        log_probabilities(model, SOURCES, TARGETS, first=2048)


def test_only_a_source_in_the_same_sequence_shortens_the_target(
    model: Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limits in ([(9, True)], [(8, False), (9, True)]):  # the longest has 9 with its marks
        monkeypatch.setattr(scoring, "model_limits", lambda model, limits=limits: limits)
        assert len(log_probabilities(model, SOURCES, TARGETS)) == 4


def test_long_targets_of_short_sources_are_scored_a_few_at_a_time(
    model: Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, advance = list[int](), model.advance

    def watched(tokens: torch.Tensor, state: Any) -> Any:
        sizes.append(tokens.numel())
        return advance(tokens, state)

    monkeypatch.setattr(model, "advance", watched)
    log_probabilities(model, [[5]] * 6, [[4] * 9] * 6, tokens=20)
    assert sizes == [20, 20, 20]


def test_the_probabilities_of_all_short_outputs_add_up(script: type[Any]) -> None:
    """A model that must end after at most two words: its outputs are a distribution."""
    model = script(lambda first, prefix: {4: 0.5, 5: 0.25, END: 0.25} if len(prefix) < 2 else {END: 1.0})
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
    if not model.cross_attention_paths:
        assert weights is None
        return
    assert weights.shape == (3, 4)
    np.testing.assert_allclose(weights.sum(1), 1.0, rtol=0, atol=1e-6)  # float32 sums of four


def test_of_several_layers_the_last_but_one_is_shown(looking_model: Seq2Seq) -> None:
    model = looking_model
    tapped: list[Tapped] = []
    with torch.no_grad(), on_taps(model, tapped.append, model.cross_attention_paths):
        state = model.begin(model.encode(torch.tensor([[*SOURCES[0], END]]), Padded.of([4])))
        model.advance(torch.tensor([[START, *TARGETS[0]]]), state)
    layer = model.cross_attention_paths[-2:][0]
    weights = torch.cat([t.tensor[0].mean(0) for t in tapped if t.name == f"{layer}.weights"])
    np.testing.assert_allclose(attention_to_source(model, SOURCES[0], TARGETS[0]), weights, rtol=0, atol=1e-6)
