"""training.log_layers: what is measured, and a real training with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import sightline
import task_runs
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig
from sightline.training.callbacks import gradient_norms, parameters_by_part, part_of
from watched_runs import Silent


def journal(folder: Path, **training: Any) -> list[dict[str, Any]]:
    (folder / "train.txt").write_text(task_runs.verses(40, 1), encoding="utf-8")
    (folder / "valid.txt").write_text(task_runs.verses(10, 2), encoding="utf-8")
    recipe = task_runs.recipes()["lm-gru"]
    recipe["data"].pop("tests")
    recipe["training"] |= {"limits": {"steps": 4}, "clip": 0.01, **training}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    run = sightline.train(path, out=folder / "run", display=Silent()).folder
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "train"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SIGHTLINE_CORPORA", "")


def test_layer_norms_are_logged_before_clipping_and_add_up(tmp_path: Path) -> None:
    records = journal(tmp_path, log_layers=True, log_every=1)
    assert len(records) == 4
    for record in records:
        assert {"embedding", "decoder.layers.0", "output"} <= set(record["layers"])
        whole = math.sqrt(sum(norm**2 for norm in record["layers"].values()))
        assert whole == pytest.approx(record["gradient_norm"], rel=1e-4)
        assert whole > 0.01  # what it was clipped to


def test_layer_norms_do_not_change_the_training(tmp_path: Path) -> None:
    (tmp_path / "with").mkdir(), (tmp_path / "without").mkdir()
    with_norms = journal(tmp_path / "with", log_layers=True, log_every=2)
    without = journal(tmp_path / "without", log_every=2)
    assert all("layers" in record for record in with_norms) and not any("layers" in record for record in without)
    assert [record["loss"] for record in with_norms] == [record["loss"] for record in without]


def test_norms_of_parts_add_up() -> None:
    body = {"kind": "transformer", "layers": 2, "heads": 2}
    torch.manual_seed(1)
    model = Seq2Seq(ModelConfig.model_validate({"width": 8, "tie": "none", "encoder": body, "decoder": body}), 12, 12)
    for number, parameter in enumerate(model.parameters(), 1):
        parameter.grad = torch.full_like(parameter, 0.1 * number)
    parts = parameters_by_part(model)
    whole = torch.nn.utils.clip_grad_norm_(list(model.parameters()), float("inf"))
    assert float(gradient_norms(parts).pow(2).sum().sqrt()) == pytest.approx(float(whole), rel=1e-5)
    assert {"encoder.layers.0", "encoder.layers.1", "decoder.layers.1", "output", "source_embedding"} <= set(parts)
    model.encoder.layers[0].zero_grad(set_to_none=True)
    assert dict(zip(parts, gradient_norms(parts).tolist(), strict=True))["encoder.layers.0"] == 0.0


def test_a_parameter_belongs_to_its_layer_or_module() -> None:
    assert part_of("encoder.layers.3.attention.qkv.weight") == "encoder.layers.3"
    assert part_of("decoder.norm.gain") == "decoder.norm"
    assert part_of("output.bias") == "output"
    assert part_of("gain") == "gain"
