"""A recurrent language model goes on from the state the last window ended in, and learns nothing through it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sightline.data.collate import TrainingBatch
from sightline.models.language_model import LanguageModel
from sightline.recipe import Training
from sightline.recipe.model import ModelConfig
from sightline.training.train_step import StepRunner, TrainStep

CPU = torch.device("cpu")
VOCABULARY, ROWS, CONTEXT = 13, 3, 4
CLOSE = {"rtol": 0.0, "atol": 1e-7}  # the loss is made in float32; gradients are of order 0.01
CELLS = ("elman", "gru", "lstm")


def build(cell: str, layers: int = 2) -> LanguageModel:
    torch.manual_seed(0)
    decoder = {"kind": "recurrent", "cell": cell, "layers": layers, "attention": {"kind": "none"}, "dropout": 0.0}
    return LanguageModel(
        ModelConfig.model_validate({"width": 8, "decoder": decoder, "tie": "none"}), VOCABULARY
    ).double()


def training(smoothing: float = 0.0) -> Training:
    return Training.model_validate({"precision": "float32", "label_smoothing": smoothing, "limits": {"steps": 1}})


def text(batches: int) -> Tensor:
    """(rows, 1 + tokens)."""
    return torch.randint(4, VOCABULARY, (ROWS, 1 + batches * CONTEXT), generator=torch.Generator().manual_seed(3))


def cut(rows: Tensor, *, first: bool = True) -> list[TrainingBatch]:
    return [
        TrainingBatch(
            None,
            None,
            rows[:, at : at + CONTEXT],
            None,
            rows[:, at + 1 : at + 1 + CONTEXT],
            ROWS * CONTEXT,
            torch.arange(ROWS).numpy(),
            continues=at > 0 or not first,
        )
        for at in range(0, rows.shape[1] - 1, CONTEXT)
    ]


def gradients_of(model: Any) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


def naive(model: LanguageModel, rows: Tensor) -> list[tuple[float, list[Tensor]]]:
    """Token by token, the state cut off by hand between windows: the loss and the gradients of each window."""
    state: Any = [tuple(part[:, None] for part in layer.start(ROWS, model.embedding.weight)) for layer in layers(model)]
    found = []
    for at in range(0, rows.shape[1] - 1, CONTEXT):
        state = [tuple(part.detach() for part in hidden) for hidden in state]
        loss: Any = 0.0
        for place in range(at, at + CONTEXT):
            x = model.embedding(rows[:, place])
            for number, layer in enumerate(layers(model)):
                hidden = layer.advance(x, tuple(part[:, 0] for part in state[number]))
                state[number], x = tuple(part[:, None] for part in hidden), hidden[0]
            loss = loss + torch.nn.functional.cross_entropy(model.logits(x), rows[:, place + 1], reduction="sum")
        found.append((float(loss.detach()), torch.autograd.grad(loss / (ROWS * CONTEXT), list(model.parameters()))))
    return found


def layers(model: LanguageModel) -> Any:
    return model.decoder.layers


@pytest.mark.parametrize("cell", CELLS)
def test_the_gradient_equals_a_loop_with_detached_states(cell: str) -> None:
    model, rows = build(cell), text(3)
    carried = StepRunner(TrainStep(model, training(), CPU), carry=True)
    for batch, (loss, expected) in zip(cut(rows), naive(model, rows), strict=True):
        assert float(carried([batch]).nll) == pytest.approx(loss, rel=1e-6)
        for found, theirs in zip(gradients_of(model), expected, strict=True):
            torch.testing.assert_close(found, theirs, **CLOSE)


@pytest.mark.parametrize("cell", CELLS)
def test_the_carried_state_is_reset_where_a_batch_does_not_continue(cell: str) -> None:
    model = build(cell)
    batches = cut(text(2))
    fresh = float(StepRunner(TrainStep(model, training(), CPU), carry=True)([batches[0]]).nll)
    carried = StepRunner(TrainStep(model, training(), CPU), carry=True)
    losses = [float(carried([batch]).nll) for batch in (*batches, batches[0])]
    assert losses[0] == losses[2] == fresh
    alone = float(StepRunner(TrainStep(model, training(), CPU), carry=True)([cut(text(2)[:, CONTEXT:])[0]]).nll)
    assert losses[1] != pytest.approx(alone, rel=1e-6)


def test_no_gradient_flows_through_the_carried_state() -> None:
    model, rows = build("lstm"), text(2)
    carried = StepRunner(TrainStep(model, training(), CPU), carry=True)
    carried([cut(rows)[0]])
    assert sorted(carried.carried) == ["0.0", "0.1", "1.0", "1.1"]
    assert not any(part.requires_grad for part in carried.carried.values())
    carried([cut(rows)[1]])
    cut_off = torch.cat([gradient.flatten() for gradient in gradients_of(model)])
    features, state = model.advance(rows[:, :CONTEXT], model.begin_empty(ROWS))
    features, _ = model.advance(rows[:, CONTEXT:-1], state)
    logits = model.logits(features).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, rows[:, CONTEXT + 1 :].flatten())
    through = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(model.parameters()))])
    assert (cut_off - through).abs().max() > 1e-5


def test_accumulated_batches_carry_the_state() -> None:
    model, rows = build("gru"), text(2)
    together = StepRunner(TrainStep(model, training(), CPU), carry=True)
    total = float(together(cut(rows)).nll)
    found = gradients_of(model)
    each = naive(model, rows)
    assert total == pytest.approx(sum(loss for loss, _ in each), rel=1e-6)
    for mine, first, second in zip(found, each[0][1], each[1][1], strict=True):
        torch.testing.assert_close(mine, (first + second) / 2, **CLOSE)


def test_a_restored_carried_state_equals_the_uninterrupted_one() -> None:
    model, batches = build("lstm"), cut(text(3))
    whole = StepRunner(TrainStep(model, training(0.1), CPU), carry=True)
    expected = [float(whole([batch]).total) for batch in batches]
    first, second = (StepRunner(TrainStep(model, training(0.1), CPU), carry=True) for _ in range(2))
    found = [float(first([batch]).total) for batch in batches[:2]]
    second.carried = {name: part.clone() for name, part in first.carried.items()}
    assert [*found, float(second([batches[2]]).total)] == expected
