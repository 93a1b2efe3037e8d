"""The compiled step over packed batches of one static shape, as training on CUDA runs it, against the plain one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sightline.data.collate import StaticShape, TrainingBatch, packed_batch, padded_batch, seq2seq_ids
from sightline.layers.adapters import add_adapters, is_adapter
from sightline.layers.devices import autocast
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Training
from sightline.recipe.model import AdaptersConfig, ModelConfig
from sightline.tasks.losses import batch_loss
from sightline.training.objectives import build_objective
from sightline.training.train_step import GraphedRunner, StepRunner, TrainStep, compile_step

pytestmark = pytest.mark.cuda
VOCABULARY, LONGEST = 199, 64
TRAINING = Training.model_validate({"precision": "bf16", "label_smoothing": 0.1, "limits": {"steps": 1}})
GATED = {"kind": "convolutional", "layers": 2, "positions": {"max_positions": LONGEST}, "dropout": 0.0}
DILATED = {"kind": "bytenet", "layers": 3, "dilations": [1, 4, 16], "dropout": 0.0}
RDROP = TRAINING.model_copy(update={"rdrop": 5.0})


def small_transformer(place: str, positions: str, feedforward: str, dropout: float = 0.0) -> Seq2Seq:
    body = {
        "kind": "transformer",
        "layers": 2,
        "heads": 2,
        "norm": {"place": place},
        "positions": {"kind": positions},
        "feedforward": {"kind": feedforward},
        "dropout": dropout,
    }
    torch.manual_seed(0)
    return Seq2Seq(ModelConfig.model_validate({"width": 64, "encoder": body, "decoder": body}), VOCABULARY, VOCABULARY)


def small_convolutional(encoder: dict[str, Any], decoder: dict[str, Any], width: int = 64) -> Seq2Seq:
    torch.manual_seed(0)
    model = ModelConfig.model_validate({"width": width, "encoder": encoder, "decoder": decoder})
    return Seq2Seq(model, VOCABULARY, VOCABULARY)


def sentences(count: int) -> list[np.ndarray]:
    numbers = np.random.default_rng(count)
    return [numbers.integers(4, VOCABULARY, numbers.integers(0, LONGEST)).astype(np.uint16) for _ in range(count)]


def gradients_kept(model: Seq2Seq) -> torch.Tensor:
    return torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None]).cpu()


def gradients(model: Seq2Seq) -> torch.Tensor:
    found = gradients_kept(model)
    model.zero_grad(set_to_none=True)
    return found


MODELS: dict[str, Callable[[], Seq2Seq]] = {
    "transformer, post": lambda: small_transformer("post", "sinusoidal", "relu"),
    "transformer, pre": lambda: small_transformer("pre", "rotary", "swiglu"),
    "gated convolutions": lambda: small_convolutional(GATED, GATED),
    "gated convolutions as wide as the kernels": lambda: small_convolutional(GATED, GATED, width=256),
    "gated convolutions wider than the kernels": lambda: small_convolutional(
        *[{**GATED, "channels": 512}] * 2, width=256
    ),
    "dilated to gated convolutions": lambda: small_convolutional(DILATED, GATED),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_compiled_static_step_is_the_padded_one(cuda: torch.device, kind: str) -> None:
    model = MODELS[kind]().to(cuda).train()
    sources, targets = sentences(21), sentences(21)[::-1]
    examples = np.arange(21)
    shape = StaticShape(tokens=1_024, sequences=48, longest=LONGEST)
    padded = padded_batch(seq2seq_ids(sources, targets), examples).to(cuda)
    static = packed_batch(seq2seq_ids(sources, targets), examples, shape).to(cuda)
    exact = batch_loss(model, padded, 0.1)  # float32
    exact.total.backward()
    expected = gradients(model)

    def in_bf16(batch: TrainingBatch, compiled: bool) -> tuple[float, torch.Tensor]:
        with autocast("bf16", cuda):
            loss = compile_step(TrainStep(model, TRAINING, cuda))(batch) if compiled else batch_loss(model, batch, 0.1)
        loss.total.backward()
        return float(loss.nll.detach()), gradients(model)

    plain_loss, plain = in_bf16(padded, compiled=False)
    static_loss, ours = in_bf16(static, compiled=True)
    assert static_loss == pytest.approx(float(exact.nll.detach()), rel=2e-3)
    error, rounding = float((ours - expected).norm()), float((plain - expected).norm())
    assert error < 1.5 * rounding, "no further from float32 than bfloat16 on the padded batch is"
    assert error < 0.02 * float(expected.norm())
    assert plain_loss == pytest.approx(static_loss, rel=2e-3)


def with_adapters(model: Seq2Seq) -> Seq2Seq:
    """Only adapters are trained, all else is frozen; they already add something."""
    add_adapters(model, AdaptersConfig(target_modules=("query", "value", "output", "feedforward"), dropout=0.1))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))
        if is_adapter(name):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("body", [GATED, DILATED], ids=["gated", "dilated"])
def test_a_replayed_graph_of_convolutions_is_the_compiled_step(cuda: torch.device, body: dict[str, Any]) -> None:
    model = small_convolutional(body, body).to(cuda).train()
    shape = StaticShape(tokens=1_024, sequences=48, longest=LONGEST)
    graphed, compiled = GraphedRunner(TrainStep(model, TRAINING, cuda)), compile_step(TrainStep(model, TRAINING, cuda))
    for count in (21, 9, 14):
        sides, examples = seq2seq_ids(sentences(count), sentences(count)[::-1]), np.arange(count)
        with (
            torch.no_grad()
        ):  # a graph alive here would bind the parameters to this stream, which is not the recorded one
            exact = batch_loss(model, padded_batch(sides, examples).to(cuda), 0.1)  # float32
        batch = packed_batch(sides, examples, shape).to(cuda)
        found = float(graphed([batch]).nll)
        assert found == pytest.approx(float(exact.nll), rel=2e-3)
        ours = gradients_kept(model)
        with autocast("bf16", cuda):
            loss = compiled(batch)
        expected = torch.autograd.grad(loss.total / batch.tokens, list(model.parameters()))
        assert found == pytest.approx(float(loss.nll.detach()), rel=1e-4)
        theirs = torch.cat([gradient.float().flatten() for gradient in expected]).cpu()
        assert float((ours - theirs).norm()) < 1e-3 * float(theirs.norm())


@pytest.mark.parametrize(("adapted", "training"), [(False, TRAINING), (True, TRAINING), (False, RDROP)])
def test_a_replayed_graph_is_the_compiled_step_with_the_same_dropout(
    cuda: torch.device, adapted: bool, training: Training
) -> None:
    plain_model = small_transformer("post", "sinusoidal", "relu", dropout=0.3)
    model = (with_adapters(plain_model) if adapted else plain_model).to(cuda).train()
    plain = StepRunner(step := TrainStep(model, training, cuda), forward=compile_step(step))
    shape = StaticShape(tokens=1_024, sequences=48, longest=LONGEST)
    batches = [
        packed_batch(seq2seq_ids(sentences(count), sentences(count)[::-1]), np.arange(count), shape).to(cuda)
        for count in (21, 9, 14)
    ]

    def found(gradients: StepRunner) -> list[tuple[float, float, torch.Tensor]]:
        results = []
        for seed, batch in enumerate([*batches, batches[0]]):
            torch.manual_seed(seed)
            loss = gradients([batch])
            results.append((float(loss.total), float(loss.nll), gradients_kept(model)))
        return results

    graphed = found(GraphedRunner(TrainStep(model, training, cuda)))
    model.zero_grad(set_to_none=True)
    for ours, expected in zip(graphed, found(plain), strict=True):
        assert ours[:2] == pytest.approx(expected[:2], rel=1e-4)
        assert float((ours[2] - expected[2]).norm()) < 1e-3 * float(expected[2].norm())
    assert graphed[0][0] != graphed[3][0]  # the same batch, another seed


def test_a_compiled_step_of_r_drop_is_the_plain_one(cuda: torch.device) -> None:
    model = small_transformer("pre", "rotary", "relu").to(cuda).train()
    shape = StaticShape(tokens=1_024, sequences=48, longest=LONGEST)
    batch = packed_batch(seq2seq_ids(sentences(21), sentences(21)[::-1]), np.arange(21), shape).to(cuda)
    with autocast("bf16", cuda):
        plain = build_objective(RDROP)(model, batch)
    plain.total.backward()
    expected = gradients(model)
    with autocast("bf16", cuda):
        ours = compile_step(TrainStep(model, RDROP, cuda))(batch)
    ours.total.backward()
    assert float(ours.total.detach()) == pytest.approx(float(plain.total.detach()), rel=2e-3)
    assert float((gradients(model) - expected).norm()) < 0.02 * float(expected.norm())
