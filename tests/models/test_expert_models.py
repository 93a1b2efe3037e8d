"""Bodies with experts owe training and search what all bodies do (test_decoders.py), and route real tokens alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from laid_out import packed, padded
from silent_parameters import silent_parameters
from torch import Tensor

from shared_models import own_copy, shared
from sightline.data.collate import StaticShape, packed_batch, padded_batch, seq2seq_ids
from sightline.layers.feedforward import Experts
from sightline.models.language_model import DecoderOnly
from sightline.models.recurrent.config import RecurrentDecoderConfig, RecurrentEncoderConfig
from sightline.models.seq2seq import Seq2Seq
from sightline.models.transformer.config import TransformerConfig
from sightline.recipe.model import ModelConfig
from sightline.tasks.losses import batch_loss
from sightline.training.callbacks import expert_layers

CLOSE = {"rtol": 0.0, "atol": 1e-5}
SOURCES = [[5, 9, 4, 7, 3], [6, 3], [12, 8, 5, 3]]
TARGETS = [[2, 7, 5, 11], [2, 4, 8, 8, 10, 6], [2]]
EXPERTS = {"count": 4, "top_k": 2, "capacity_factor": 0.2, "hidden": 12}  # so little that nearly all would be dropped


def transformer(kind: str, place: str, every: int) -> dict[str, Any]:
    experts = {**EXPERTS, "every": every}
    feedforward = {"kind": kind, "experts": experts}
    return {"kind": "transformer", "layers": 2, "heads": 2, "norm": {"place": place}, "feedforward": feedforward}


LSTM = {"kind": "recurrent", "layers": 2, "experts": EXPERTS}
GNMT = {"kind": "recurrent", "layers": 3, "skip_connections": "residual", "experts": EXPERTS}
FED = {"attention_from": "bottom", "input_feeding": True}
BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "transformer": (transformer("relu", "pre", 2), transformer("relu", "pre", 1)),
    "swiglu, post": (transformer("swiglu", "post", 1), transformer("swiglu", "post", 2)),
    "lstm": (LSTM, LSTM),
    "like GNMT": ({**GNMT, "directions": "bottom"}, {**GNMT, **FED}),
}


def stirred(model: Any) -> Any:
    """Without dropout, in evaluation mode, tokens choosing different experts."""
    for module in model.modules():
        if isinstance(module, Experts):
            torch.nn.init.normal_(module.gate)
        if hasattr(module, "probability"):
            module.probability = 0.0
    return model.eval()


@cache
def built(name: str) -> Seq2Seq:
    torch.manual_seed(0)
    encoder, decoder = BODIES[name]
    recipe = ModelConfig.model_validate({"width": 8, "encoder": encoder, "decoder": decoder, "tie": "none"})
    return shared(stirred(Seq2Seq(recipe, 13, 13)))


@pytest.fixture(params=list(BODIES))
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    return own_copy(built(request.param))


def together(model: Seq2Seq) -> list[Tensor]:
    features = model(*padded(SOURCES), *padded(TARGETS))
    return [row[: len(target)] for row, target in zip(features, TARGETS, strict=True)]


@torch.no_grad()
def test_cached_is_uncached(model: Seq2Seq) -> None:
    targets = torch.tensor([[2, 7, 5, 11, 4], [2, 4, 8, 8, 10], [2, 2, 6, 9, 12]])
    whole, _ = model.advance(targets, model.begin(model.encode(*padded(SOURCES))))
    state, result = model.begin(model.encode(*padded(SOURCES))), []
    for part in targets.split([1, 1, 3], dim=1):
        features, state = model.advance(part, state)
        result.append(features)
    torch.testing.assert_close(torch.cat(result, dim=1), whole, **CLOSE)


@torch.no_grad()
def test_packed_is_padded(model: Seq2Seq) -> None:
    torch.testing.assert_close(model(*packed(SOURCES), *packed(TARGETS)), torch.cat(together(model)), **CLOSE)


@torch.no_grad()
def test_a_sentence_does_not_see_its_neighbours_for_at_test_no_expert_is_full(model: Seq2Seq) -> None:
    for source, target, features in zip(SOURCES, TARGETS, together(model), strict=True):
        torch.testing.assert_close(model(*padded([source]), *padded([target]))[0], features, **CLOSE)


@torch.no_grad()
def test_hypotheses_of_a_beam_continue_their_own_pasts(model: Seq2Seq) -> None:
    state = model.begin(model.encode(*padded(SOURCES)))
    _, state = model.advance(torch.full((3, 1), 2), state)
    state = state.select(torch.zeros(3, 2, dtype=torch.int64))
    _, state = model.advance(torch.tensor([[4], [5]] * 3), state)
    state = state.select(torch.tensor([[1, 0]] * 3))
    result, _ = model.advance(torch.tensor([[7], [7]] * 3), state)
    alone = model(*padded(SOURCES * 2), *padded([[2, 5, 7]] * 3 + [[2, 4, 7]] * 3))[:, -1]
    torch.testing.assert_close(result[:, 0], alone.view(2, 3, 8).transpose(0, 1).reshape(6, 8), **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_decoding_after_the_source_equals_one_pass(name: str) -> None:
    decoder = BODIES[name][1] | ({"attention": {"kind": "none"}} if name == "lstm" else {})
    model = stirred(DecoderOnly(ModelConfig.model_validate({"width": 8, "decoder": decoder}), 13))
    result, _ = model.advance(torch.tensor([[2, 6]] * 3), model.begin(model.encode(*padded(SOURCES))))
    for source, features in zip(SOURCES, result, strict=True):
        whole = model(None, None, *padded([[*source, 2, 6]]))
        torch.testing.assert_close(features, whole[0, -2:], **CLOSE)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("transformer", ["encoder.1", "decoder.0", "decoder.1"]),
        ("swiglu, post", ["encoder.0", "encoder.1", "decoder.1"]),
        ("lstm", ["encoder.1", "decoder.1"]),
        ("like GNMT", ["encoder.2", "decoder.2"]),
    ],
)
def test_the_layers_that_should_have_experts_have_them(name: str, expected: list[str]) -> None:
    assert expert_layers(built(name)) == dict.fromkeys(expected, 4)


def test_experts_between_recurrent_layers_have_the_configured_or_default_width() -> None:
    for hidden, expected in ((12, 12), (None, 32)):
        body = {**LSTM, "experts": {**EXPERTS, "hidden": hidden}}
        model = Seq2Seq(ModelConfig.model_validate({"width": 8, "encoder": body, "decoder": body}), 13, 13)
        widths = {module.nets.down.shape[1] for module in model.modules() if isinstance(module, Experts)}
        assert widths == {expected}


def test_in_every_layout_each_real_token_is_counted_once_for_each_of_its_experts(model: Seq2Seq) -> None:
    sources, targets = ([np.array(side) for side in sides] for sides in (SOURCES, TARGETS))
    sides, examples = seq2seq_ids(sources, targets), np.arange(3)
    batches = [padded_batch(sides, examples), packed_batch(sides, examples)]
    if "recurrent" not in type(model.decoder).__name__.lower():  # which never has a static shape
        batches.append(packed_batch(sides, examples, StaticShape(40, 20, 9)))
    tokens = {"encoder": sum(map(len, SOURCES)) + 3, "decoder": sum(map(len, TARGETS)) + 3}  # and their marks
    model.train()
    for batch in batches:
        row = batch_loss(model, batch, 0.0).counts
        assert row is not None
        for number, name in enumerate(expert_layers(model)):
            *chosen, dropped = row[5 * number : 5 * number + 5].tolist()
            assert sum(chosen) == 2 * tokens[name.split(".")[0]]
            assert 0 < dropped < sum(chosen)
    model.eval()


def test_the_gradient_reaches_every_parameter(model: Seq2Seq) -> None:
    sides = seq2seq_ids([np.array(SOURCES[0])] * 30, [np.array(TARGETS[1])] * 30)
    model.train()
    loss = batch_loss(model, padded_batch(sides, np.arange(30)), 0.1)
    silent = silent_parameters(model, loss.total)
    model.eval()
    assert silent == []


@pytest.mark.parametrize(
    ("make", "body", "message"),
    [
        (TransformerConfig.model_validate, transformer("relu", "pre", 3), r"every \(3\) is more than layers \(2\)"),
        (
            RecurrentEncoderConfig.model_validate,
            {**LSTM, "layers": 1},
            "are between recurrent layers, and there is 1",
        ),
        (
            RecurrentDecoderConfig.model_validate,
            {**LSTM, "layers": 1},
            "are between recurrent layers, and there is 1",
        ),
        (
            RecurrentDecoderConfig.model_validate,
            {**LSTM, "input_feeding": True},
            "set input_feeding: false or attention_fr",
        ),
    ],
)
def test_bodies_without_a_place_for_experts_are_refused(
    make: Callable[[dict[str, Any]], Any], body: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(body)
