"""How likely each token of a text is: by windows that slide, by rows that go on, by counts."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_models import shared
from sightline.decoding.scoring import stream_losses
from sightline.layers.layout import Padded
from sightline.models.language_model import LanguageModel
from sightline.recipe.model import ModelConfig

VOCABULARY, START = 13, 2
BODIES: dict[str, dict[str, Any]] = {
    "lstm": {"kind": "recurrent", "cell": "lstm", "attention": {"kind": "none"}, "dropout": 0.0},
    "gru": {"kind": "recurrent", "cell": "gru", "layers": 2, "attention": {"kind": "none"}, "dropout": 0.0},
    "window": {"kind": "window", "size": 3, "dropout": 0.0},
    "convolutional": {"kind": "convolutional", "layers": 1, "positions": {"max_positions": 8}, "dropout": 0.0},
    "bytenet": {"kind": "bytenet", "layers": 2, "dilations": [1, 2], "dropout": 0.0},
    "rotary": {"kind": "transformer", "layers": 1, "heads": 2, "positions": {"kind": "rotary"}, "dropout": 0.0},
    "learned": {
        "kind": "transformer",
        "layers": 1,
        "heads": 2,
        "positions": {"kind": "learned", "max_positions": 8},
        "dropout": 0.0,
    },
}


@cache
def built(body: str) -> Any:
    torch.manual_seed(0)
    model = LanguageModel(ModelConfig.model_validate({"width": 8, "decoder": BODIES[body], "tie": "none"}), VOCABULARY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return shared(model.eval())


def stream(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(3, VOCABULARY, length).astype(np.uint32)


@torch.no_grad()
def losses_after_start(model: Any, text: np.ndarray) -> np.ndarray:
    """−log p of each token of one text behind a start mark, by one `forward`."""
    given_ = torch.tensor([[START, *text[:-1].tolist()]])
    logs = model.logits(model(None, None, given_, Padded.of([len(text)])))[0].log_softmax(-1)
    return -logs[torch.arange(len(text)), torch.from_numpy(text.astype(np.int64))].double().numpy()


@torch.no_grad()
def token_by_token(model: Any, text: np.ndarray) -> np.ndarray:
    state, result = model.begin_empty(1), []
    for before, token in zip([START, *text[:-1].tolist()], text.tolist(), strict=True):
        features, state = model.advance(torch.tensor([[before]]), state)
        result.append(-float(model.logits(features)[0, 0].log_softmax(-1)[token]))
    return np.array(result)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("length", [1, 5, 8, 9, 16, 29])
def test_windows_side_by_side_are_a_loop_over_them(body: str, length: int) -> None:
    model, text = built(body), stream(length)
    expected = []
    for at in range(0, length, 8):  # the last window reaches back over what the one before it has scored
        begin = max(0, min(at, length - 8))
        expected.append(losses_after_start(model, text[begin : at + 8])[at - begin :])
    result = stream_losses(model, text, context=8, stride=8, tokens=24)
    np.testing.assert_allclose(result, np.concatenate(expected), atol=1e-5)


@settings(max_examples=40)
@given(length=st.integers(1, 40), stride=st.integers(1, 6), tokens=st.integers(1, 40))
def test_sliding_windows_score_every_token_once_with_enough_before_it(length: int, stride: int, tokens: int) -> None:
    """Each token by the window that first reaches it, whatever is computed side by side."""
    model, text, context = built("rotary"), stream(length), 6
    expected = np.full(length, np.nan)
    end = min(context, length)
    while np.isnan(expected).any():
        begin = max(0, end - context)
        own = losses_after_start(model, text[begin:end])
        fresh = np.isnan(expected[begin:end])
        expected[begin:end][fresh] = own[fresh]
        end = min(end + stride, length)
    result = stream_losses(model, text, context=context, stride=stride, tokens=tokens)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_no_more_windows_are_read_at_once_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = built("rotary"), list[int]()
    advance = model.advance
    monkeypatch.setattr(model, "advance", lambda tokens, state: (sizes.append(len(tokens)), advance(tokens, state))[1])
    stream_losses(model, stream(40), context=8, stride=8, tokens=20)
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("body", ["lstm", "gru", "window", "bytenet", "rotary"])
def test_one_window_as_long_as_the_text_is_the_text_token_by_token(body: str) -> None:
    model, text = built(body), stream(19)
    for context in (19, 40):
        result = stream_losses(model, text, context=context, stride=5)
        np.testing.assert_allclose(result, token_by_token(model, text), atol=1e-5)


@pytest.mark.parametrize("body", ["lstm", "gru"])
@pytest.mark.parametrize(("length", "context"), [(1, 4), (3, 4), (37, 4), (40, 8), (41, 1)])
def test_a_carried_row_is_one_plain_pass_over_the_text(body: str, length: int, context: int) -> None:
    model, text = built(body), stream(length)
    result = stream_losses(model, text, context=context, stride=context, carry=True, tokens=context)
    np.testing.assert_allclose(result, token_by_token(model, text), atol=1e-5)


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_several_carried_rows_warm_up_on_the_window_before_their_part(rows: int) -> None:
    model, text, context = built("lstm"), stream(203), 10
    result = stream_losses(model, text, context=context, stride=context, carry=True, tokens=rows * context)
    bounds = np.linspace(0, len(text), rows + 1).astype(int)
    with torch.no_grad():
        for start, stop in pairwise(bounds.tolist()):
            begin = max(0, start - context)
            before = np.concatenate([[START], text])[begin:stop].astype(np.int64)
            features, _ = model.advance(torch.from_numpy(before)[None], model.begin_empty(1))
            logs = model.logits(features)[0].log_softmax(-1)
            own = -logs[torch.arange(stop - begin), torch.from_numpy(text[begin:stop].astype(np.int64))].numpy()
            np.testing.assert_allclose(result[start:stop], own[start - begin :], atol=1e-5)
    assert np.abs(result - token_by_token(model, text)).mean() < 1e-2  # the far past is as good as forgotten


def test_a_short_text_is_carried_in_one_row_however_many_there_is_room_for() -> None:
    model, text = built("lstm"), stream(79)
    result = stream_losses(model, text, context=10, stride=10, carry=True, tokens=1_000)
    np.testing.assert_allclose(result, token_by_token(model, text), atol=1e-5)


def test_carried_state_differs_from_a_fresh_state() -> None:
    model, text = built("lstm"), stream(40)
    anew = stream_losses(model, text, context=4, stride=4)
    carried = stream_losses(model, text, context=4, stride=4, carry=True, tokens=4)
    assert np.abs(anew[4:] - carried[4:]).max() > 1e-3
    np.testing.assert_allclose(anew[:4], carried[:4], atol=1e-5)
