"""`sightline average`: the mean of checkpoints as a run of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

import sightline
from sightline.augment.merging import average_run
from sightline.cli.app import app
from sightline.files import write_atomically
from sightline.recipe.loading import load_recipe
from sightline.recipe.sources import TsvSource
from sightline.run_folder import RunError, read_config, seal_run
from sightline.training.averaging import mean_weights
from sightline.training.checkpoints import Checkpoints
from task_runs import trained_tasks
from tiny_recipes import GRU, sequences, training, write_recipe
from watched_runs import Silent, own_cache


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run with checkpoints of steps 4, 6, 8 and 10; shared, do not modify."""
    folder = tmp_path_factory.mktemp("averaging")
    recipe: dict[str, Any] = {
        "data": sequences(60, 60),
        "tokenizer": {"kind": "word", "min_count": 1},
        "model": {"width": 8, "encoder": GRU, "decoder": GRU},
        "training": training(10, batches={"tokens": 100}, validate_every=2, keep=4),
        "evaluation": {"metrics": ["perplexity"]},
    }
    with own_cache(folder / "cache"):
        yield sightline.train(write_recipe(folder, recipe), out=folder / "run", display=Silent()).folder


def test_weights_are_the_mean_and_everything_else_is_copied(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "mean"
    result = CliRunner().invoke(app, ["average", str(run), "--count", "3", "--out", str(out)], catch_exceptions=False)
    assert result.stderr == f"done: {out}, the mean of the checkpoints of step 6, 8, 10\n"
    checkpoints = Checkpoints(run, 4)
    expected = mean_weights([checkpoints.weights(step) for step in (6, 8, 10)])
    found = load_file(out / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    averaging = load_recipe(out / "recipe.yaml").training.averaging
    assert (averaging.kind, averaging.count) == ("checkpoints", 3)
    assert "| weights | the mean of the checkpoints of step 6, 8, 10; no validation" in (out / "README.md").read_text()
    assert read_config(out)["parameters"] == read_config(run)["parameters"]
    assert (out / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert sightline.load(out, device="cpu").evaluate("validation").scores[0].value > 1
    compared = sightline.compare([run, out], device="cpu", metrics=["perplexity"])
    first, second = (system.cost for system in compared.systems)
    assert (first.flops, first.tokens, first.least) == (second.flops, second.tokens, second.least)


def test_the_averaged_run_records_the_absolute_path_of_its_source(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "own")
    config = read_config(run)
    write_atomically(tmp_path / "own" / "config.json", json.dumps({**config, "sightline": "0.0.1"}))
    seal_run(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    average_run(Path("own"), Path("deep") / "mean", 9)
    found = read_config(tmp_path / "deep" / "mean")
    assert found == {**config, "averaged_from": str(tmp_path / "own"), "steps": [4, 6, 8, 10]}
    assert load_recipe(tmp_path / "deep" / "mean" / "recipe.yaml").training.averaging.count == 4


def test_labels_are_copied(tmp_path: Path) -> None:
    with trained_tasks(tmp_path, ["classify-mean"]) as runs:
        average_run(runs["classify-mean"], tmp_path / "mean", 2)
        labels = [sightline.load(each, device="cpu").vocabulary.target for each in (*runs.values(), tmp_path / "mean")]
        assert labels[0].content == labels[1].content


def test_an_older_best_checkpoint_is_not_averaged(run: Path, tmp_path: Path) -> None:
    own, out = Path(shutil.copytree(run, tmp_path / "own")), tmp_path / "mean"
    best = Checkpoints(own, 4)
    shutil.copytree(best.path(4), best.path(2))
    assert best.steps() == [2, 4, 6, 8, 10]
    result = CliRunner().invoke(app, ["average", str(own), "--count", "9", "--out", str(out)], catch_exceptions=False)
    assert result.stderr.endswith("of step 4, 6, 8, 10 (only 4 of 9 exist)\n")


def test_damaged_checkpoints_are_reported_and_skipped(run: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(run, tmp_path / "own"))
    (Checkpoints(own, 4).path(8) / "model.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="step-00000008 is damaged or gone"):
        assert average_run(own, tmp_path / "mean", 3) == [4, 6, 10]


def test_runs_without_enough_checkpoints_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--count 1: a mean is of two checkpoints or more"):
        average_run(run, tmp_path / "mean", 1)
    with pytest.raises(RunError, match="exists already; give another folder with --out"):
        average_run(run, tmp_path, 3)
    single = Path(shutil.copytree(run, tmp_path / "single"))
    for step in (4, 6, 8):
        shutil.rmtree(Checkpoints(single, 4).path(step))
    with pytest.raises(RunError, match="single has 1 of the checkpoints that a mean is made of"):
        average_run(single, tmp_path / "mean", 2)
    average_run(run, tmp_path / "mean", 2)
    with pytest.raises(RunError, match=r"has 0 of the checkpoints .* training\.keep=5 \(and training\.save_every"):
        average_run(tmp_path / "mean", tmp_path / "again", 5)
    with pytest.raises(
        ValueError, match=r"was made from .* and cannot be resumed; start a new training with model\.init_from"
    ):
        sightline.train(tmp_path / "mean", resume=True, display=Silent())


def change_recipe(run: Path, **sections: Any) -> None:
    """Change the recipe of a copied run."""
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    for name, values in sections.items():
        recipe[name] |= values
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    seal_run(run)


def test_checkpoints_kept_for_averaging_can_be_averaged(run: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(run, tmp_path / "own"))
    change_recipe(own, training={"keep": 2, "averaging": {"kind": "none", "count": 4}})
    assert average_run(own, tmp_path / "two", 5) == [8, 10]
    change_recipe(own, training={"averaging": {"kind": "checkpoints", "count": 4}})
    assert average_run(own, tmp_path / "four", 5) == [4, 6, 8, 10]


def test_text_inside_the_run_folder_is_found_from_the_average(run: Path, tmp_path: Path) -> None:
    """For example the distilled text of a student."""
    own = Path(shutil.copytree(run, tmp_path / "own"))
    (own / "distilled.tsv").write_text("a\tb\n")
    change_recipe(own, data={"train": [{"kind": "tsv", "file": "/far/away/distilled.tsv"}]})
    average_run(own, tmp_path / "mean", 2)
    (text,) = load_recipe(tmp_path / "mean" / "recipe.yaml").data.train
    assert isinstance(text, TsvSource) and text.file == str(own.resolve() / "distilled.tsv")


def test_n_gram_models_cannot_be_averaged(run: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(run, tmp_path / "own"))
    text = {"kind": "plain", "file": "text.txt"}
    model = {"decoder": {"kind": "ngram", "order": 2}}
    recipe = {"task": "language-model", "data": {"train": [text], "validation": text}, "model": model}
    (own / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    seal_run(own)
    with pytest.raises(RunError, match="was counted, not trained step by step"):
        average_run(own, tmp_path / "mean", 2)


def test_a_checkpoint_removed_during_averaging_is_reported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(shutil.copytree(run, tmp_path / "own"))
    usable = Checkpoints.usable

    def then_gone(checkpoints: Checkpoints, step: int) -> bool:
        found = usable(checkpoints, step)
        if step == 10:
            shutil.rmtree(checkpoints.path(6))
        return found

    monkeypatch.setattr(Checkpoints, "usable", then_gone)
    with pytest.raises(RunError, match=r"own went away meanwhile \(.*step-00000006.*is it still trained\? try again"):
        average_run(own, tmp_path / "mean", 3)
    assert not (tmp_path / "mean").exists()
