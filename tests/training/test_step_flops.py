"""The operations of a training step, estimated from a few batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sightline.data.epoch_plan import ExamplePlan
from sightline.data.preparation import PreparedData
from sightline.data.windows import WindowPlan
from sightline.models.build import build_model
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Recipe
from sightline.training.flops import flop_rate, step_flops
from sightline.training.train import plan_for
from sightline.training.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("nothing_is_unknown")

CPU = torch.device("cpu")
TRANSFORMER: dict[str, Any] = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.3}
LSTM: dict[str, Any] = {"kind": "recurrent", "cell": "lstm", "dropout": 0.3}
CONVOLUTIONAL: dict[str, Any] = {"kind": "convolutional", "layers": 2}
BYTENET: dict[str, Any] = {"kind": "bytenet", "layers": 3, "dilations": [1, 2]}
EXPERTS = {**TRANSFORMER, "feedforward": {"experts": {"count": 4, "capacity": 1.3}}}
LOCAL = {**TRANSFORMER, "attention": {"span": [{"kind": "local", "block": 5}, {"kind": "compressed"}]}}
UNATTENDED = {**LSTM, "attention": {"kind": "none"}}
CASES = {
    "lstm": ("seq2seq", {"encoder": LSTM, "decoder": {**LSTM, "attention": {"kind": "additive"}}}),
    "transformer": ("seq2seq", {"encoder": TRANSFORMER, "decoder": TRANSFORMER}),
    "experts": ("seq2seq", {"encoder": EXPERTS, "decoder": EXPERTS}),
    "local": ("seq2seq", {"encoder": LOCAL, "decoder": LOCAL}),
    "convolutional to bytenet": ("seq2seq", {"encoder": CONVOLUTIONAL, "decoder": BYTENET}),
    "one body": ("seq2seq", {"decoder": {**TRANSFORMER, "positions": {"kind": "rotary"}}}),
    "language model": ("language-model", {"decoder": {**TRANSFORMER, "positions": {"kind": "t5"}}}),
    "recurrent language model": ("language-model", {"decoder": UNATTENDED}),
    "tagger": ("tag", {"encoder": BYTENET}),
    "classifier": ("classify", {"encoder": LSTM, "pooling": {"kind": "mean"}}),
}


class Examples:
    """A store of made-up examples of a task."""

    folder, counts = Path("examples"), {"read": 0}

    def __init__(self, task: str, count: int, longest: int = 24) -> None:
        random = np.random.default_rng(2)
        self.source_lengths, self.target_lengths = (random.integers(1, longest + 1, count) for _ in range(2))
        if task != "seq2seq":
            self.target_lengths = self.source_lengths if task != "classify" else np.ones(count, np.int64)
        self.origin = np.zeros(count, np.uint16)

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def targets(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.append(0, np.cumsum(self.target_lengths)), np.full(self.target_lengths.sum(), 6))]

    def take(self, indices: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return (
            [np.full(self.source_lengths[index], 5) for index in indices],
            [np.full(self.target_lengths[index], 6) for index in indices],
        )


class Sized:
    """As much of a vocabulary as a model is built from."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.source = self.target = self

    def pieces(self, ids: range) -> list[str]:
        return [str(number) for number in ids]


def prepared(task: str, model: dict[str, Any], layout: str, count: int = 300, longest: int = 24) -> PreparedData:
    source = {"kind": "text", "source": "a", "target": "b"}
    clean = {} if task == "language-model" else {"clean": {"max_tokens": 24}}
    recipe = Recipe.model_validate(
        {
            "task": task,
            "data": {"train": [source], "validation": source, **clean},
            "model": {"width": 8, **model},
            "training": {"batches": {"tokens": 200, "context": 25, "layout": layout}, "precision": "float32"},
        }
    )
    store: Any = Examples(task, count, longest)
    return PreparedData(recipe, Sized(13), lambda epoch: store, store, [])  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_of_an_epoch_is_near_what_is_counted(case: str, layout: str) -> None:
    made = prepared(*CASES[case], layout)
    plan, model = plan_for(made, CPU), build_model(made.recipe, made.vocabulary)
    step = TrainStep(model, made.recipe.training, CPU)
    rate = flop_rate(step, plan)
    batches = [plan.batch(0, examples) for examples in plan.epoch(0)]
    counted = sum(step_flops(step, batch) for batch in batches)
    assert sum(map(rate, batches)) == pytest.approx(counted, rel=0.07)


@pytest.mark.parametrize("longest", [2, 24])
@pytest.mark.parametrize("case", ["one body", "language model", "tagger"])
def test_static_batches_take_every_example_and_cost_what_is_counted(case: str, longest: int) -> None:
    task, body = CASES[case]
    made = prepared(task, body, "packed", 20, longest)
    plan: Any = (WindowPlan if task == "language-model" else ExamplePlan)(made.recipe, None, "static", made.train)
    step = TrainStep(build_model(made.recipe, made.vocabulary), made.recipe.training, CPU)
    rate, seen = flop_rate(step, plan), []
    for examples in plan.epoch(0):
        batch = plan.batch(0, examples)
        side = batch.source if batch.decoder_input is None else batch.decoder_input
        assert side.shape == batch.labels.shape == (plan.shape.tokens,)
        assert rate(batch) == pytest.approx(step_flops(step, batch), rel=0.1)
        seen += examples.tolist()
    assert sorted(seen) == list(range(len(seen)))
    assert task == "language-model" or len(seen) == 20


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_counting_flops_is_repeatable_and_has_no_side_effects(build_model: Callable[..., Seq2Seq], norm: str) -> None:
    made = prepared(*CASES["transformer"], "packed")
    body = {**TRANSFORMER, "norm": {"kind": norm}}
    model = build_model(body, body)
    plan, step = plan_for(made, CPU), TrainStep(model, made.recipe.training, CPU)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    rate = flop_rate(step, plan)
    assert torch.equal(torch.rand(3), expected)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))  # the weights do not matter
    assert flop_rate(step, plan) == rate
