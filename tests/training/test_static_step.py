"""The compiled step over packed batches of one static shape, as training on CUDA runs it, against the plain one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Model
from sightline.training.batches import StaticShape, TrainingBatch, packed_batch, padded_batch
from sightline.training.compiled import compiled_loss
from sightline.training.step import autocast, batch_loss

pytestmark = pytest.mark.cuda
VOCABULARY, LONGEST = 199, 64


def small_transformer(place: str, positions: str, feedforward: str) -> Seq2Seq:
    body = {
        "kind": "transformer",
        "layers": 2,
        "heads": 2,
        "norm": {"place": place},
        "positions": {"kind": positions},
        "feedforward": {"kind": feedforward},
        "dropout": 0.0,
    }
    torch.manual_seed(0)
    return Seq2Seq(Model.model_validate({"width": 64, "encoder": body, "decoder": body}), VOCABULARY, VOCABULARY)


def sentences(count: int) -> list[np.ndarray]:
    numbers = np.random.default_rng(count)
    return [numbers.integers(4, VOCABULARY, numbers.integers(0, LONGEST)).astype(np.uint16) for _ in range(count)]


def gradients(model: Seq2Seq) -> torch.Tensor:
    found = torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None]).cpu()
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize(
    ("place", "positions", "feedforward"), [("post", "sinusoidal", "relu"), ("pre", "rotary", "swiglu")]
)
def test_the_compiled_static_step_is_the_padded_one(
    cuda: torch.device, place: str, positions: str, feedforward: str
) -> None:
    model = small_transformer(place, positions, feedforward).to(cuda).train()
    sources, targets = sentences(21), sentences(21)[::-1]
    examples = np.arange(21)
    shape = StaticShape(tokens=1_024, sequences=48, longest=LONGEST)
    padded = padded_batch(sources, targets, examples).to(cuda)
    static = packed_batch(sources, targets, examples, shape).to(cuda)
    exact = batch_loss(model, padded, 0.1)  # float32
    exact.total.backward()
    wanted = gradients(model)

    def in_bf16(batch: TrainingBatch, compiled: bool) -> tuple[float, torch.Tensor]:
        with autocast("bf16", cuda):
            loss = compiled_loss(model, 0.1)(batch) if compiled else batch_loss(model, batch, 0.1)
        loss.total.backward()
        return float(loss.nll.detach()), gradients(model)

    plain_loss, plain = in_bf16(padded, compiled=False)
    static_loss, ours = in_bf16(static, compiled=True)
    assert static_loss == pytest.approx(float(exact.nll.detach()), rel=2e-3)
    error, rounding = float((ours - wanted).norm()), float((plain - wanted).norm())
    assert error < 1.5 * rounding, "no further from float32 than bfloat16 on the padded batch is"
    assert error < 0.02 * float(wanted.norm())
    assert plain_loss == pytest.approx(static_loss, rel=2e-3)
