"""Gated convolutions whose layers are not as wide as the model: the maps between both, and what stays as wide as it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from sightline.inspection.recorder import record
from sightline.layers.layout import Padded
from sightline.layers.tap import on_taps
from sightline.models.convolutional.config import ConvolutionalConfig
from sightline.models.convolutional.convs2s import ConvolutionalDecoder, WidthMap
from sightline.models.seq2seq import Seq2Seq, parameter_count
from sightline.recipe.model import ModelConfig

WIDTH = 8
CONVOLUTIONAL = {"kind": "convolutional", "layers": 2, "positions": {"max_positions": 32}, "dropout": 0.0}
SOURCES = (torch.tensor([[5, 9, 4, 7, 3], [6, 3, 0, 0, 0], [12, 8, 5, 3, 0]]), Padded.of([5, 2, 4]))
TARGETS = (torch.tensor([[2, 7, 5, 11], [2, 4, 0, 0], [2, 0, 0, 0]]), Padded.of([4, 2, 1]))


@torch.no_grad()
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("inputs", "outputs"), [(200, 1500), (1500, 200)])
def test_a_map_to_another_width_keeps_the_variance_from_before_dropout(
    inputs: int, outputs: int, dropout: float
) -> None:
    torch.manual_seed(1)
    x = torch.randn(300, inputs)
    result = WidthMap(inputs, outputs, "W x + b", 1 - dropout)(nn.functional.dropout(x, dropout))
    assert float(result.var()) == pytest.approx(float(x.var()), rel=0.05)


def test_only_input_projections_compensate_for_dropout() -> None:
    """Rows of n weights of variance p / n are √p long."""
    body = {**CONVOLUTIONAL, "layers": 1, "channels": 300, "dropout": 0.4}
    model = Seq2Seq(ModelConfig.model_validate({"width": 200, "encoder": body, "decoder": body}), 9, 9)
    lengths = {
        name: float(weight.mean()) for name, weight in model.state_dict().items() if name.endswith(".project.length")
    }
    assert lengths["encoder.input_projection.project.length"] == pytest.approx(math.sqrt(0.6), rel=0.02)
    assert lengths["decoder.input_projection.project.length"] == pytest.approx(math.sqrt(0.6), rel=0.02)
    for path in (
        "encoder.output_projection",
        "decoder.output_projection",
        "decoder.attentions.0",
        "decoder.attentions.0.output_projection",
    ):
        assert lengths[f"{path}.project.length"] == pytest.approx(1, rel=0.02)


def test_layers_of_the_models_width_have_no_maps(build_model: Callable[..., Seq2Seq]) -> None:
    message = {**CONVOLUTIONAL, "channels": WIDTH}
    plain, named = build_model(CONVOLUTIONAL, CONVOLUTIONAL), build_model(message, message)
    assert not any({"enter", "leave", "back"} & set(name.split(".")) for name in plain.state_dict())
    assert plain.state_dict().keys() == named.state_dict().keys()
    assert all(torch.equal(weight, named.state_dict()[name]) for name, weight in plain.state_dict().items())


def test_layers_of_another_width_have_as_many_numbers_as_are_counted_by_hand() -> None:
    """Each row of a normalized weight has a length and a bias beside its direction."""

    def product(inputs: int, outputs: int) -> int:
        return outputs * (inputs + 2)

    sections = {
        "width": 8,
        "encoder": {**CONVOLUTIONAL, "layers": 3, "kernel": 5, "channels": 12},
        "decoder": {**CONVOLUTIONAL, "layers": 2, "kernel": 4, "channels": 20},
    }
    model = Seq2Seq(ModelConfig.model_validate(sections), 13, 13)
    positions = 32 * 8
    reading = positions + product(8, 12) + 3 * product(5 * 12, 2 * 12) + product(12, 8)
    looking = product(20, 8) + product(8, 20)
    writing = positions + product(8, 20) + 2 * (product(4 * 20, 2 * 20) + looking) + product(20, 8)
    assert parameter_count(model.encoder) == reading
    assert parameter_count(model.decoder) == writing
    alone = ConvolutionalDecoder(ConvolutionalConfig.model_validate(sections["decoder"]), 8, source=False)
    assert parameter_count(alone) == writing - 2 * looking


def test_outputs_have_the_model_width_for_any_layer_width(
    build_model: Callable[..., Seq2Seq],
) -> None:
    model = build_model({**CONVOLUTIONAL, "channels": 12}, {**CONVOLUTIONAL, "channels": 20})
    memory = model.encode(*SOURCES)
    assert memory.states.shape == memory.embeddings.shape == (3, 5, WIDTH)
    state = model.begin(memory)
    assert state.source.keys.shape == state.source.values.shape == (3, 1, 5, WIDTH)
    assert [part.shape for part in state.recent] == [(3, 1, 2, 20)] * 2
    features, state = model.advance(torch.tensor([[2], [2], [2]]), state)
    assert features.shape == (3, 1, WIDTH)
    assert [part.shape for part in state.recent] == [(3, 1, 2, 20)] * 2


@torch.no_grad()
def test_under_autocast_sums_over_wider_layers_are_still_in_float32(build_model: Callable[..., Seq2Seq]) -> None:
    model, taps = build_model(*[{**CONVOLUTIONAL, "channels": 12}] * 2), {}
    with (
        torch.autocast("cpu", torch.bfloat16),
        on_taps(model, lambda tapped: taps.update({tapped.name: tapped.tensor})),
    ):
        features = model(*SOURCES, *TARGETS)
    assert features.dtype == torch.float32
    sums = [name for name in taps if re.fullmatch(r"(encoder|decoder)\.((layers|attentions)\.\d\.)?output", name)]
    assert len(sums) == 2 + 2 + 2 + 2
    assert {taps[name].dtype for name in sums} == {torch.float32}


def test_a_trace_tells_the_maps_by_their_formulas(build_model: Callable[..., Seq2Seq]) -> None:
    model = build_model({**CONVOLUTIONAL, "layers": 1, "channels": 12}, {**CONVOLUTIONAL, "layers": 1, "channels": 20})
    with record(model) as trace:
        model(*SOURCES, *TARGETS)
    shapes = {
        step.name: (step.formula, step.shape[-1])
        for step in trace
        if {"input_projection", "output_projection"} & set(step.name.split("."))
    }
    assert shapes == {
        "encoder.input_projection.output": ("W e + b", 12),
        "encoder.output_projection.output": ("W h + b", WIDTH),
        "decoder.input_projection.output": ("W g + b", 20),
        "decoder.attentions.0.output_projection.output": ("W √S context + b", 20),
        "decoder.output_projection.output": ("W h + b", WIDTH),
    }
    assert trace.find("decoder.attentions.0.output").formula == "√½ (h + output_projection)"
