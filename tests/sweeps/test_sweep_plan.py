"""Planning a sweep: checks, existing runs, and their states."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_training import save

from sightline.recipe.loading import load_recipe, save_recipe
from sightline.sweeps.board import Follower
from sightline.sweeps.grid import SweepError
from sightline.sweeps.plan import SweepPlan, is_finished, plan_sweep
from sightline.sweeps.sweep import train_command
from sightline.training.resolve import open_recipe


def states(plan: SweepPlan) -> dict[str, str]:
    return {run.name: run.state for run in plan.runs}


def begin(plan: SweepPlan, *, step: int | None) -> None:
    """Record the sweep, with every run trained to a step."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    plan.record()
    for run in plan.runs:
        run.folder.mkdir(exist_ok=True)
        save_recipe(run.recipe, run.folder / "recipe.yaml")
        if step is not None:
            save(run.folder, step)


# --- before anything starts ----------------------------------------------------------------------------------------


def test_invalid_combinations_are_named(recipe: str, tmp_path: Path) -> None:
    grid = ["model.decoder.attention.kind=dot,none", "model.decoder.input_feeding=false,true", "seed=1,2"]
    with pytest.raises(SweepError) as error:
        plan_sweep(recipe, grid)
    first = "model.decoder.attention.kind=none model.decoder.input_feeding=true seed=1"
    assert str(error.value).startswith(f"combination {first} (and 1 more): ")
    assert "input_feeding: true needs an attention" in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_equal_recipes_are_one_run(recipe: str) -> None:
    plan = plan_sweep(recipe, ["training.lr=1e-3,0.001,2e-3", "seed=1,1"])
    assert [run.overrides for run in plan.runs] == [("training.lr=1e-3", "seed=1"), ("training.lr=2e-3", "seed=1")]
    assert len(plan.merged) == 4
    assert plan.merged[1] == "training.lr=0.001 seed=1 has the same recipe as training.lr=1e-3 seed=1"


def test_the_folder_is_named_after_the_recipe_and_planning_writes_nothing(recipe: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert plan_sweep(recipe, ["seed=1,2"]).folder == Path("runs/sweep-recipe")
    assert sorted(tmp_path.rglob("*")) == before


def test_planning_does_not_import_torch(recipe: str) -> None:
    plan = f"import sys; from sightline.sweeps.plan import plan_sweep; plan_sweep({recipe!r}, ['seed=1,2'])"
    subprocess.run([sys.executable, "-c", f"{plan}; sys.exit('torch' in sys.modules)"], check=True)


def test_a_path_is_not_a_shipped_recipe(recipe: str, tmp_path: Path) -> None:
    os.rename(recipe, tmp_path / "dates")
    assert plan_sweep(Path("dates"), ["seed=1"]).runs[0].recipe.model.width == 8
    assert plan_sweep("dates", ["seed=1"]).runs[0].recipe.model.width == 128


# --- coming back ---------------------------------------------------------------------------------------------------


def test_sweep_yaml_records_recipe_and_overrides(recipe: str) -> None:
    plan = plan_sweep(recipe, ["training.schedule={kind: cosine, warmup: 1},{kind: constant}", "seed=1"])
    begin(plan, step=None)
    document = yaml.safe_load((plan.folder / "sweep.yaml").read_text())
    assert document["recipe"] == recipe
    assert document["runs"] == [
        {"name": "schedule=cosine-warmup-1", "overrides": ["training.schedule={kind: cosine, warmup: 1}", "seed=1"]},
        {"name": "schedule=constant", "overrides": ["training.schedule={kind: constant}", "seed=1"]},
    ]
    assert states(plan_sweep(recipe, ["training.schedule={kind: constant}", "seed=1"])) == {
        "schedule=constant": "begun"
    }


def test_existing_runs_keep_their_names(recipe: str) -> None:
    begin(plan_sweep(recipe, ["seed=1,2"]), step=12)
    plan = plan_sweep(recipe, ["seed=1,2,3", "model.width=8,16"])  # width 8 is what the recipe has
    assert states(plan) == {
        "seed=1": "finished",
        "seed=1,width=16": "new",
        "seed=2": "finished",
        "seed=2,width=16": "new",
        "seed=3,width=8": "new",
        "seed=3,width=16": "new",
    }
    assert plan.others == ()
    assert states(plan_sweep(recipe, ["seed=1", "model.width=16"])) == {"seed=1,width=16": "new"}
    plan = plan_sweep(recipe, ["seed=3"])
    assert states(plan) == {"seed=3": "new"}
    assert [(run.name, run.state) for run in plan.others] == [("seed=1", "finished"), ("seed=2", "finished")]


def test_a_raised_limit_continues_existing_runs(recipe: str) -> None:
    begin(plan_sweep(recipe, ["seed=1,2"]), step=12)
    longer = plan_sweep(recipe, ["seed=1,2", "training.limits.steps=20"])
    assert states(longer) == {"seed=1": "begun", "seed=2": "begun"}
    begin(longer, step=20)
    assert states(plan_sweep(recipe, ["seed=1,2", "training.limits.steps=20"])) == dict.fromkeys(
        states(longer), "finished"
    )


def test_changed_decoding_resumes_a_finished_run(recipe: str) -> None:
    """Resuming trains nothing more, but writes the new recipe."""
    begin(plan_sweep(recipe, ["seed=1"]), step=12)
    assert states(plan_sweep(recipe, ["seed=1", "decoding.beam=4"])) == {"seed=1": "begun"}


def test_a_run_named_after_a_limit_is_not_extended(recipe: str) -> None:
    begin(plan_sweep(recipe, ["training.limits.steps=12"]), step=12)
    plan = plan_sweep(recipe, ["training.limits.steps=20"])
    assert states(plan) == {"steps=20": "new"}
    assert [run.name for run in plan.others] == ["steps=12"]


def test_runs_with_init_from_are_recognized(recipe: str) -> None:
    grid = ["model.init_from=started", "seed=1,2"]  # of which a training saves the absolute path
    plan = plan_sweep(recipe, grid)
    begin(plan, step=12)
    for run in plan.runs:
        save_recipe(open_recipe(recipe, run.overrides)[0], run.folder / "recipe.yaml")
    assert states(plan_sweep(recipe, grid)) == {"seed=1": "finished", "seed=2": "finished"}


def test_a_different_recipe_in_the_folder_is_refused(recipe: str) -> None:
    begin(plan_sweep(recipe, ["seed=1,2"]), step=12)
    document = yaml.safe_load(Path(recipe).read_text())
    document["training"] |= {"lr": 0.5, "log_every": 1}  # how often is logged may change
    Path(recipe).write_text(yaml.safe_dump(document))
    message = (
        r"sweep-recipe/seed=1 was trained with another recipe: training\.lr: 0\.0005 then, 0\.5 now; give .* --out"
    )
    for grid in (["seed=1,2"], ["seed=3"]):
        with pytest.raises(SweepError, match=message):
            plan_sweep(recipe, grid)
    document["model"]["decoder"] = {"kind": "transformer", "layers": 1, "heads": 2}
    begin(plan_sweep(recipe, ["model.decoder.cell=lstm"], out="other"), step=12)
    Path(recipe).write_text(yaml.safe_dump(document))
    message = r"other is a sweep of another recipe: .* cannot make its run cell=lstm \(.*unknown key"
    with pytest.raises(SweepError, match=message):
        plan_sweep(recipe, ["seed=1"], out="other")


def test_runs_of_other_recipes_are_recorded(recipe: str, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    document = yaml.safe_load(Path(recipe).read_text())
    other.write_text(yaml.safe_dump(document | {"model": {**document["model"], "width": 16}}))
    variants = [{"name": "own"}, {"recipe": "other.yaml", "training.lr": 0.01}]
    plan = plan_sweep(recipe, ["seed=1,2"], variants=variants, out="sweep")
    assert [run.recipe.model.width for run in plan.runs] == [8, 8, 16, 16]
    assert [run.recipe_name for run in plan.runs] == [recipe, recipe, "other.yaml", "other.yaml"]
    assert train_command(plan.runs[2])[3:6] == ["train", "other.yaml", "training.lr=0.01"]
    begin(plan, step=12)
    record = yaml.safe_load((plan.folder / "sweep.yaml").read_text())
    assert record["format"] == 2  # of which versions that know no such runs say so
    entries = record["runs"]
    assert ["recipe" in entry for entry in entries] == [False, False, True, True]
    assert entries[2] == {
        "name": "other,lr=0.01,seed=1",
        "recipe": "other.yaml",
        "overrides": ["training.lr=0.01", "seed=1"],
    }
    assert set(states(plan_sweep(recipe, ["seed=1,2"], variants=variants, out="sweep")).values()) == {"finished"}
    plan = plan_sweep(recipe, ["seed=3"], out="sweep")  # the others are still made by their own recipe
    assert [(run.name, run.recipe_name, run.state) for run in plan.others][2:] == [
        (f"other,lr=0.01,seed={seed}", "other.yaml", "finished") for seed in (1, 2)
    ]
    other.unlink()
    with pytest.raises(SweepError, match=r"sweep\.yaml names another recipe: other\.yaml cannot make its run other,lr"):
        plan_sweep(recipe, ["seed=3"], out="sweep")


def test_a_sweep_of_an_older_version_continues(recipe: str) -> None:
    plan = plan_sweep(recipe, ["seed=1,2"], out="sweep")
    begin(plan, step=12)
    path = plan.folder / "sweep.yaml"
    path.write_text(path.read_text().replace("format: 2", "format: 1"))
    assert set(states(plan_sweep(recipe, ["seed=1,2"], out="sweep")).values()) == {"finished"}


# --- whether a run has ended ---------------------------------------------------------------------------------------


def finished_run(folder: Path, **progress: Any) -> Path:
    save(folder, 12)
    path = folder / "checkpoints" / "step-00000012" / "progress.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | progress))
    os.utime(folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("limits", "progress", "expected"),
    [
        ({"steps": 12}, {}, True),
        ({"steps": 13}, {}, False),
        ({"steps": 12}, {"validated": 6}, False),
        ({"steps": 13, "epochs": 2}, {"epoch": 2}, True),
        ({"epochs": 2}, {"epoch": 1}, False),
        ({"minutes": 1}, {"seconds": 60.1}, True),
        ({"minutes": 1}, {"seconds": 59.9}, False),
        ({"steps": 100}, {"waited": 3}, True),  # the patience
        ({"steps": 100}, {"waited": 2}, False),
    ],
)
def test_a_run_is_finished_at_a_validated_limit(
    recipe: str, tmp_path: Path, limits: dict[str, Any], progress: dict[str, Any], expected: bool
) -> None:
    changed = [f"training.limits={json.dumps(limits)}", "training.stopping.patience=3"]
    assert is_finished(finished_run(tmp_path / "run", **progress), load_recipe(recipe, changed)) is expected


def test_a_run_without_its_model_is_not_finished(recipe: str, tmp_path: Path) -> None:
    run, loaded = finished_run(tmp_path / "run"), load_recipe(recipe)
    assert is_finished(run, loaded)
    os.utime(run / "model.safetensors", (0, 0))  # that of an earlier, better step
    assert not is_finished(run, loaded)
    (run / "model.safetensors").unlink()
    assert not is_finished(run, loaded)
    run = finished_run(tmp_path / "other")
    (run / "checkpoints" / "step-00000012" / "progress.json").write_text("{")
    assert not is_finished(run, loaded)
    (run / "checkpoints" / "step-00000012").rename(run / "checkpoints" / ".step-00000012.tmp")
    assert not is_finished(run, loaded)


def test_a_counted_model_is_finished_with_its_card(recipe: str, tmp_path: Path) -> None:
    changes = ["task=language-model", "model={decoder: {kind: ngram}}", "evaluation={}", "data.clean={}"]
    run, counted = tmp_path / "run", load_recipe(recipe, changes)
    run.mkdir()
    (run / "model.safetensors").write_bytes(b"")
    assert not is_finished(run, counted)
    (run / "README.md").write_text("")
    assert is_finished(run, counted)


# --- how far a run is ----------------------------------------------------------------------------------------------


def test_follower_reads_a_growing_or_truncated_log(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path, "bleu")
    follower.read()
    assert (follower.newest("step"), follower.score, follower.speed) == (None, "", "")
    validation = {"kind": "validation", "step": 10, "epoch": 0, "loss": 2.5}
    train = {"kind": "train", "step": 20, "epoch": 1, "tokens_per_second": 12345.6}
    path.write_text(json.dumps(validation) + "\n" + json.dumps(train)[:20])
    follower.read()
    assert (follower.newest("step"), follower.score) == (10, "loss 2.500")
    path.write_text(json.dumps(validation) + "\n" + json.dumps(train) + "\n")
    follower.read()
    assert (follower.newest("step"), follower.newest("epoch"), follower.speed) == (20, 1, "12,346 tokens/s")
    path.write_text(json.dumps(validation | {"bleu": 31.415}) + "\n")  # shorter: resumed from an earlier step
    follower.read()
    assert re.fullmatch(r"bleu 31\.4\d", follower.score)
