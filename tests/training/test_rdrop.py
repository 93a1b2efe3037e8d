"""R-Drop against its formula: losses, gradients, and the trainings it is the same as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sightline.data.collate import TrainingBatch, packed_batch, padded_batch, seq2seq_ids
from sightline.layers.dropout import Dropout
from sightline.layers.kernels import cpu_multiplies_bfloat16
from sightline.layers.losses import Loss
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Training
from sightline.tasks.losses import batch_loss
from sightline.training import objectives as module
from sightline.training.flops import step_flops
from sightline.training.objectives import ProjectedRDrop, build_objective, rdrop, rdrop_from_logits
from sightline.training.train_step import StepRunner, TrainStep

CPU = torch.device("cpu")
PLAIN, RDROP = Training(precision="float32"), Training(precision="float32", rdrop=5.0)
WIDTH, SIZE = 12, 37
BODY = {
    "kind": "transformer",
    "layers": 1,
    "heads": 2,
    "dropout": 0.3,
    "feedforward": {"kind": "relu", "width": 12, "dropout": 0.3},
}


def by_formula(first: Tensor, second: Tensor, targets: Tensor, smoothing: float, alpha: float) -> tuple[float, float]:
    """½ (CE + CE) + α/2 · ½ (KL + KL), token by token and word by word, in float64."""
    total = nll = 0.0
    for one, other, target in zip(first.double(), second.double(), targets.tolist(), strict=True):
        if target == 0:
            continue
        p, q = one.softmax(-1), other.softmax(-1)
        for each in (p, q):
            nll -= each[target].log().item() / 2
            total -= ((1 - smoothing) * each[target].log() + smoothing * each.log().mean()).item() / 2
        divergence = sum((a * (a / b).log()).sum().item() for a, b in ((p, q), (q, p))) / 2
        total += alpha / 2 * divergence
    return total, nll


def a_batch(make: Callable[..., TrainingBatch] = padded_batch, twice: bool = False) -> TrainingBatch:
    texts = [np.array([5, 6, 7]), np.array([8]), np.array([9, 10, 11, 4])] * (2 if twice else 1)
    return make(seq2seq_ids(texts, [text[::-1].copy() for text in texts]), np.arange(len(texts)))


def a_model(build_model: Callable[..., Seq2Seq], dropout: float = 0.3) -> Seq2Seq:
    model = build_model(BODY, BODY).train()
    for part in model.modules():
        if isinstance(part, Dropout):
            part.probability = dropout
    return model


def gradients_of(model: Seq2Seq, total: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    total.backward()
    return {name: part.grad.clone() for name, part in model.named_parameters()}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_rdrop_loss_equals_its_formula_without_padding(smoothing: float, alpha: float) -> None:
    first, second, targets = 2 * torch.randn(30, SIZE), 2 * torch.randn(30, SIZE), torch.randint(1, SIZE, (30,))
    targets[::4] = 0
    loss = rdrop_from_logits(first, second, targets, smoothing, alpha)
    total, nll = by_formula(first, second, targets, smoothing, alpha)
    assert loss.total.item() == pytest.approx(total, rel=1e-5)
    assert loss.nll.item() == pytest.approx(nll, rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
def test_blockwise_rdrop_equals_the_explicit_loss_and_gradients(
    smoothing: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS", 16)
    case = [torch.randn(rows, WIDTH), torch.randn(rows, WIDTH), torch.randn(SIZE, WIDTH), torch.randn(SIZE)]
    targets, found = torch.randint(1, SIZE, (rows,)), []
    for projected in (True, False):
        leaves = [part.clone().requires_grad_() for part in case]
        if projected:
            loss = Loss(*ProjectedRDrop.apply(*leaves, targets, smoothing, 3.0))
        else:
            logits = (torch.nn.functional.linear(side, *leaves[2:]) for side in leaves[:2])
            loss = rdrop_from_logits(*logits, targets, smoothing, 3.0)
        (0.25 * loss.total).backward()
        found.append((loss, [leaf.grad for leaf in leaves]))
    torch.testing.assert_close(found[0][0].total, found[1][0].total, rtol=5e-6, atol=0)
    torch.testing.assert_close(found[0][0].nll, found[1][0].nll, rtol=5e-6, atol=0)
    for mine, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)  # float32, with divergences near 100


@pytest.mark.skipif(not cpu_multiplies_bfloat16(), reason="this CPU has no products of bfloat16")
def test_in_mixed_precision_products_are_rounded_and_sums_are_not() -> None:
    case = [torch.randn(300, WIDTH), torch.randn(300, WIDTH), torch.randn(SIZE, WIDTH) / 4, torch.randn(SIZE)]
    targets, leaves = torch.randint(1, SIZE, (300,)), [part.clone().requires_grad_() for part in case]
    with torch.autocast("cpu", torch.bfloat16):
        loss = rdrop(*leaves, targets, 0.1, 3.0)
    assert "ProjectedRDrop" in loss.total.grad_fn.name() and loss.total.dtype == torch.float32
    rounded = [part.bfloat16().double().requires_grad_() for part in case]
    logits = (torch.nn.functional.linear(side, *rounded[2:]).float() for side in rounded[:2])
    exact = rdrop_from_logits(*logits, targets, 0.1, 3.0)
    assert loss.total.item() == pytest.approx(exact.total.item(), rel=1e-3)  # a rounding is 0.4%, up or down
    assert loss.nll.item() == pytest.approx(exact.nll.item(), rel=1e-3)
    found, wanted = (torch.autograd.grad(each.total, of) for each, of in ((loss, leaves), (exact, rounded)))
    for mine, other in zip(found, wanted, strict=True):
        assert float((mine.double() - other).norm()) < 2**-7 * float(other.norm())


@pytest.mark.parametrize("make", [padded_batch, packed_batch])
def test_the_two_passes_use_the_seed_of_the_step(
    make: Callable[..., TrainingBatch], build_model: Callable[..., Seq2Seq]
) -> None:
    model, batch = a_model(build_model), a_batch(make)
    torch.manual_seed(7)
    passes = [model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout) for _ in range(2)]
    assert not torch.equal(*passes)
    logits = [model.logits(features).reshape(-1, 13) for features in passes]
    expected = by_formula(*logits, batch.labels.reshape(-1), 0.1, 5.0)
    torch.manual_seed(7)
    loss = build_objective(Training(rdrop=5.0))(model, batch)
    assert (loss.total.item(), loss.nll.item()) == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():  # where the logits are held
        again = rdrop(*passes, model.output.weight, model.output.bias, batch.labels, 0.1, 5.0)
    torch.testing.assert_close(again.total, loss.total.detach(), rtol=1e-5, atol=0)


def test_with_alpha_0_it_is_the_mean_of_two_plain_passes(build_model: Callable[..., Seq2Seq]) -> None:
    model, batch = a_model(build_model), a_batch()
    torch.manual_seed(7)
    plain = [batch_loss(model, batch, 0.1) for _ in range(2)]
    expected = gradients_of(model, (plain[0].total + plain[1].total) / 2)
    torch.manual_seed(7)
    loss = build_objective(Training(rdrop=0.0))(model, batch)
    assert loss.total.item() == pytest.approx((plain[0].total + plain[1].total).item() / 2, rel=1e-6)
    for name, gradient in gradients_of(model, loss.total).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)


def test_without_dropout_rdrop_is_a_plain_step(build_model: Callable[..., Seq2Seq]) -> None:
    model, found = a_model(build_model, dropout=0.0), []
    for training, batch in ((RDROP, a_batch()), (PLAIN, a_batch(twice=True))):
        loss = StepRunner(TrainStep(model, training, CPU))([batch])
        gradients = {name: part.grad.clone() for name, part in model.named_parameters()}
        found.append((loss.total / batch.tokens, loss.nll / batch.tokens, gradients))
    torch.testing.assert_close(found[0][:2], found[1][:2], rtol=1e-5, atol=0)
    for name, gradient in found[0][2].items():
        torch.testing.assert_close(gradient, found[1][2][name], rtol=1e-4, atol=1e-6)


def test_rdrop_costs_two_plain_steps(build_model: Callable[..., Seq2Seq]) -> None:
    model, batch = a_model(build_model), a_batch()
    plain, twice = (Training(rdrop=alpha, label_smoothing=0.0, precision="float32") for alpha in (None, 5.0))
    one, two = (step_flops(TrainStep(model, training, CPU), batch) for training in (plain, twice))
    assert two == 2 * one


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            {"reward": {}, "stopping": {"monitor": "reward"}, "compile": True},
            "cannot be combined with training.compile: true",
        ),
        ({"rdrop": 5, "reward": {}, "stopping": {"monitor": "reward"}}, "two objectives"),
        ({"reward": {}}, "training.stopping.monitor: reward"),
        ({"stopping": {"monitor": "reward"}}, "needs training.reward"),
        ({"reward": {}, "stopping": {"monitor": "reward"}, "batches": {"layout": "packed"}}, "padded batches"),
    ],
)
def test_conflicting_rdrop_recipes_are_refused(training: dict[str, Any], message: str) -> None:
    from sightline.recipe import Recipe
    from sightline.recipe.checks import check_trainable

    dates = {"kind": "dates", "split": "train", "examples": 1}
    recipe = {
        "data": {"train": [dates], "validation": {**dates, "split": "validation"}},
        "model": {"width": 8, "encoder": BODY, "decoder": BODY},
        "training": training,
    }
    with pytest.raises(ValueError, match=message):
        check_trainable(Recipe.model_validate(recipe))


FEW = {"count": 2, "top_k": 1, "hidden": 4}


@pytest.mark.parametrize(
    ("changed", "agree"),
    [
        ({}, True),
        ({"attention_dropout": 0.1}, False),
        ({"feedforward": {"kind": "relu", "width": 12, "dropout": 0.1}}, False),
        ({"feedforward": {"kind": "relu", "width": 12, "experts": FEW}}, False),
        ({"feedforward": {"kind": "relu", "width": 12, "experts": {**FEW, "noise": False, "load": 0}}}, True),
    ],
)
def test_rdrop_without_dropout_is_refused(changed: dict[str, Any], agree: bool) -> None:
    """Experts are chosen with noise in training, so their passes differ without dropout too."""
    from sightline.recipe import Recipe
    from sightline.recipe.checks import check_trainable

    plain = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0}
    dates = {"kind": "dates", "split": "train", "examples": 1}
    recipe = {
        "data": {"train": [dates], "validation": {**dates, "split": "validation"}},
        "model": {"width": 8, "encoder": plain, "decoder": {**plain, **changed}},
        "training": {"rdrop": 5},
    }
    if not agree:
        check_trainable(Recipe.model_validate(recipe))
        return
    with pytest.raises(ValueError, match="without any they are the same twice; set dropout in the model"):
        check_trainable(Recipe.model_validate(recipe))
