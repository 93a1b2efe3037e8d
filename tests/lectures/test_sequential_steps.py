"""Sequential steps: formulas by hand, and the states that each one reads against gradients of real models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sightline.inspection.claims.sequential_steps import (
    ARCHITECTURES,
    Node,
    Reads,
    StepGrid,
    convolution,
    steps_claim,
    window,
)
from sightline.layers.layout import Padded
from sightline.models.language_model import LanguageModel
from sightline.models.protocol import ENCODERS
from sightline.recipe.model import ModelConfig


def test_recurrent_states_wait_for_each_other() -> None:
    """h_t of layer l after t + l − 1 steps, both counted from 1: the lecture's grid."""
    rows = dict(StepGrid.of("recurrent", 5, 3).rows())
    assert rows == {
        "embeddings": [0, 0, 0, 0, 0],
        "layer 1": [1, 2, 3, 4, 5],
        "layer 2": [2, 3, 4, 5, 6],
        "layer 3": [3, 4, 5, 6, 7],
    }


def test_both_directions_wait_for_the_whole_layer_below() -> None:
    rows = dict(StepGrid.of("bidirectional", 4, 2).rows())
    assert rows["layer 1 →"] == [1, 2, 3, 4] and rows["layer 1 ←"] == [4, 3, 2, 1]
    assert rows["layer 2 →"] == [5, 6, 7, 8] and rows["layer 2 ←"] == [8, 7, 6, 5]


@pytest.mark.parametrize("name", ["convolutional", "transformer", "transformer-decoder", "window"])
@pytest.mark.parametrize("length", [1, 7, 300])
def test_other_states_wait_for_layers_alone(name: str, length: int) -> None:
    grid = StepGrid.of(name, length, 3)
    assert all(steps == layer for (layer, _, _), steps in grid.steps.items())


@pytest.mark.parametrize(("name", "expected"), [("recurrent", 1200 + 2), ("bidirectional", 3 * 1200)])
def test_long_sequences_are_counted(name: str, expected: int) -> None:
    assert StepGrid.of(name, 1200, 3).last == expected


def reached(reads: Reads, node: Node) -> set[int]:
    """The positions of all embeddings that a state depends on."""
    if node[0] == 0:
        return {node[1]}
    return set[int]().union(*(reached(reads, each) for each in reads[node]))


RECURRENT: dict[str, Any] = {"kind": "recurrent", "cell": "gru", "layers": 2}
TRANSFORMER: dict[str, Any] = {"kind": "transformer", "layers": 2, "heads": 2}
CASES: dict[str, tuple[str, dict[str, Any], Reads]] = {
    "recurrent": ("encoder", {**RECURRENT, "bidirectional": False}, ARCHITECTURES["recurrent"](6, 2)),
    "bidirectional": ("encoder", {**RECURRENT, "bidirectional": True}, ARCHITECTURES["bidirectional"](6, 2)),
    "convolutional": ("encoder", {"kind": "convolutional", "layers": 2, "kernel": 3}, convolution(6, 2)),
    "transformer": ("encoder", TRANSFORMER, ARCHITECTURES["transformer"](6, 2)),
    "recurrent decoder": ("decoder", {**RECURRENT, "attention": {"kind": "none"}}, ARCHITECTURES["recurrent"](6, 2)),
    "transformer-decoder": ("decoder", TRANSFORMER, ARCHITECTURES["transformer-decoder"](6, 2)),
    "window": ("decoder", {"kind": "window", "size": 3, "layers": 2}, window(6, 2, size=3)),
}


@pytest.mark.parametrize("case", CASES)
def test_models_read_what_the_grid_says(case: str) -> None:
    """An output depends on exactly the inputs that its state reaches in the grid."""
    side, body, reads = CASES[case]
    body = {**body, "dropout": 0.0}
    recipe = ModelConfig.model_validate({"width": 8, side: body, "tie": "none"})
    torch.manual_seed(1)
    x = torch.randn(1, 6, 8, dtype=torch.float64, requires_grad=True)
    if side == "encoder":
        encoder = ENCODERS[recipe.encoder.kind](recipe.encoder, 8).double().eval()  # type: ignore[union-attr]
        states = encoder(x, Padded.of([6])).states[0]
    else:
        model = LanguageModel(recipe, 9).double().eval()
        states = model.decoder.advance(x, model.begin_empty(1), Padded.of([6]))[0][0]
    for t in range(6):
        (gradient,) = torch.autograd.grad(states[t].pow(2).sum(), x, retain_graph=True)
        sides = {side for _, _, side in reads}
        expected = set[int]().union(*(reached(reads, (2, t, side)) for side in sides))
        assert {k for k in range(6) if float(gradient[0, k].abs().max()) > 1e-12} == expected


def test_the_table_counts_longer_sequences() -> None:
    rows = {row[0]: row[1:] for row in steps_claim(layers=2).tables[-1].rows}
    assert rows["recurrent"] == ["n + L − 1", 9, 65, 513] and rows["transformer"] == ["L", 2, 2, 2]
    with pytest.raises(ValueError, match="--architecture rnn: use recurrent"):
        steps_claim(["rnn"])
