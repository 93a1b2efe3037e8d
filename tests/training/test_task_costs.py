"""What a training step of each task costs is known from counting tiny ones, as in test_cost.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sightline.data.epoch_plan import ExamplePlan
from sightline.data.preparation import PreparedData
from sightline.data.windows import WindowPlan
from sightline.models.build import build_model
from sightline.recipe import Recipe
from sightline.training.cost import step_cost, step_flops
from sightline.training.flops import count_flops
from sightline.training.train import plan_for
from sightline.training.train_step import CarriedGradients

pytestmark = pytest.mark.usefixtures("nothing_is_unknown")

CPU = torch.device("cpu")
WRITERS: dict[str, dict[str, Any]] = {
    "elman": {"kind": "recurrent", "cell": "elman", "attention": {"kind": "none"}},
    "gru": {"kind": "recurrent", "cell": "gru", "layers": 2, "attention": {"kind": "none"}},
    "lstm": {"kind": "recurrent", "cell": "lstm", "layers": 2, "attention": {"kind": "none"}},
    "window": {"kind": "window", "size": 3},
    "convolutional": {"kind": "convolutional", "layers": 2},
    "bytenet": {"kind": "bytenet", "layers": 3, "dilations": [1, 2]},
    "rotary": {"kind": "transformer", "layers": 1, "heads": 2, "positions": {"kind": "rotary"}},
    "shaw": {"kind": "transformer", "layers": 1, "heads": 2, "positions": {"kind": "shaw", "max_distance": 3}},
    "t5": {"kind": "transformer", "layers": 1, "heads": 2, "positions": {"kind": "t5"}},
    "dmca": {
        "kind": "transformer",
        "layers": 2,
        "heads": 2,
        "attention": {"pattern": [{"kind": "local", "block": 7}, {"kind": "compressed"}]},
    },
}
READERS: dict[str, dict[str, Any]] = {
    "lstm": {"kind": "recurrent", "cell": "lstm"},
    "gru, one direction": {"kind": "recurrent", "cell": "gru", "bidirectional": False},
    "window": {"kind": "window", "size": 2, "layers": 2},
    "convolutional": {"kind": "convolutional", "layers": 2},
    "bytenet": {"kind": "bytenet", "layers": 3, "dilations": [1, 2]},
    "transformer": {"kind": "transformer", "layers": 1, "heads": 2},
}
CASES = {
    **{f"language-model of {name}": ("language-model", {"decoder": body}) for name, body in WRITERS.items()},
    **{f"seq2seq in one {name}": ("seq2seq", {"decoder": body}) for name, body in WRITERS.items()},
    **{f"tag by {name}": ("tagging", {"encoder": body}) for name, body in READERS.items()},
    **{
        f"classify by {name}, {kind}": ("classification", {"encoder": body, "pooling": {"kind": kind, "hidden": 5}})
        for name, body in READERS.items()
        for kind in ("last", "mean", "max", "class")
        if kind != "class" or "one direction" not in name
    },
}


class Examples:
    """A store of made-up examples of a task."""

    folder, counts = Path("examples"), {"read": 0}

    def __init__(self, task: str) -> None:
        random = np.random.default_rng(2)
        self.source_lengths, self.target_lengths = (random.integers(1, 25, 20) for _ in range(2))
        if task != "seq2seq":
            self.target_lengths = self.source_lengths if task != "classification" else np.ones(20, np.int64)
        self.origin = np.zeros(20, np.uint16)

    def __len__(self) -> int:
        return 20

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


def prepared(task: str, model: dict[str, Any], layout: str, context: int = 16, tokens: int = 64) -> PreparedData:
    source = {"kind": "text", "source": "a", "target": "b"}
    clean = {} if task == "language-model" else {"clean": {"max_tokens": 24}}
    recipe = Recipe.model_validate(
        {
            "task": task,
            "data": {"train": [source], "validation": source, **clean},
            "model": {"width": 8, **model},
            "training": {"batches": {"tokens": tokens, "context": context, "layout": layout}},
        }
    )
    store: Any = Examples(task)
    return PreparedData(recipe, Sized(13), lambda epoch: store, store, [])  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("case", CASES)
def test_the_cost_of_a_step_is_what_is_counted(case: str, layout: str) -> None:
    task, body = CASES[case]
    made = prepared(task, body, layout)
    plan, model = plan_for(made, CPU), build_model(made.recipe, made.vocabulary)
    carried = task == "language-model" and body["decoder"]["kind"] == "recurrent"
    assert plan.layout == ("padded" if carried else layout)
    cost = step_cost(model, plan, CPU)
    batches = plan.epoch(0)
    for examples in (*batches[:2], batches[-1]):
        batch = plan.batch(0, examples)
        assert cost(batch) == step_flops(model, batch, made.recipe.training, CPU)


@pytest.mark.parametrize("kind", ["elman", "gru", "lstm"])
def test_a_step_that_goes_on_costs_what_one_does_that_begins(kind: str) -> None:
    made = prepared("language-model", {"decoder": WRITERS[kind]}, "padded")
    plan, model = plan_for(made, CPU), build_model(made.recipe, made.vocabulary)
    cost, carried = step_cost(model, plan, CPU), CarriedGradients(model, made.recipe.training, CPU)
    for examples in plan.epoch(0)[:3]:
        batch = plan.batch(0, examples)
        with count_flops() as counted:
            carried([batch])
        assert cost(batch) == counted.total


@pytest.mark.parametrize("context", [4, 60])  # up to 40 keys attention is explicit on the CPU, then fused
@pytest.mark.parametrize("kind", ["rotary", "shaw"])
def test_the_cost_is_what_is_counted_however_long_windows_are(kind: str, context: int) -> None:
    made = prepared("language-model", {"decoder": WRITERS[kind]}, "packed", context, 130)
    plan, model = plan_for(made, CPU), build_model(made.recipe, made.vocabulary)
    cost = step_cost(model, plan, CPU)
    for examples in plan.epoch(1)[:2]:
        batch = plan.batch(1, examples)
        assert cost(batch) == step_flops(model, batch, made.recipe.training, CPU)


@pytest.mark.parametrize("longest", [2, 24])
@pytest.mark.parametrize(
    "case",
    [
        "seq2seq in one rotary",
        "tag by transformer",
        "language-model of rotary",
        "seq2seq in one convolutional",
        "tag by bytenet",
        "language-model of convolutional",
        "language-model of bytenet",
    ],
)
def test_static_batches_take_every_example_of_each_task(case: str, longest: int) -> None:
    made = prepared(*CASES[case], "packed")
    store: Any = made.train(0)
    for lengths in (store.source_lengths, store.target_lengths):
        np.minimum(lengths, longest, out=lengths)
    plan: Any = (WindowPlan if "language" in case else ExamplePlan)(made.recipe, None, "static", made.train)
    model = build_model(made.recipe, made.vocabulary)
    cost, seen = step_cost(model, plan, CPU), []
    for number in (0, 1):
        for examples in plan.epoch(number):
            batch = plan.batch(number, examples)
            side = batch.source if batch.decoder_input is None else batch.decoder_input
            assert side.shape == batch.labels.shape == (plan.shape.tokens,)
            seen += examples.tolist() if number == 0 else []
    assert sorted(seen) == list(range(len(seen)))
    assert "language" in case or len(seen) == 20
    assert cost(batch) == step_flops(model, batch, made.recipe.training, CPU)
