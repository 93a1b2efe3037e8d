"""training.log_layers in a real training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

import sightline
import task_runs
from watched_runs import Silent


def journal(folder: Path, **training: Any) -> list[dict[str, Any]]:
    (folder / "train.txt").write_text(task_runs.verses(40, 1), encoding="utf-8")
    (folder / "valid.txt").write_text(task_runs.verses(10, 2), encoding="utf-8")
    recipe = task_runs.recipes()["lm-gru"]
    recipe["data"].pop("tests")
    recipe["training"] |= {"limits": {"steps": 4}, "clip": 0.01, **training}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    run = sightline.train(path, out=folder / "run", display=Silent())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "train"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SIGHTLINE_CORPORA", "")


def test_the_norms_of_layers_are_written_before_clipping_and_make_up_the_whole(tmp_path: Path) -> None:
    records = journal(tmp_path, log_layers=True, log_every=1)
    assert len(records) == 4
    for record in records:
        assert {"embedding", "decoder.layers.0", "output"} <= set(record["layers"])
        whole = math.sqrt(sum(norm**2 for norm in record["layers"].values()))
        assert whole == pytest.approx(record["gradient_norm"], rel=1e-4)
        assert whole > 0.01  # what it was clipped to


def test_without_it_nothing_is_written_and_the_training_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "with").mkdir(), (tmp_path / "without").mkdir()
    with_norms = journal(tmp_path / "with", log_layers=True, log_every=2)
    without = journal(tmp_path / "without", log_every=2)
    assert all("layers" in record for record in with_norms) and not any("layers" in record for record in without)
    assert [record["loss"] for record in with_norms] == [record["loss"] for record in without]
