"""The memory of a training: estimated without building its model, and the measured peak."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sightline.models.build import build_model
from sightline.models.seq2seq import parameter_count
from sightline.recipe import Recipe
from sightline.training.dry_run import dry_run
from sightline.training.memory import MemoryEstimate, estimate_memory, memory_of, peak_memory
from sightline.training.optimizers import freeze_for, trained_count

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


def test_what_cannot_fit_is_refused_with_the_figures_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.training.dry_run.prepare_data", lambda *given, **more: pytest.fail("data was read"))
    deep = {**TRANSFORMER, "layers": 1_024, "heads": 64}
    with pytest.raises(ValueError, match=r"with [\d,]{15,} parameters needs at least [\d,.]+ GiB \(weights"):
        dry_run(recipe(deep, deep, 65_536))


def test_an_estimate_reads_as_its_sum() -> None:
    estimate = MemoryEstimate(parameters=3 * 2**28, trained=2**28, averages=0)
    assert str(estimate) == "at least 6.0 GiB (weights 3.0 GiB, gradients 1.0 GiB, optimizer states 2.0 GiB)"
    assert str(MemoryEstimate(2**18, 2**18, 0)).startswith("at least 4 MiB (weights 1 MiB")


def test_this_machine_has_memory() -> None:
    assert (memory_of(CPU) or 2**30) >= peak_memory(CPU)


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_peak_of_memory_is_in_bytes_everywhere(monkeypatch: pytest.MonkeyPatch, platform: str, unit: int) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    monkeypatch.setattr("sightline.training.memory.sys.platform", platform)
    peak = peak_memory(CPU)
    assert before <= peak <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_the_peak_of_memory_is_at_least_what_is_held() -> None:
    held = torch.ones(2**24)  # 64 MiB
    assert peak_memory(CPU) > held.numel() * 4
