"""What is trained, and how fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sightline.layers.adapters import add_adapters, is_adapter
from sightline.models.protocol import DECODERS, ENCODERS, Layered
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Training
from sightline.recipe.model import AdaptersConfig
from sightline.training.optimizers import build_optimizer, freeze, layer_lr_factors, matching, trained_count

BODY: dict[str, Any] = {
    "kind": "transformer",
    "layers": 3,
    "heads": 2,
    "positions": {"kind": "learned", "max_positions": 8},
    "feedforward": {"width": 12},
}
GRU = {"kind": "recurrent", "cell": "gru", "layers": 2}


@pytest.fixture
def model(build_model: Callable[..., Seq2Seq]) -> Seq2Seq:
    return build_model(BODY, {**BODY, "layers": 2})


def names(model: Seq2Seq) -> list[str]:
    return [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize(
    ("pattern", "first", "count"),
    [
        ("embeddings", "target_embedding.weight", 2),
        ("encoder.1", "encoder.layers.1.attention.qkv.weight", 12),
        ("encoder.layers.1", "encoder.layers.1.attention.qkv.weight", 12),
        ("encoder.1.attention", "encoder.layers.1.attention.qkv.weight", 4),
        ("decoder.norm", "decoder.norm.weight", 2),
        ("output.bias", "output.bias", 1),
        ("enc", "", 0),  # the beginning of a name, but not up to a dot
        ("encoder.11", "", 0),
    ],
)
def test_freeze_patterns_name_embeddings_layers_or_parameters(
    pattern: str, first: str, count: int, model: Seq2Seq
) -> None:
    found = matching(model, pattern)
    assert len(found) == count
    assert not found or found[0] == first


def test_frozen_parameters_have_no_gradient_and_no_state_and_stay(model: Seq2Seq) -> None:
    freeze(model, ["embeddings", "encoder.0"])
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {*matching(model, "embeddings"), *matching(model, "encoder.0")}
    assert trained_count(model) == sum(p.numel() for name, p in model.named_parameters() if name not in frozen)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, Training(lr=0.1, weight_decay=0.1))
    sum(parameter.square().sum() for parameter in model.parameters() if parameter.requires_grad).backward()
    optimizer.step()
    held = {id(parameter) for parameter in optimizer.state}
    for name, parameter in model.named_parameters():
        assert (name in frozen) == (parameter.grad is None) == (id(parameter) not in held)
        assert (name in frozen) == torch.equal(parameter, before[name]), name


def test_a_frozen_layer_is_frozen_with_its_adapters(model: Seq2Seq) -> None:
    add_adapters(model, AdaptersConfig())
    freeze(model, ["encoder.0"])
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad and is_adapter(name)}
    assert learning
    assert not any(name.startswith("encoder.layers.0.") for name in learning)


def test_an_unknown_freeze_pattern_is_an_error_that_lists_the_parts(model: Seq2Seq) -> None:
    with pytest.raises(ValueError, match=r"called 'encoder\.3'; it has embeddings, .*encoder\.0, .*decoder\.norm"):
        freeze(model, ["encoder.3"])


def test_learning_rates_decay_from_the_top_layer(model: Seq2Seq) -> None:
    new = ["decoder.layers.0.cross_attention.qkv.weight"]
    rates = layer_lr_factors(model, 0.5, new)
    assert rates.keys() == set(names(model))
    for layer, rate in enumerate([0.25, 0.5, 1.0]):
        assert {rates[name] for name in matching(model, f"encoder.{layer}")} == {rate}
    assert rates["decoder.layers.1.attention.qkv.weight"] == 1.0
    assert rates["decoder.layers.0.attention.qkv.weight"] == 0.5
    assert rates[new[0]] == 1.0
    assert rates["encoder.positions.table"] == 0.125
    assert rates["decoder.positions.table"] == 0.25
    assert rates["source_embedding.weight"] == rates["target_embedding.weight"] == 0.125
    assert rates["encoder.norm.weight"] == rates["output.bias"] == 1.0


def test_learning_rates_decay_over_recurrent_layers(build_model: Callable[..., Seq2Seq]) -> None:
    model = build_model(GRU, GRU)
    rates = layer_lr_factors(model, 0.5)
    assert {rates[name] for name in matching(model, "encoder.0")} == {0.5}
    assert {rates[name] for name in matching(model, "decoder.1")} == {1.0}


def test_parameters_of_a_layer_in_other_modules_are_frozen_and_decayed_with_it(
    build_model: Callable[..., Seq2Seq],
) -> None:
    convolutions = {"kind": "convolutional", "layers": 2}
    linked = {"kind": "recurrent", "layers": 2, "skip_connections": "fast-forward", "experts": {"count": 2}}
    window = {"kind": "window", "layers": 2}
    model = build_model(convolutions, convolutions)
    rates = layer_lr_factors(model, 0.5)
    assert {rates[name] for name in names(model) if name.startswith("decoder.attentions.0.")} == {0.5}
    assert rates["encoder.embed_positions.positions.table"] == rates["source_embedding.weight"] == 0.25
    assert "decoder.attentions.0.project.direction" in matching(model, "decoder.0")
    wider = {**convolutions, "channels": 12}
    model = build_model(wider, wider)
    rates = layer_lr_factors(model, 0.5)
    assert rates["encoder.input_projection.project.direction"] == rates["decoder.input_projection.project.bias"] == 0.25
    assert (
        rates["encoder.output_projection.project.direction"] == rates["decoder.output_projection.project.bias"] == 1.0
    )
    assert rates["decoder.attentions.0.output_projection.project.length"] == 0.5
    assert "decoder.attentions.0.output_projection.project.length" in matching(model, "decoder.0")
    model = build_model(linked, linked)
    rates = layer_lr_factors(model, 0.5)
    assert rates["encoder.skip_connections.0.map.weight"] == 0.5
    assert rates["encoder.skip_connections.1.map.weight"] == rates["encoder.between.experts.1.gate"] == 1.0
    assert "decoder.skip_connections.0.map.weight" in matching(model, "decoder.0")
    model = build_model(window, GRU)
    lowest = matching(model, "encoder.0")
    assert lowest and {layer_lr_factors(model, 0.5)[name] for name in lowest} == {0.25}  # two hidden, and one above
    with pytest.raises(ValueError, match=r"it has embeddings, .*encoder\.0, encoder\.1, encoder\.2, decoder\.0"):
        freeze(model, ["encoder.net.0"])


class House(nn.Module):
    """A body nobody knows, with names of its own."""

    by_layer = ("floors", "stairs.down")
    below = ("cellar",)

    def __init__(self) -> None:
        super().__init__()
        self.cellar = nn.Linear(2, 2, bias=False)
        self.floors = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))
        self.stairs = nn.ModuleDict({"down": nn.ModuleDict({"1": nn.Linear(2, 2, bias=False)})})
        self.roof = nn.Linear(2, 2, bias=False)


def test_a_plugin_body_declares_its_layers_for_freezing_and_decay() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(3, 2), "decoder": House()})
    assert layer_lr_factors(model, 0.5) == {
        "embedding.weight": 0.125,
        "decoder.cellar.weight": 0.125,
        "decoder.floors.0.weight": 0.25,
        "decoder.floors.1.weight": 0.5,
        "decoder.floors.2.weight": 1.0,
        "decoder.stairs.down.1.weight": 0.5,
        "decoder.roof.weight": 1.0,
    }
    assert matching(model, "decoder.1") == ["decoder.floors.1.weight", "decoder.stairs.down.1.weight"]
    with pytest.raises(ValueError, match=r"has embeddings, .*decoder\.cellar, decoder\.0, decoder\.1, decoder\.2, "):
        freeze(model, ["decoder.3"])


@pytest.mark.parametrize("kind", sorted(set(ENCODERS) & set(DECODERS)))
def test_every_body_declares_its_layers(kind: str, build_model: Callable[..., Seq2Seq]) -> None:
    body = {"kind": kind, "layers": 2} | ({"heads": 2} if kind == "transformer" else {})
    model = build_model(body, body)
    for side in ("encoder", "decoder"):
        assert isinstance(model.get_submodule(side), Layered)
        assert matching(model, f"{side}.0") and matching(model, f"{side}.1")


def test_the_optimizer_uses_the_learning_rate_of_each_parameter(model: Seq2Seq) -> None:
    rates = layer_lr_factors(model, 0.5)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, Training(lr=0.1, eps=1e-12), rates)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():  # the first step of Adam is lr · sign of the gradient
        torch.testing.assert_close(before[name] - parameter, torch.full_like(parameter, 0.1 * rates[name]))
    for group in optimizer.param_groups:
        assert group["lr"] == 0.1 * group["factor"]
