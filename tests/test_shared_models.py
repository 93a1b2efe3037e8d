"""No test can move a model under the feet of another, in whatever order and however many side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shared_models import own_copy, shared
from sightline.models.seq2seq import Seq2Seq
from untrained_runs import untrained

META = torch.device("meta")  # a device that every machine has


def on_the_cpu(models: dict[str, Seq2Seq]) -> bool:
    return {parameter.device.type for model in models.values() for parameter in model.parameters()} == {"cpu"}


def test_the_model_of_a_fixture_can_be_moved(model: Seq2Seq, originals: dict[str, Seq2Seq]) -> None:
    model.to(META).train()
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert on_the_cpu(originals) and not any(original.training for original in originals.values())


def test_a_model_that_looks_at_the_source_can_be_moved(looking_model: Seq2Seq, originals: dict[str, Seq2Seq]) -> None:
    looking_model.to(META)
    assert on_the_cpu(originals)


@pytest.mark.parametrize(
    "move", [lambda model: model.to(META), nn.Module.half, nn.Module.double, lambda model: model.to_empty(device=META)]
)
def test_an_original_refuses_to_be_moved(move: Callable[[Any], Any], originals: dict[str, Seq2Seq]) -> None:
    for model in (originals["transformer"], untrained("transformer").model):
        with pytest.raises(AssertionError, match="tests share this model"):
            move(model)
    assert own_copy(shared(nn.Linear(2, 2))).to(META).weight.device == META
