"""What a training costs: the operations of any step, known from counting tiny ones, and the memory taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sightline.data.collate import TrainingBatch
from sightline.data.epoch_plan import ExamplePlan
from sightline.layers import local_attention as cuts
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Recipe, Training
from sightline.training import cost as cost_module
from sightline.training.cost import peak_memory, step_cost, step_flops

pytestmark = pytest.mark.usefixtures("nothing_is_unknown")

CPU = torch.device("cpu")
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.3}
LSTM = {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.3}
DEEP_LSTM = {**LSTM, "layers": 2}
CONVOLUTIONAL = {"kind": "convolutional", "layers": 2, "dropout": 0.3}
BYTENET = {"kind": "bytenet", "layers": 3, "dilations": [1, 2], "dropout": 0.3}
GRU, ELMAN = {**LSTM, "cell": "gru"}, {**LSTM, "cell": "elman"}
BODIES = {
    "lstm": (DEEP_LSTM, {**DEEP_LSTM, "attention": {"kind": "dot"}}),
    "gru": (GRU, {**GRU, "attention": {"kind": "additive"}, "input_feeding": True}),
    "elman, one direction": ({**ELMAN, "bidirectional": False}, {**ELMAN, "attention": {"kind": "none"}}),
    "lstm, one direction": ({**LSTM, "bidirectional": False}, {**LSTM, "attention": {"kind": "bilinear"}}),
    "lstm, bottom both ways, residual": (
        {**LSTM, "layers": 3, "directions": "bottom", "skip_connections": "residual"},
        {**LSTM, "layers": 3, "attention_from": "bottom", "input_feeding": True, "skip_connections": "residual"},
    ),
    "lstm in turns, fast-forward": (
        {**DEEP_LSTM, "directions": "alternating", "skip_connections": "fast-forward"},
        {**DEEP_LSTM, "attention_from": "bottom", "skip_connections": "fast-forward"},
    ),
    "transformer": (TRANSFORMER, TRANSFORMER),
    "shaw to t5": (
        {**TRANSFORMER, "positions": {"kind": "shaw", "max_distance": 3}},
        {**TRANSFORMER, "positions": {"kind": "t5"}, "norm": {"kind": "batch"}},
    ),
    "alibi to shaw": (
        {**TRANSFORMER, "positions": {"kind": "alibi"}, "norm": {"place": "none"}},
        {**TRANSFORMER, "positions": {"kind": "shaw", "max_distance": 3}},
    ),
    "transformers with experts": (
        {**TRANSFORMER, "layers": 2, "feedforward": {"experts": {"count": 5, "capacity_factor": 1.3, "every": 2}}},
        {
            **TRANSFORMER,
            "feedforward": {"kind": "swiglu", "experts": {"count": 24, "top_k": 1, "capacity_factor": 1.0}},
        },
    ),
    "lstms with experts": (
        {**DEEP_LSTM, "experts": {"count": 7, "top_k": 3, "capacity_factor": 1.1, "noise": False, "load": 0.0}},
        {**DEEP_LSTM, "attention": {"kind": "dot"}, "experts": {"count": 4}},
    ),
    "local to compressed": (
        {**TRANSFORMER, "attention": {"pattern": [{"kind": "local", "block": 5}]}},
        {**TRANSFORMER, "attention": {"pattern": [{"kind": "compressed", "kernel": 4, "stride": 2}]}},
    ),
    "local, compressed and full in turns": (
        {
            **TRANSFORMER,
            "layers": 2,
            "attention": {"pattern": [{"kind": "compressed"}, {"kind": "local", "block": 40}]},
        },
        {
            **TRANSFORMER,
            "layers": 3,
            "attention": {
                "pattern": [{"kind": "local", "block": 4, "look_back": 1}, {"kind": "compressed"}, {"kind": "full"}]
            },
        },
    ),
    "lstm to transformer": (LSTM, TRANSFORMER),
    "transformer to gru": (TRANSFORMER, GRU),
    "convolutional": (CONVOLUTIONAL, CONVOLUTIONAL),
    "wider convolutional": ({**CONVOLUTIONAL, "channels": 12}, {**CONVOLUTIONAL, "channels": 20}),
    "bytenet": (BYTENET, BYTENET),
    "convolutional to bytenet": (CONVOLUTIONAL, BYTENET),
    "bytenet to convolutional": (BYTENET, CONVOLUTIONAL),
    "gru to convolutional": (GRU, CONVOLUTIONAL),
    "bytenet to transformer": (BYTENET, TRANSFORMER),
}


class Sentences:
    """A store of made-up sentences."""

    def __init__(self, count: int, longest: int) -> None:
        random = np.random.default_rng(2)
        self.source_lengths, self.target_lengths = (random.integers(1, longest + 1, count) for _ in range(2))
        self.origin = np.zeros(count, np.uint16)

    def take(self, indices: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return (
            [np.full(self.source_lengths[index], 5) for index in indices],
            [np.full(self.target_lengths[index], 6) for index in indices],
        )


def some_plan(layout: str, longest: int = 24, **training: Any) -> ExamplePlan:
    source = {"kind": "text", "source": "a", "target": "b"}
    recipe = Recipe.model_validate(
        {
            "data": {"train": [source], "validation": source, "clean": {"max_tokens": longest}},
            "model": {"width": 8, "encoder": TRANSFORMER, "decoder": TRANSFORMER},
            "training": {"batches": {"tokens": 200}, **training},
        }
    )
    store: Any = Sentences(20, longest)
    return ExamplePlan(recipe, None, layout, lambda epoch: store)  # type: ignore[arg-type]


def batches(plan: ExamplePlan) -> Iterator[TrainingBatch]:
    return (plan.batch(0, examples) for examples in plan.epoch(0)[:3])


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("kind", BODIES)
def test_the_cost_of_a_step_is_what_is_counted(build_model: Callable[..., Seq2Seq], kind: str, layout: str) -> None:
    plan, model = some_plan(layout), build_model(*BODIES[kind])
    cost = step_cost(model, plan, CPU)
    for batch in batches(plan):
        assert cost(batch) == step_flops(model, batch, plan.recipe.training, CPU)


@pytest.mark.parametrize("layout", ["padded", "packed", "static"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("longest", [2, 90])  # up to 40 keys attention is explicit on the CPU, then fused
def test_the_cost_is_what_is_counted_however_long_sentences_are(
    build_model: Callable[..., Seq2Seq], layout: str, smoothing: float, longest: int
) -> None:
    plan, model = some_plan(layout, longest, label_smoothing=smoothing), build_model(TRANSFORMER, TRANSFORMER)
    cost = step_cost(model, plan, CPU)
    for batch in batches(plan):
        assert cost(batch) == step_flops(model, batch, plan.recipe.training, CPU)


@pytest.mark.parametrize("kind", ["transformers with experts", "local, compressed and full in turns"])
def test_slots_of_experts_and_blocks_are_known_for_static_batches_too(
    build_model: Callable[..., Seq2Seq], kind: str
) -> None:
    plan, model = some_plan("static"), build_model(*BODIES[kind])
    cost = step_cost(model, plan, CPU)
    for batch in batches(plan):
        assert cost(batch) == step_flops(model, batch, plan.recipe.training, CPU)


@pytest.mark.parametrize(
    "kind",
    ["convolutional", "wider convolutional", "bytenet", "bytenet to convolutional", "bytenet to transformer"],
)
def test_convolutions_over_static_batches_cost_what_is_counted(build_model: Callable[..., Seq2Seq], kind: str) -> None:
    plan, model = some_plan("static"), build_model(*BODIES[kind])
    cost = step_cost(model, plan, CPU)
    for batch in batches(plan):
        assert cost(batch) == step_flops(model, batch, plan.recipe.training, CPU)


def test_blocks_are_known_where_their_number_may_not_be_counted(
    build_model: Callable[..., Seq2Seq], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA: as many as there may be at most."""
    monkeypatch.setattr(cuts, "countable", lambda device: False)
    plan, model = some_plan("static"), build_model(*BODIES["local, compressed and full in turns"])
    cost = step_cost(model, plan, CPU)
    for batch in batches(plan):
        assert cost(batch) == step_flops(model, batch, plan.recipe.training, CPU)


def test_counting_leaves_nothing_behind_and_finds_the_same_again(build_model: Callable[..., Seq2Seq]) -> None:
    plan, model = some_plan("packed"), build_model(TRANSFORMER, TRANSFORMER)
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    found = step_cost(model, plan, CPU)
    assert torch.equal(torch.rand(3), wanted)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in model.named_parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))  # what was learned since does not matter
    assert step_cost(model, plan, CPU) == found


def test_counting_leaves_the_averages_of_batch_norm_alone(build_model: Callable[..., Seq2Seq]) -> None:
    body = {**TRANSFORMER, "norm": {"kind": "batch"}}
    model = build_model(body, body)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    step_cost(model, some_plan("packed"), CPU)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_a_cost_that_does_not_follow_from_lengths_is_said_to_be_an_estimate(
    build_model: Callable[..., Seq2Seq], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(1)

    def unsteady(model: Seq2Seq, batch: TrainingBatch, training: Training, device: torch.device) -> int:
        return step_flops(model, batch, training, device) + int(random.integers(10_000))

    monkeypatch.setattr(cost_module, "step_flops", unsteady)
    with pytest.warns(UserWarning, match=r"off by \d+\.\d% on a small one\): take flops in metrics\.jsonl as an est"):
        step_cost(build_model(LSTM, LSTM), some_plan("padded"), CPU)


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_peak_of_memory_is_in_bytes_everywhere(monkeypatch: pytest.MonkeyPatch, platform: str, unit: int) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    monkeypatch.setattr("sightline.training.cost.sys.platform", platform)
    found = peak_memory(CPU)
    assert before <= found <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_the_peak_of_memory_is_at_least_what_is_held() -> None:
    held = torch.ones(2**24)  # 64 MiB
    assert peak_memory(CPU) > held.numel() * 4
