"""`inspect gradients`: the gradients of one update, against finite differences, plain gradient descent and PyTorch."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import nn

from shared_models import own_copy
from sightline.inspection.samples import example_batch
from sightline.inspection.update import one_update, update_view
from sightline.layers.losses import Loss
from sightline.plots.terminal import plain_text
from sightline.tasks.base import task_class
from sightline.training.optimizers import single_step
from untrained_runs import MODELS, untrained

KINDS = [
    "transformer",
    "recurrent",
    "convolutional",
    "decoder-only",
    "language-model",
    "classifier",
    "tagger",
    "experts",
]
TEXTS = {"language-model": ("Ein Hund", None), "classifier": ("a b c d", "A"), "tagger": ("a b c d", "A B A B")}


def numbers(kind: str, **options: Any) -> Any:
    run = untrained(kind)
    source, target = TEXTS.get(kind, ("Ein Hund bellt.", "A dog barks."))
    build, name, lr = single_step(run.recipe.training, options.pop("optimizer", "sgd"), options.pop("lr", None))
    return update_view(run, source, target, build, optimizer=name, lr=lr, **options).record()


def mean_loss(kind: str, model: nn.Module) -> torch.Tensor:
    """The loss of training, computed from the task alone."""
    run = untrained(kind)
    source, target = TEXTS.get(kind, ("Ein Hund bellt.", "A dog barks."))
    batch = example_batch(run.recipe, run.vocabulary, source, source if target is None else target)
    loss: Loss = task_class(run.recipe).loss(model, batch, run.recipe.training.label_smoothing)
    return loss.total / batch.tokens


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_after_the_step_is_that_of_gradient_descent_by_hand(kind: str) -> None:
    found = numbers(kind, lr=0.05)
    model = own_copy(untrained(kind).model).eval().requires_grad_(True)
    loss = mean_loss(kind, model)
    parameters = dict(model.named_parameters())
    gradients = dict(zip(parameters, torch.autograd.grad(loss, [*parameters.values()], allow_unused=True), strict=True))
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    with torch.no_grad():
        for name, gradient in gradients.items():
            if gradient is not None:
                parameters[name] -= 0.05 * gradient
        assert found["loss_after"] == pytest.approx(mean_loss(kind, model).item(), rel=1e-4)
    assert found["loss_after"] < found["loss"]
    assert [each["name"] for each in found["weights"]] == list(parameters)
    for each in found["weights"]:
        gradient = gradients[each["name"]]
        assert each["norm"] == pytest.approx(0.0 if gradient is None else gradient.norm().item(), rel=1e-4, abs=1e-7)
        assert each["update_norm"] == pytest.approx(0.05 * each["norm"], rel=1e-2, abs=1e-6)


def test_a_gradient_is_the_slope_of_the_loss() -> None:
    found = numbers("recurrent", weight="output.weight")["weight"]
    gradient = torch.tensor(found["gradient"])
    model = own_copy(untrained("recurrent").model).double().eval()
    weight = model.output.weight
    place = divmod(int(gradient.abs().argmax()), gradient.shape[1])
    sides = []
    for shift in (1e-4, -1e-4):
        with torch.no_grad():
            weight[place] += shift
            sides.append(mean_loss("recurrent", model).item())
            weight[place] -= shift
    assert gradient[place].item() == pytest.approx((sides[0] - sides[1]) / 2e-4, rel=1e-3)


def test_a_chosen_weight_is_shown_in_full() -> None:
    found = numbers("transformer", weight="output.bias", lr=0.2)["weight"]
    before, gradient, after = (torch.tensor(found[key]) for key in ("before", "gradient", "after"))
    torch.testing.assert_close(after, before - 0.2 * gradient)
    assert len(before) == untrained("transformer").vocabulary.target.size
    run, (build, name, lr) = untrained("transformer"), single_step(untrained("transformer").recipe.training, "sgd", 0.2)
    view = update_view(run, "Ein Hund.", "A dog.", build, weight="output.bias", optimizer=name, lr=lr)
    printed = plain_text(view.shown, 80).partition("after the step")[2]
    assert len(re.findall(r"\d\.\d|\b0\b", printed)) >= len(before)


def test_the_first_step_of_adamw_moves_every_weight_by_its_learning_rate() -> None:
    found = numbers("transformer", optimizer="recipe", lr=1e-3, weight="output.bias")
    before, gradient, after = (torch.tensor(found["weight"][key]) for key in ("before", "gradient", "after"))
    assert found["optimizer"] == "adamw"
    torch.testing.assert_close((after - before)[gradient.abs() > 1e-4], -1e-3 * gradient.sign()[gradient.abs() > 1e-4])


def test_the_run_does_not_change() -> None:
    before = {name: each.clone() for name, each in untrained("transformer").model.named_parameters()}
    numbers("transformer", lr=1.0)
    for name, each in untrained("transformer").model.named_parameters():
        assert torch.equal(before[name], each)


def test_one_update_of_a_single_weight_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    update = one_update(
        model,
        lambda m: ((m(torch.tensor([[2.0]])) - 1.0).square().sum(),) * 2,
        lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
    )
    assert update.loss == 25.0  # (3 · 2 − 1)²
    (weight,) = update.weights
    assert weight.gradient.item() == 20.0  # 2 · (3 · 2 − 1) · 2
    assert weight.after.item() == pytest.approx(2.8)
    assert update.loss_after == pytest.approx((2.8 * 2 - 1) ** 2)
    assert model.weight.item() == 3.0


@pytest.mark.parametrize(
    ("weight", "message"),
    [("outputs.weight", "did you mean output.weight"), ("bias", "end so: .*; name one")],
)
def test_an_unknown_or_ambiguous_weight_is_an_error(weight: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        numbers("transformer", weight=weight)


def test_every_kind_of_model_is_covered() -> None:
    assert {*MODELS} <= {*KINDS, "linear"}
    assert math.isfinite(numbers("linear")["loss_after"])
