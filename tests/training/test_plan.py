"""Epoch plans: which batches there are, in which layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sightline.data.epoch_plan import ExamplePlan, choose_layout
from sightline.recipe import Recipe


class Examples:
    """A store of made-up examples."""

    def __init__(self, source: np.ndarray, target: np.ndarray) -> None:
        self.source_lengths, self.target_lengths = source, target
        self.origin = np.zeros(len(source), np.uint16)

    def take(self, indices: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return (
            [np.full(self.source_lengths[index], 5) for index in indices],
            [np.full(self.target_lengths[index], 6) for index in indices],
        )


TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2}
GATED, DILATED = {"kind": "convolutional", "layers": 1}, {"kind": "bytenet", "layers": 1}
WIDER = {**GATED, "channels": 512}


def recipe(tokens: int) -> Recipe:
    body = {"kind": "transformer", "layers": 1, "heads": 2}
    source = {"kind": "text", "source": "a", "target": "b"}
    return Recipe.model_validate(
        {
            "data": {"train": [source], "validation": source, "clean": {"max_tokens": 15}},
            "model": {"width": 8, "encoder": body, "decoder": body},
            "training": {"batches": {"tokens": tokens}},
        }
    )


def test_batches_of_an_epoch_are_computed_once() -> None:
    store: Any = Examples(np.full(40, 7), np.full(40, 9))
    plan = ExamplePlan(recipe(64), None, "padded", lambda epoch: store)  # type: ignore[arg-type]
    first = plan.epoch(0)
    assert plan.epoch(0) is first
    other = plan.epoch(1)
    assert [batch.tolist() for batch in other] != [batch.tolist() for batch in first]
    assert [batch.tolist() for batch in plan.epoch(0)] == [batch.tolist() for batch in first]


@pytest.mark.parametrize("shorter", ["source", "target", "neither"])
def test_static_batches_are_full_for_uneven_sides(shorter: str) -> None:
    random = np.random.default_rng(1)
    source, target = random.integers(8, 15, 400), random.integers(8, 15, 400)
    if shorter != "neither":
        (source if shorter == "source" else target)[:] = 1
    store: Any = Examples(source, target)
    plan = ExamplePlan(recipe(512), None, "static", lambda epoch: store)  # type: ignore[arg-type]
    assert plan.shape is not None
    seen = []
    for examples in plan.epoch(0):
        batch = plan.batch(0, examples)
        assert batch.source.shape == batch.decoder_input.shape == batch.labels.shape == (512,)
        assert len(batch.source_layout.lengths) == len(batch.decoder_layout.lengths) == plan.shape.sequences
        seen += examples.tolist()
    assert sorted(seen) == list(range(400))


@pytest.mark.parametrize(
    ("part", "layout"),
    [
        ({}, "static"),
        ({"positions": {"kind": "rotary"}}, "static"),
        ({"norm": {"kind": "batch", "place": "none"}}, "static"),
        ({"positions": {"kind": "alibi"}}, "padded"),
        ({"positions": {"kind": "t5"}}, "padded"),
        ({"positions": {"kind": "shaw"}}, "padded"),
        ({"norm": {"kind": "batch"}}, "padded"),
    ],
)
def test_on_cuda_layouts_without_packed_kernels_are_padded(part: dict[str, Any], layout: str) -> None:
    sections = recipe(512).model_dump()
    sections["training"]["precision"] = "bf16"
    sections["model"]["decoder"] |= part
    assert choose_layout(Recipe.model_validate(sections), torch.device("cuda")) == layout
    assert choose_layout(Recipe.model_validate(sections), torch.device("cpu")) == "packed"


@pytest.mark.parametrize(
    ("bodies", "width", "layout"),
    [
        ({"encoder": GATED, "decoder": GATED}, 256, "static"),
        ({"encoder": WIDER, "decoder": WIDER}, 256, "static"),  # what is looked at is no wider than the model
        ({"encoder": GATED, "decoder": GATED}, 264, "padded"),  # one head as wide as the model looks at the source
        ({"encoder": GATED, "decoder": GATED}, 100, "padded"),  # kernels take multiples of eight
        ({"decoder": GATED}, 512, "static"),  # where there is no source, nothing looks at it
        ({"encoder": DILATED, "decoder": DILATED}, 512, "static"),
        ({"encoder": GATED, "decoder": DILATED}, 512, "static"),
        ({"encoder": TRANSFORMER, "decoder": GATED}, 64, "static"),
        ({"encoder": DILATED, "decoder": {**TRANSFORMER, "positions": {"kind": "alibi"}}}, 64, "padded"),
    ],
)
def test_convolutions_are_packed_where_kernels_support_their_attention(
    bodies: dict[str, Any], width: int, layout: str
) -> None:
    sections = recipe(512).model_dump()
    sections["model"] = {"width": width, **bodies}
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert choose_layout(Recipe.model_validate(sections), cpu) == "packed"
    sections["training"]["precision"] = "float32"
    assert choose_layout(Recipe.model_validate(sections), cuda) == "padded"
    sections["training"]["precision"] = "bf16"
    assert choose_layout(Recipe.model_validate(sections), cuda) == layout


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_recurrent_body_makes_batches_padded(device: str) -> None:
    sections = recipe(512).model_dump()
    sections["training"]["precision"] = "bf16"
    sections["model"] = {"width": 64, "encoder": {"kind": "recurrent"}, "decoder": GATED}
    assert choose_layout(Recipe.model_validate(sections), torch.device(device)) == "padded"


def plan_of(task: str, model: dict[str, Any], tokens: int, layout: str = "padded") -> ExamplePlan:
    """Of a text of nine tokens with one answer (a tagger has one for each), and a shorter one."""
    sections = recipe(tokens).model_dump()
    sections |= {"task": task, "model": {"width": 8, **model}, "evaluation": {}}
    store: Any = Examples(np.array([3, 9]), np.array([3, 9]) if task == "tagging" else np.array([1, 1]))
    return ExamplePlan(Recipe.model_validate(sections), None, layout, lambda epoch: store)  # type: ignore[arg-type]


ROOMS: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "translator": (
        "seq2seq",
        {"encoder": TRANSFORMER, "decoder": TRANSFORMER},
        10,
        "9 source tokens and 1 target token, 10 with an end mark, more",
    ),
    "decoder alone": (
        "seq2seq",
        {"decoder": TRANSFORMER},
        12,
        "9 source tokens and 1 target token in one sequence, 12 with an end mark each, more",
    ),
    "classifier": (
        "classification",
        {"encoder": TRANSFORMER, "pooling": {"kind": "class"}},
        11,
        "9 tokens, 11 with its marks, more",
    ),
    "tagger": ("tagging", {"encoder": TRANSFORMER}, 11, "9 tokens, 11 with its marks, more"),
}


@pytest.mark.parametrize("name", ROOMS)
def test_an_example_too_long_for_any_batch_is_named(name: str) -> None:
    task, model, needed, message = ROOMS[name]
    assert sum(map(len, plan_of(task, model, needed).epoch(0))) == 2
    with pytest.raises(ValueError, match="the longest training example has") as caught:
        plan_of(task, model, needed - 1).epoch(0)
    assert str(caught.value) == (
        f"the longest training example has {message} than training.batches.tokens ({needed - 1}); raise it to at least "
        f"{needed}, or lower data.clean.max_tokens"
    )


def test_padding_of_static_batches_counts_as_waste() -> None:
    model = {"encoder": TRANSFORMER, "decoder": TRANSFORMER}
    with pytest.raises(ValueError, match=r"tokens \(11, of which 2 fill up batches\); raise it to at least 12,"):
        plan_of("seq2seq", model, 11, "static").epoch(0)
    assert sum(map(len, plan_of("seq2seq", model, 12, "static").epoch(0))) == 2
