"""AdamW and the averages of weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sightline.models.weights import weights_of
from sightline.recipe import Training
from sightline.training.averaging import RunningAverage, mean_weights
from sightline.training.optimizers import build_optimizer


def some_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def test_weight_decay_applies_to_matrices_only() -> None:
    model = some_model()
    optimizer = build_optimizer(model, Training(lr=0.1, weight_decay=0.5))
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(parameter) for parameter in model.parameters() if parameter.dim() == 2}
    everything = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(everything) == len(list(model.parameters()))


def test_a_step_is_that_of_plain_adamw() -> None:
    model = some_model()
    other = copy.deepcopy(model)
    recipe = Training(lr=0.01, weight_decay=0.0, betas=(0.8, 0.9), eps=1e-2)  # large enough to matter
    ours = build_optimizer(model, recipe)
    theirs = torch.optim.AdamW(other.parameters(), lr=0.01, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.0, fused=False)
    x = torch.randn(5, 3)
    for _ in range(3):
        for part, optimizer in ((model, ours), (other, theirs)):
            optimizer.zero_grad()
            part(x).square().sum().backward()
            optimizer.step()
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-6)  # two float32 kernels, three steps of 0.01


def test_the_running_average_is_its_formula() -> None:
    """θ̄ ← d θ̄ + (1 − d) θ with d = min(decay, (1 + t) / (10 + t))."""
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(2.0)
    average = RunningAverage(model, 0.5)
    expected = 2.0
    for step, value in enumerate([3.0, -1.0, 4.0, 10.0, 0.0, 1.0, 2.0, 7.0, 7.0, 1.0], 1):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update(model, step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
        assert average.weights["weight"].item() == pytest.approx(expected, rel=1e-12)
    assert model.weight.item() == 1.0  # the model itself is not averaged


def test_averages_cover_saved_weights_and_shared_ones_once() -> None:
    model = nn.ModuleDict({"first": nn.Linear(2, 2), "second": nn.Linear(2, 2)})
    model["second"].weight = model["first"].weight
    model.register_buffer("mean", torch.zeros(2))
    model.register_buffer("table", torch.zeros(9), persistent=False)  # made anew, and maybe of another length
    assert set(weights_of(model)) == {"first.weight", "first.bias", "second.bias", "mean"}


def test_a_loaded_average_continues() -> None:
    model = some_model()
    one, other = RunningAverage(model, 0.9), RunningAverage(model, 0.9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    one.update(model, 5)
    other.load({name: weight.clone() for name, weight in one.weights.items()})
    for average in (one, other):
        average.update(model, 6)
    for name, weight in one.weights.items():
        assert torch.equal(weight, other.weights[name])


def test_the_mean_of_models_is_taken_weight_by_weight() -> None:
    models = [{"a": torch.tensor([float(n)]), "b": torch.full((2, 2), float(n * n))} for n in (1, 2, 6)]
    mean = mean_weights(models)
    assert mean["a"].tolist() == [3.0]
    torch.testing.assert_close(mean["b"], torch.full((2, 2), 41 / 3), rtol=1e-7, atol=0)
    assert mean["b"].dtype == torch.float32


def test_the_mean_is_summed_in_float64() -> None:
    models = [{"a": torch.tensor([value])} for value in (1e8, 1.0, -1e8)]  # float32 would lose the one
    assert mean_weights(models)["a"].item() == pytest.approx(1 / 3, rel=1e-6)


def test_the_mean_of_equal_models_is_that_model() -> None:
    weight = torch.randn(50)
    assert torch.equal(mean_weights([{"a": weight}] * 5)["a"], weight)
