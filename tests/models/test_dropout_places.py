"""Where each body drops out while it learns: other tests switch dropout off, and would not miss it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from laid_out import packed, padded
from torch import Tensor

from sightline.layers import dropout
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig

SOURCES, TARGETS = [[5, 9, 4, 3], [6, 3]], [[2, 7, 5], [2, 4, 8, 8, 10]]
WIDTH, INNER, CHANNELS = 8, 12, 10
TRANSFORMER = {
    "kind": "transformer",
    "layers": 2,
    "heads": 2,
    "feedforward": {"width": INNER, "dropout": 0.2},
    "positions": {"kind": "learned", "max_positions": 16},
}
LSTM = {"kind": "recurrent", "layers": 2}
FED = {**LSTM, "attention": {"kind": "dot"}, "input_feeding": True}
LOW = {**LSTM, "attention": {"kind": "dot"}, "attention_from": "bottom"}
EXPERTS = {**LSTM, "attention": {"kind": "none"}, "experts": {"count": 2, "top_k": 1}}
CONVOLUTIONAL = {"kind": "convolutional", "layers": 2, "channels": CHANNELS, "positions": {"max_positions": 16}}
BYTENET = {"kind": "bytenet", "layers": 2, "dilations": [1, 2]}
WINDOW = {"kind": "window", "size": 2, "hidden": INNER, "layers": 1}
# The width of what is dropped out, in order: what enters, then layer by layer, then what leaves.
PLACES: dict[str, tuple[dict[str, Any], dict[str, Any], list[int], list[int]]] = {
    "transformer": (
        TRANSFORMER,
        TRANSFORMER,
        [WIDTH, *[WIDTH, INNER, WIDTH] * 2],
        [WIDTH, *[WIDTH, WIDTH, INNER, WIDTH] * 2],
    ),
    "attention": (LSTM, LSTM | {"attention": {"kind": "dot"}}, [WIDTH, WIDTH], [WIDTH, WIDTH, WIDTH]),
    "without attention": (LSTM, LSTM | {"attention": {"kind": "none"}}, [WIDTH, WIDTH], [WIDTH, WIDTH, WIDTH]),
    "input feeding": (LSTM, FED, [WIDTH, WIDTH], [2 * WIDTH, WIDTH, WIDTH] * max(map(len, TARGETS))),
    "attention from the bottom": (LSTM, LOW, [WIDTH, WIDTH], [WIDTH, 2 * WIDTH, WIDTH]),
    "experts": (LSTM | {"experts": EXPERTS["experts"]}, EXPERTS, [WIDTH] * 3, [WIDTH] * 4),
    "convolutional": (
        CONVOLUTIONAL,
        CONVOLUTIONAL,
        [WIDTH, CHANNELS, CHANNELS],
        [WIDTH, CHANNELS, CHANNELS, WIDTH],
    ),
    "bytenet": (BYTENET, BYTENET, [WIDTH, WIDTH, WIDTH], [WIDTH, WIDTH, WIDTH, WIDTH]),
    "window": (WINDOW, WINDOW, [5 * WIDTH, INNER, WIDTH], [2 * WIDTH, INNER, WIDTH]),
}


@pytest.mark.parametrize("lay", [padded, packed])
@pytest.mark.parametrize("name", PLACES)
def test_dropout_applies_at_the_expected_places_in_training(
    name: str, lay: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, decoder, *expected = PLACES[name]
    recipe = {"width": WIDTH, "encoder": {**encoder, "dropout": 0.3}, "decoder": {**decoder, "dropout": 0.3}}
    model, result = Seq2Seq(ModelConfig.model_validate(recipe), 13, 13), list[int]()

    def drawn(shape: torch.Size, probability: float, dtype: torch.dtype) -> Tensor:
        assert probability == (0.2 if shape[-1] == INNER and name == "transformer" else 0.3)
        result.append(shape[-1])
        return torch.ones(shape, dtype=dtype)

    monkeypatch.setattr(dropout, "keep_mask", drawn)
    memory = model.encode(*lay(SOURCES))
    assert result == expected[0]
    result.clear()
    tokens, layout = lay(TARGETS)
    model.advance(tokens, model.begin(memory), layout)
    assert result == expected[1]
    model.eval()(*lay(SOURCES), *lay(TARGETS))
    assert result == expected[1]  # nothing more was drawn
