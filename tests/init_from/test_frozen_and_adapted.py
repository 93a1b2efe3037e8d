"""Trainings that begin with another run and learn less than all: frozen layers, adapters; and how they go on."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_trainings import STAY, Trainer, a_recipe, sentence, weights
from typer.testing import CliRunner

import sightline
from sightline.augment.merging import merge_run
from sightline.cli.app import app
from sightline.cli.train import print_dry_run
from sightline.recipe.loading import load_recipe
from sightline.recipe.recipe import section_differences
from sightline.run_folder import read_config
from sightline.training.dry_run import dry_run
from sightline.training.resolve import open_recipe
from sightline.training.world import Interrupted
from watched_runs import Silent, records

ADAPTED = {"adapters": {"rank": 2, "target_modules": ["query", "value", "feedforward"], "dropout": 0.1}}


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({}, {}),
        ({}, {"freeze": ["embeddings", "encoder.0"], "layer_lr_decay": 0.5}),
        (ADAPTED, {"layer_lr_decay": 0.5, "averaging": {"kind": "ema"}}),
    ],
    ids=["plain", "frozen", "adapters"],
)
def test_a_resumed_training_is_the_uninterrupted_one_even_when_the_start_is_gone(
    model: Any, training: dict[str, Any], started: dict[str, Path], train: Trainer, tmp_path: Path
) -> None:
    start = Path(shutil.copytree(started["seq2seq"], tmp_path / "start"))
    recipe = a_recipe("tagging", 8, start=start, model=model, **training)
    whole = train(recipe, out="whole")
    stop = Silent({5: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    with pytest.raises(Interrupted):
        train(recipe, display=stop)
    shutil.rmtree(start)
    run = sightline.train(tmp_path / "run", resume=True, display=Silent()).folder
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert records(run, "train") == records(whole, "train")
    assert (run / "start.json").read_bytes() == (whole / "start.json").read_bytes()


def test_frozen_layers_keep_the_weights_of_the_run(started: dict[str, Path], train: Trainer) -> None:
    run = train(a_recipe("tagging", start=started["seq2seq"], freeze=["embeddings", "encoder.0"], result="last"))
    own, theirs = weights(run), weights(started["seq2seq"])
    for name, weight in own.items():
        if name.startswith("encoder."):
            assert torch.equal(weight, theirs[name]) == name.startswith("encoder.layers.0."), name
    assert torch.equal(own["source_embedding.weight"], theirs["target_embedding.weight"])
    assert any("trained, the others frozen" in note for note in train.display.notes)
    state = load_file(max((run / "checkpoints").iterdir()) / "optimizer.safetensors")
    assert state.keys()
    assert not any(name.startswith(("encoder.layers.0.", "source_embedding.")) for name in state)


def test_freezing_an_unknown_part_is_refused(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training\.freeze: nothing in this model is called 'encoder\.7'"):
        train(a_recipe("tagging", start=started["seq2seq"], freeze=["encoder.7"]))
    with pytest.raises(ValueError, match=r"training\.freeze leaves nothing to learn"):
        train(a_recipe("tagging", start=started["seq2seq"], freeze=["embeddings", "encoder", "output"]))
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_only_adapters_and_new_parameters_are_trained(started: dict[str, Path], train: Trainer) -> None:
    run = train(a_recipe("tagging", start=started["seq2seq"], model=ADAPTED, result="last"))
    own, theirs = weights(run), weights(started["seq2seq"])
    fresh = [name for name in own if ".adapters." in name and name.endswith(".up")]
    assert len(fresh) == 2 * 4
    assert all(own[name].abs().sum() > 0 for name in fresh)  # they begin at zero
    for name in own:
        if name in theirs and name.startswith("encoder."):
            assert torch.equal(own[name], theirs[name]), name
    assert own["output.bias"].abs().sum() > 0
    also = {"adapters": {**ADAPTED["adapters"], "modules_to_save": ["encoder.norm"]}}
    other = weights(train(a_recipe("tagging", start=started["seq2seq"], model=also, result="last"), out="also"))
    changed = {name for name in other if name in theirs and not torch.equal(other[name], theirs[name])}
    assert {name for name in changed if name.startswith("encoder.")} == {"encoder.norm.weight", "encoder.norm.bias"}


def test_a_merged_run_has_no_adapters_and_the_same_outputs(
    started: dict[str, Path], train: Trainer, tmp_path: Path
) -> None:
    recipe = {
        **a_recipe("seq2seq", 12, start=started["seq2seq"], model=ADAPTED, result="last"),
        "evaluation": {"metrics": ["perplexity"]},
    }
    recipe["model"]["adapters"] = {**ADAPTED["adapters"], "modules_to_save": ["output"]}
    run = train(recipe)
    found = CliRunner().invoke(app, ["merge", str(run), "--out", str(tmp_path / "merged")])
    assert found.exit_code == 0, found.output
    merged = tmp_path / "merged"
    assert not any(".adapters." in name for name in weights(merged))
    assert load_recipe(merged / "recipe.yaml").model.adapters is None
    own, card = ((each / "README.md").read_text() for each in (run, merged))
    assert "| adapters | rank 2" in own and "of them trained |" in own
    assert "adapter" not in card and "of them trained" not in card
    texts = [" ".join(sentence(number)) for number in range(20)]
    plain, adapted = sightline.load(merged), sightline.load(run)
    assert read_config(merged)["parameters"] == sum(part.numel() for part in weights(merged).values())
    assert plain.predict(texts) == adapted.predict(texts)
    measured = records(run, "validation")  # by the model with its adapters
    assert measured[0]["perplexity"] - measured[-1]["perplexity"] > 0.01
    score = plain.evaluate("validation").scores[0].value
    assert score == pytest.approx(measured[-1]["perplexity"], rel=1e-5)
    with pytest.raises(ValueError, match=r"has no adapters \(model\.adapters\) to merge"):
        merge_run(merged, tmp_path / "again")
    with pytest.raises(ValueError, match=r"has adapters beside its weights.*sightline runs merge"):
        train(a_recipe("tagging", start=run), out="from-adapted")
    train(a_recipe("tagging", start=merged, **STAY), out="from-merged")
    with pytest.raises(ValueError, match=r"was made from .* cannot be resumed"):
        sightline.train(merged, resume=True, display=Silent())


def test_a_dry_run_prints_trained_and_initialized_parameters(
    started: dict[str, Path], train: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, _ = open_recipe(train.write(a_recipe("tagging", start=started["seq2seq"], model=ADAPTED)))
    found = dry_run(recipe)
    assert found.trained[""] == found.trained["encoder"] + found.parts["output"]
    assert found.trained["source_embedding"] == 0
    print_dry_run(found)
    shown = capsys.readouterr().out
    assert f"{found.trained['']:,} trained, {found.parameters - found.trained['']:,} frozen" in shown
    assert f"starting from {started['seq2seq']}" in shown


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("ewt/from-bert", "bert"),
        ("sst2/from-bert", "bert"),
        ("debian-synopsis/from-bart", "bart"),
        ("debian-synopsis/from-t5", "t5"),
        ("multi30k/from-bart", "bart"),
    ],
)
def test_recipes_that_adapt_have_the_model_of_the_one_they_start_from(name: str, first: str) -> None:
    own, theirs = load_recipe(name), load_recipe(f"pretraining/{first}")
    free = frozenset({"dropout", "attention_dropout", "variants"})
    assert section_differences(theirs.tokenizer, own.tokenizer, "tokenizer", free) == []
    assert (own.model.width, own.model.tie) == (theirs.model.width, theirs.model.tie)
    for side, body in own.model.bodies.items():
        assert section_differences(theirs.model.bodies[side], body, f"model.{side}", free) == []
