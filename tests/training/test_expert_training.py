"""Experts in training: their losses are minimized, never reported, and what became of the tokens is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sightline
from sightline.data.collate import TrainingBatch, language_model_ids, padded_batch, seq2seq_ids
from sightline.layers.feedforward import Experts, collect
from sightline.layers.losses import Loss, cross_entropy
from sightline.models.language_model import LanguageModel
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Training
from sightline.recipe.loading import RecipeError
from sightline.recipe.model import ModelConfig
from sightline.tasks.losses import batch_loss
from sightline.training.callbacks import routing_record
from sightline.training.objectives import build_objective
from sightline.training.resolve import open_recipe
from sightline.training.train_step import StepRunner, TrainStep

CPU = torch.device("cpu")
EXPERTS = {"count": 4, "importance": 2.0, "load": 3.0}
BODY = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0, "feedforward": {"experts": EXPERTS}}
TRAINING = Training.model_validate({"precision": "float32", "label_smoothing": 0.1, "limits": {"steps": 1}})


def build() -> Seq2Seq:
    torch.manual_seed(0)
    return Seq2Seq(ModelConfig.model_validate({"width": 8, "encoder": BODY, "decoder": BODY}), 13, 13).train()


def batch(number: int, rows: int = 5) -> TrainingBatch:
    random = np.random.default_rng(number)
    sides = [[random.integers(4, 13, random.integers(1, 8)) for _ in range(rows)] for _ in range(2)]
    return padded_batch(seq2seq_ids(*sides), np.arange(rows))


def by_hand(model: Seq2Seq, given: TrainingBatch) -> tuple[Loss, torch.Tensor]:
    """The cross entropy, and the sum of what the layers want minimized."""
    with collect(model) as extra:
        features = model(given.source, given.source_layout, given.decoder_input, given.decoder_layout)
    own = cross_entropy(features, model.output.weight, model.output.bias, given.labels, 0.1)
    return own, torch.stack(extra.losses).sum()


def test_auxiliary_losses_are_minimized_per_label_and_not_reported() -> None:
    model, given = build(), batch(0)
    torch.manual_seed(1)
    own, extra = by_hand(model, given)
    torch.manual_seed(1)
    found = batch_loss(model, given, 0.1)
    assert float(extra.detach()) > 0.01
    torch.testing.assert_close(found.total, own.total + given.tokens * extra)
    assert torch.equal(found.nll, own.nll)


def test_validation_ignores_auxiliary_losses() -> None:
    model, given = build().eval(), batch(0)
    found = batch_loss(model, given, 0.1)
    features = model(given.source, given.source_layout, given.decoder_input, given.decoder_layout)
    own = cross_entropy(features, model.output.weight, model.output.bias, given.labels, 0.1)
    assert torch.equal(found.total, own.total) and found.counts is None


def test_rdrop_averages_auxiliary_losses_over_both_passes() -> None:
    model, given = build(), batch(0)
    twice = TRAINING.model_copy(update={"rdrop": 0.0})
    torch.manual_seed(1)
    with collect(model) as extra:
        for _ in range(2):
            model(given.source, given.source_layout, given.decoder_input, given.decoder_layout)
    torch.manual_seed(1)
    found = build_objective(twice)(model, given)
    for module in model.modules():
        if isinstance(module, Experts):
            module.importance = module.load = 0.0
    torch.manual_seed(1)
    own = build_objective(twice)(model, given)
    expected = given.tokens * torch.stack(extra.losses).sum() / 2
    torch.testing.assert_close(found.total - own.total, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.counts, extra.row())


def test_accumulation_weights_auxiliary_losses_by_labels() -> None:
    model, group = build(), [batch(1), batch(2, rows=9)]
    torch.manual_seed(1)
    loss = StepRunner(TrainStep(model, TRAINING, CPU))(group)
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.manual_seed(1)
    parts = [by_hand(model, given) for given in group]
    tokens = [given.tokens for given in group]
    expected = sum(own.total + count * extra for (own, extra), count in zip(parts, tokens, strict=True))
    model.zero_grad()
    (expected / sum(tokens)).backward()
    torch.testing.assert_close(found, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert not loss.total.requires_grad
    assert loss.counts is not None and not any(vars(m).get("_collected") for m in model.modules())
    real = sum(int((given.source != 0).sum()) for given in group if given.source is not None)
    assert loss.counts[:4].sum() == 2 * real


def test_carried_windows_have_auxiliary_losses() -> None:
    decoder = {"kind": "recurrent", "layers": 2, "attention": {"kind": "none"}, "experts": EXPERTS, "dropout": 0.0}
    model = LanguageModel(ModelConfig.model_validate({"width": 8, "decoder": decoder}), 13).train()
    given = padded_batch(language_model_ids([], [np.arange(4, 12)] * 3), np.arange(3))
    torch.manual_seed(1)
    found = StepRunner(TrainStep(model, TRAINING, CPU), carry=True)([given])
    torch.manual_seed(1)
    plain = batch_loss(model, given, 0.1)
    torch.testing.assert_close(found.total, plain.total.detach())
    assert found.counts is not None and int(found.counts[:4].sum()) == 2 * 3 * 7


def test_routing_counts_become_shares() -> None:
    model = build()
    record = routing_record(model, [1.0, 2.0, 0.0, 1.0, 1.0, 0.0, 6.0, 0.0, 0.0, 2.0], 5)
    assert record.pop("experts") == {"encoder.0": [0.25, 0.5, 0.0, 0.25], "decoder.0": [0, 1, 0, 0]}
    assert record == {"dropped": 0.3, "dropped_choices": 15}
    assert routing_record(model, [], 5) == {}
    shares = {"encoder.0": [0.0] * 4, "decoder.0": [0.0] * 4}
    assert routing_record(model, [0.0] * 10, 5) == {"experts": shares, "dropped": 0.0, "dropped_choices": 0}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    experts = "{count: 4, top: 1, capacity: 1.0}"
    return [
        "data.limit=400",
        "data.validation_limit=4",
        "model.width=16",
        *(f"model.{side}.{key}" for side in ("encoder", "decoder") for key in ("layers=2", f"experts={experts}")),
        "training.batches.tokens=300",
        "training.limits.steps=7",
        "training.limits.epochs=null",
        "training.log_every=3",
        "training.validate_every=4",
        "training.device=cpu",
    ]


def records(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in lines if record["kind"] == "train"]


def test_routing_records_are_the_same_after_resuming(tmp_path: Path, small: list[str]) -> None:
    whole = sightline.train("dates", small, out=tmp_path / "whole").folder
    found = records(whole)
    assert [record["step"] for record in found] == [3, 6]
    for record in found:
        assert list(record["experts"]) == ["encoder.1", "decoder.1"]
        for shares in record["experts"].values():
            assert len(shares) == 4 and sum(shares) == pytest.approx(1.0, abs=2e-3) and min(shares) >= 0
        assert 0 < record["dropped"] < 0.6
        assert record["dropped_choices"] > 3 and isinstance(record["dropped_choices"], int)
    part = sightline.train(
        "dates", [*small, "training.limits.steps=4"], out=tmp_path / "parts"
    ).folder  # in between records
    sightline.train("dates", small, out=part, resume=True)
    keys = ("step", "loss", "nll", "experts", "dropped", "dropped_choices", "flops")
    assert [{key: record[key] for key in keys} for record in records(part)] == [
        {key: record[key] for key in keys} for record in found
    ]


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_gates_without_a_gradient_are_refused(side: str, small: list[str]) -> None:
    experts = "{count: 4, top_k: 1, noise: false, load: 0}"
    with pytest.raises(
        RecipeError, match=rf"model\.{side}: with experts\.top_k: 1 and experts\.load: 0 nothing teaches"
    ):
        open_recipe("dates", [*small, f"model.{side}.experts={experts}"])
