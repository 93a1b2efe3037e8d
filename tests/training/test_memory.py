"""The memory of a training: estimated without building its model, and the measured peak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.models.build import build_model
from sightline.models.seq2seq import parameter_count
from sightline.recipe import Recipe
from sightline.training.dry_run import dry_run
from sightline.training.memory import MemoryEstimate, estimate_memory, memory_of, peak_memory
from sightline.training.optimizers import freeze_for, trained_count
from sightline.training.train import train

CPU = torch.device("cpu")
TRANSFORMER: dict[str, Any] = {"kind": "transformer", "layers": 2, "heads": 2}
LSTM: dict[str, Any] = {"kind": "recurrent", "cell": "lstm"}
EXPERTS = {"experts": {"count": 3, "every": 2}}


def recipe(encoder: dict[str, Any], decoder: dict[str, Any], width: int = 8, **training: Any) -> Recipe:
    dates = {"kind": "dates", "split": "train", "examples": 50}
    return Recipe.model_validate(
        {
            "data": {"train": [dates], "validation": {**dates, "split": "validation", "examples": 5}},
            "tokenizer": {"kind": "character"},
            "model": {"width": width, "encoder": encoder, "decoder": decoder},
            "training": {"device": "cpu", "limits": {"steps": 1}, **training},
        }
    )


class Sized:
    def __init__(self, size: int) -> None:
        self.size, self.source, self.target, self.all_pieces = size, self, self, ["a"] * size

    def pieces(self, ids: range) -> list[str]:
        return [str(number) for number in ids]


@pytest.mark.parametrize(
    "made",
    [
        recipe(TRANSFORMER, TRANSFORMER),
        recipe(LSTM, {**LSTM, "attention": {"kind": "additive"}}, averaging={"kind": "ema"}),
        recipe(TRANSFORMER, TRANSFORMER, freeze=["embeddings", "encoder.0"]),
        recipe({**TRANSFORMER, "layers": 70}, {**TRANSFORMER, "layers": 90, "feedforward": EXPERTS}),
        recipe({"kind": "convolutional", "layers": 131}, {**LSTM, "attention": {"kind": "dot"}}),
    ],
    ids=["transformer", "lstm with averages", "frozen", "deep", "deeper"],
)
def test_the_estimate_counts_the_parameters_that_are_built(made: Recipe) -> None:
    vocabulary: Any = Sized(13)
    estimate, model = estimate_memory(made, vocabulary), build_model(made, vocabulary)
    freeze_for(model, made)
    assert (estimate.parameters, estimate.trained) == (parameter_count(model), trained_count(model))
    assert estimate.averages == (estimate.parameters if made.training.averaging.kind == "ema" else 0)
    assert estimate_memory(made).total < estimate.total  # for any vocabulary


@pytest.mark.parametrize(
    ("encoder", "width", "message"),
    [
        ({"layers": 1_000_000}, 1_024, "with [0-9,]{17,} parameters needs at least [0-9,.]+ GiB [(]weights"),
        ({"layers": 1_000_000_000, "heads": 1_024}, 1_024, "with [0-9,]{20,} parameters needs at least [0-9,.]+ GiB"),
        ({"heads": 100_000}, 1_000_000, "with [0-9,]{18,} parameters needs at least [0-9,.]+ GiB"),
        ({"feedforward": {"width": 1_000_000_000}}, 1_024, "with [0-9,]{15,} parameters needs at least"),
        ({}, 1_000_000_000, "a single weight of this model, of size 3000000000 x 1000000000, has 3,000,000,000,000"),
    ],
    ids=["layers", "layers and heads", "heads and width", "hidden width", "width"],
)
def test_a_model_that_cannot_fit_is_refused_before_the_text_is_read(
    encoder: dict[str, Any], width: int, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("dry_run", "train"):
        monkeypatch.setattr(f"sightline.training.{module}.with_defaults", lambda *_: pytest.fail("the text was read"))
    large = recipe({**TRANSFORMER, **encoder}, LSTM, width)
    with pytest.raises(ValueError, match=message):
        dry_run(large)
    with pytest.raises(ValueError, match=message):
        train(large, out=tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.yaml"))


def test_a_width_that_follows_from_the_text_is_estimated_by_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = recipe(LSTM, LSTM, 256)
    assert estimate_memory(plain).parameters > 0
    values = plain.model_dump(mode="json", exclude_unset=True)
    del values["model"]["width"]
    assert estimate_memory(Recipe.model_validate(values)) == estimate_memory(plain)


def test_an_estimate_reads_as_its_sum() -> None:
    estimate = MemoryEstimate(parameters=3 * 2**28, trained=2**28, averages=0)
    assert str(estimate) == "at least 6.0 GiB (weights 3.0 GiB, gradients 1.0 GiB, optimizer states 2.0 GiB)"
    assert str(MemoryEstimate(2**18, 2**18, 0)).startswith("at least 4 MiB (weights 1 MiB")


def test_the_memory_of_this_machine_is_reported() -> None:
    assert (memory_of(CPU) or 2**30) >= peak_memory(CPU)


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes_on_all_platforms(monkeypatch: pytest.MonkeyPatch, platform: str, unit: int) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    monkeypatch.setattr("sightline.training.memory.sys.platform", platform)
    peak = peak_memory(CPU)
    assert before <= peak <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_peak_memory_includes_tensors() -> None:
    held = torch.ones(2**24)  # 64 MiB
    assert peak_memory(CPU) > held.numel() * 4
