"""Counts asked like any other decoder: the same distributions, the same search."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from random_beams import joined_at_random

from sightline.decoding.engine import decode
from sightline.decoding.request import make_requests
from sightline.decoding.scoring import log_probabilities, stream_losses
from sightline.models.ngram import CountedModel, NgramModel
from sightline.recipe import Decoding

START, END, VOCABULARY = 2, 3, 9
TEXTS = [[4, 5, 6], [4, 5, 7, 8], [5, 5, 6], [4], [7, 8, 7, 8, 7]]


@pytest.fixture(params=[1, 2, 3, 5])
def model(request: pytest.FixtureRequest) -> CountedModel:
    return CountedModel(NgramModel.train(TEXTS, order=request.param, vocabulary_size=VOCABULARY, start=START, end=END))


def test_probabilities_equal_those_of_the_counts(model: CountedModel) -> None:
    expected = model.trained.log_probabilities(TEXTS)
    for text, logs in zip(TEXTS, expected, strict=True):
        features, _ = model.advance(torch.tensor([[START, *text]]), model.begin_empty(1))
        result = model.logits(features)[0].log_softmax(-1).gather(1, torch.tensor([*text, END])[:, None])[:, 0]
        np.testing.assert_allclose(result.numpy(), logs, atol=1e-5)
        np.testing.assert_allclose(stream_losses(model, np.array([*text, END]), context=9, stride=9), -logs, atol=1e-5)
    totals = log_probabilities(model, [[]] * len(TEXTS), TEXTS)
    np.testing.assert_allclose(totals, [logs.sum() for logs in expected], atol=1e-4)


def test_cached_is_uncached(model: CountedModel) -> None:
    texts = torch.tensor([[START, 4, 5, 7, 8], [START, 5, 5, 6, 4]])
    whole, _ = model.advance(texts, model.begin_empty(2))
    for cuts in ([1] * 5, [2, 3], [4, 1]):
        state, result = model.begin_empty(2), []
        for part in texts.split(cuts, dim=1):
            features, state = model.advance(part, state)
            result.append(features)
        torch.testing.assert_close(torch.cat(result, dim=1), whole, rtol=0, atol=0)


def test_a_sentence_that_joins_a_running_batch_continues_as_if_alone(model: CountedModel) -> None:
    for features, _, past in joined_at_random(model.advance, lambda rows: model.begin_empty(len(rows))):
        torch.testing.assert_close(features.exp(), torch.from_numpy(model.trained.distribution(past)).float())


def test_every_hypothesis_continues_its_own_past(model: CountedModel) -> None:
    _, state = model.advance(torch.tensor([[START], [START]]), model.begin_empty(2))
    state = state.select(torch.tensor([[0, 0, 0], [0, 0, 0]]))
    _, state = model.advance(torch.tensor([[4], [5], [7], [7], [4], [5]]), state)
    state = state.select(torch.tensor([[2, 0], [1, 1]])).keep(torch.tensor([1, 0]))
    result, _ = model.advance(torch.tensor([[5], [8], [8], [5]]), state)
    states = [[START, 4, 5], [START, 4, 8], [START, 7, 8], [START, 4, 5]]
    for features, past in zip(result, states, strict=True):
        np.testing.assert_allclose(features[0].exp().numpy(), model.trained.distribution(past), rtol=1e-5)


def test_a_beam_finds_the_likeliest_text(model: CountedModel) -> None:
    """Of all continuations of up to three tokens by trying them all; the beam is as wide as there are."""
    options = Decoding(beam=300, nbest=3, max_length=3, length_penalty=0.0)
    (result,) = decode(model, make_requests(prefixes=[[4]]), options)
    every = [[4, *rest] for length in range(4) for rest in product([1, 4, 5, 6, 7, 8], repeat=length)]
    totals = np.array([logs.sum() for logs in model.trained.log_probabilities(every)])
    best = np.argsort(-totals, kind="stable")[:3]
    assert [guess.log_probability for guess in result] == pytest.approx(totals[best].tolist(), abs=1e-4)
    for guess in result:
        (logs,) = model.trained.log_probabilities([guess.tokens])
        assert guess.log_probability == pytest.approx(float(logs.sum()), abs=1e-4)


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3}, {"sample": {"seed": 5}, "nbest": 2}], ids=str)
def test_texts_are_continued_the_same_in_a_batch_as_alone(model: CountedModel, options: dict[str, Any]) -> None:
    decoding = Decoding.model_validate({"max_length": 6, **options})
    prefixes = [[4], [], [7, 8, 7], [4, 5]]
    together = decode(model, make_requests(prefixes=prefixes), decoding)
    for number, prefix in enumerate(prefixes):
        (single,) = decode(model, make_requests(prefixes=[prefix], first=number), decoding)
        assert together[number] == single
        assert all(guess.tokens[: len(prefix)] == prefix for guess in single)
        assert all(len(guess.tokens) <= len(prefix) + 6 for guess in single)


def test_states_are_on_the_device_of_the_tokens() -> None:
    texts, parents = (torch.zeros(2, 3, dtype=torch.int64, device="meta") for _ in range(2))
    state = CountedModel().begin(texts).select(parents).keep(parents[0, :1])
    assert state.recent.device == texts.device and state.recent.shape == (1, 3, 0)


def test_a_model_without_counts_raises() -> None:
    with pytest.raises(ValueError, match="this n-gram model has not been counted yet; train it first"):
        CountedModel().advance(torch.tensor([[START]]), CountedModel().begin_empty(1))


def test_it_is_not_trained_by_gradients(model: CountedModel) -> None:
    assert list(model.parameters()) == []
    with pytest.raises(TypeError, match="counted, not trained by gradients"):
        model(None, None, torch.tensor([[START]]), None)
