"""Killed, interrupted and failed trainings resume exactly."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import sightline
from dated_runs import KINDS, TRANSFORMER, Trained, dates, write_recipe
from ordered_commands import Moment, Server
from sightline.run import Run
from sightline.run_folder import RunError
from sightline.training.loggers import NotFinite
from watched_runs import Silent, records

MOMENTS = {
    "before the folder is complete": Moment("os.rename", "config.json"),
    "before the first checkpoint": Moment("sightline.step", "<1>"),
    "while the first checkpoint is written": Moment("open", "progress.json"),
    "after a step": Moment("sightline.step", "<3>"),
    "before a checkpoint gets its name": Moment("os.rename", "step-00000004"),
    "after a validation, before its checkpoint": Moment("sightline.validation", "<4>"),
    "after a checkpoint got its name, before others go": Moment("shutil.rmtree", "checkpoints/step-"),
    "between validations": Moment("sightline.step", "<11>"),
    "while the model is written": Moment("os.rename", "model.safetensors"),
}


# --- resume is exact ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_killed_training_resumes_exactly(
    kind: str, trained: Callable[[str], Trained], command: Server, tmp_path: Path
) -> None:
    whole, run = trained(kind), tmp_path / "run"
    moments = MOMENTS if kind == "lstm" else {name: MOMENTS[name] for name in list(MOMENTS)[2::2]}
    for name, moment in moments.items():
        result = command("train", whole.recipe, "--out", run, "--resume", moment=moment)
        assert result.code == -signal.SIGKILL, f"{name}: {result.err}"
        if (run / "model.safetensors").exists():  # of the best validation so far
            assert load_file(run / "model.safetensors").keys() == load_file(whole.run / "model.safetensors").keys()
    result = command("train", whole.recipe, "--out", run, "--resume")
    assert result.code == 0, result.err
    assert (run / "model.safetensors").read_bytes() == whole.model()
    assert records(run) == records(whole.run)
    assert sorted(path.name for path in run.rglob(".*.tmp")) == []
    steps = [path.name for path in sorted((run / "checkpoints").iterdir())]
    assert steps == [path.name for path in sorted((whole.run / "checkpoints").iterdir())]


def test_killed_from_outside_while_a_large_checkpoint_is_written(command: Server, tmp_path: Path) -> None:
    """At no exact moment, but when the half of a checkpoint is seen on the disk."""
    recipe = write_recipe(tmp_path, body=TRANSFORMER, width=256, limits={"steps": 3})
    assert command("train", recipe, "--out", tmp_path / "whole").code == 0
    run = tmp_path / "run"
    process, _ = command.start("train", recipe, "--out", run)
    deadline = time.monotonic() + 300
    while not (half := list((run / "checkpoints").glob(".step-*.tmp/optimizer.safetensors"))):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    process.kill()
    process.join()
    assert half[0].exists(), "the checkpoint was finished before the kill"
    assert list((run / "checkpoints").glob("step-*")) == []
    result = command("train", recipe, "--out", run, "--resume")
    assert result.code == 0, result.err
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert records(run) == records(tmp_path / "whole")


def test_two_trainings_of_one_recipe_are_the_same_byte_for_byte(
    trained: Callable[[str], Trained], tmp_path: Path
) -> None:
    whole = trained("lstm")
    again = sightline.train(whole.recipe, out=tmp_path / "again", display=Silent()).folder
    assert (again / "model.safetensors").read_bytes() == whole.model()
    other = sightline.train(whole.recipe, ["seed=2"], out=tmp_path / "other", display=Silent()).folder
    assert (other / "model.safetensors").read_bytes() != whole.model()


def test_counting_operations_changes_nothing_that_is_learned(
    trained: Callable[[str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained("transformer-ema")
    monkeypatch.setattr("sightline.training.train.flop_rate", lambda step, plan: lambda batch: 0)
    uncounted = sightline.train(whole.recipe, out=tmp_path / "uncounted", display=Silent()).folder
    assert (uncounted / "model.safetensors").read_bytes() == whole.model()
    counted = records(whole.run)
    spent = [record["flops"] for record in counted]
    assert spent == sorted(spent)
    assert spent[0] > 0
    assert [{**record, "flops": 0} for record in counted] == records(uncounted)


def test_damaged_checkpoint_is_skipped(trained: Callable[[str], Trained], command: Server, tmp_path: Path) -> None:
    whole, run = trained("lstm"), tmp_path / "run"
    command("train", whole.recipe, "--out", run, moment=Moment("sightline.step", "<9>"))
    newest = run / "checkpoints" / "step-00000008" / "optimizer.safetensors"
    data = bytearray(newest.read_bytes())
    data[-5] ^= 16
    newest.write_bytes(bytes(data))
    result = command("train", whole.recipe, "--out", run, "--resume")
    assert result.code == 0, result.err
    assert "step-00000008 is damaged" in result.err
    assert "resumed at step 6" in result.err
    assert (run / "model.safetensors").read_bytes() == whole.model()
    assert records(run) == records(whole.run)


def test_ctrl_c_saves_and_names_the_command(trained: Callable[[str], Trained], command: Server, tmp_path: Path) -> None:
    whole, run = trained("lstm"), tmp_path / "run"
    interrupt = Moment("sightline.step", "<5>", signal.SIGINT)
    result = command("train", whole.recipe, "--out", run, moment=interrupt)
    assert result.code == 130
    assert result.err.splitlines()[-1] == f"interrupted and saved; continue with: sightline train {run} --resume"
    assert (run / "checkpoints" / "step-00000005").is_dir()
    assert len(sightline.load(run, device="cpu").predict(["3 March 2015"])) == 1  # it can be used as it is
    result = command("train", run, "--resume")  # as it said
    assert result.code == 0, result.err
    assert (run / "model.safetensors").read_bytes() == whole.model()
    assert records(run) == records(whole.run)


# --- what goes wrong ---------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_and_saves_the_batch(cache: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, body=TRANSFORMER, lr=1e20, schedule={"kind": "constant", "warmup": 0}, save_every=1)
    with pytest.raises(NotFinite, match=r"bad-batch\.json, the last good checkpoint is step \d.*Lower training\.lr"):
        sightline.train(recipe, out=tmp_path / "run", display=Silent())
    bad = json.loads((tmp_path / "run" / "bad-batch.json").read_text())
    corpus = dict(line.rstrip("\n").split("\t") for line in dates(60, 0))
    assert bad["examples"]
    assert all(corpus[example["source"]] == example["target"] for example in bad["examples"])
    kept = list((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert all(torch.isfinite(t).all() for folder in kept for t in load_file(folder / "model.safetensors").values())


def test_a_disk_that_fills_up_while_saving_leaves_the_old_checkpoint(
    trained: Callable[[str], Trained], command: Server, tmp_path: Path
) -> None:
    whole, run = trained("lstm"), tmp_path / "run"
    command("train", whole.recipe, "--out", run, moment=Moment("sightline.step", "<3>"))
    before = {path.name: path.read_bytes() for path in (run / "checkpoints" / "step-00000002").iterdir()}
    size = len(before["model.safetensors"]) + 100  # enough for the model, not for the optimizer's state
    result = command("train", whole.recipe, "--out", run, "--resume", largest_file=size)
    assert result.code == 1
    told = result.err.splitlines()[-1]  # one line, no traceback
    assert told.startswith(f"sightline: checkpoint {run}/checkpoints/step-00000004 could not be written")
    assert "File too large" in told
    assert told.endswith("earlier ones are kept. Make room, then continue with --resume")
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000002"]
    after = {path.name: path.read_bytes() for path in (run / "checkpoints" / "step-00000002").iterdir()}
    assert after == before
    assert command("train", whole.recipe, "--out", run, "--resume").code == 0  # with room again
    assert (run / "model.safetensors").read_bytes() == whole.model()


def test_a_second_training_into_one_folder_refuses(
    trained: Callable[[str], Trained], command: Server, tmp_path: Path
) -> None:
    recipe, run = trained("lstm").recipe, tmp_path / "run"
    first, _ = command.start("train", recipe, "--out", run, moment=Moment("sightline.step", "<3>", signal.SIGSTOP))
    try:
        deadline = time.monotonic() + 300
        while not (run / "checkpoints" / "step-00000002").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for how in ([], ["--resume"]):
            second = command("train", recipe, "--out", run, *how)
            assert second.code == 1
            assert second.err == (
                f"sightline: another training is writing to {run}; wait for it, stop it, or give another folder "
                f"with --out\n"
            )
    finally:
        first.kill()
        first.join()
    assert command("train", recipe, "--out", run, "--resume").code == 0  # the lock went with the process


def test_existing_training_is_not_overwritten(finished: Path, trained: Callable[[str], Trained]) -> None:
    before = (finished / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match=r"holds a training already; continue it with --resume, or give another folder"):
        sightline.train(trained("lstm").recipe, out=finished, display=Silent())
    assert (finished / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.lr=0.1", r"training\.lr: 0\.005 then, 0\.1 now"),
        ("seed=7", r"seed: 1 then, 7 now"),
        ("model.width=32", r"model\.width: 16 then, 32 now"),
        ("model.decoder.attention.kind=dot", r"model\.decoder\.attention\.kind: 'additive' then, 'dot' now"),
        ("data.limit=10", r"data\.limit: None then, 10 now"),
        ("training.stopping.monitor=loss", r"training\.stopping\.monitor: 'metric' then, 'loss' now"),
    ],
)
def test_resuming_with_another_recipe_is_refused_and_names_the_key(finished: Path, override: str, told: str) -> None:
    with pytest.raises(RunError, match=rf"cannot be resumed with this one: {told}$"):
        sightline.train(finished, [override], resume=True, display=Silent())


def test_a_finished_training_can_be_made_longer(finished: Path) -> None:
    sightline.train(finished, ["training.limits.steps=14"], resume=True, display=Silent())
    steps = [record["step"] for record in records(finished) if record["kind"] == "validation"]
    assert steps == [4, 8, 12, 14]


def test_model_without_checkpoints_is_not_overwritten(finished: Path) -> None:
    shutil.rmtree(finished / "checkpoints")
    model = (finished / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match=r"finished has a model and no whole checkpoint to resume from; start a new"):
        sightline.train(finished, ["training.limits.steps=14"], resume=True, display=Silent())
    assert (finished / "model.safetensors").read_bytes() == model


def test_resuming_without_a_training_is_an_error(trained: Callable[[str], Trained], tmp_path: Path) -> None:
    whole, display = trained("lstm"), Silent()
    run = sightline.train(whole.recipe, out=tmp_path / "run", resume=True, display=display).folder
    assert f"nothing to resume in {run}: starting at step 0" in display.notes
    assert (run / "model.safetensors").read_bytes() == whole.model()


def test_a_training_whose_text_cannot_be_used_leaves_no_folder(cache: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with pytest.raises(ValueError, match="no examples are left"):
        sightline.train(recipe, ["data.clean.max_tokens=2"], out=tmp_path / "run", display=Silent())
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()  # one that was there stays
    with pytest.raises(ValueError, match="no examples are left"):
        sightline.train(recipe, ["data.clean.max_tokens=2"], out=tmp_path / "run", display=Silent())
    assert (tmp_path / "run").is_dir()


def test_resuming_with_a_moved_data_folder(finished: Path, tmp_path: Path) -> None:
    folder = Run.load(finished, device="cpu").recipe.data.folder
    assert folder is not None
    (tmp_path / "elsewhere").mkdir()
    for file in Path(folder).glob("*.tsv"):
        shutil.copy(file, tmp_path / "elsewhere")
    changes = ["training.limits.steps=14", f"data.folder={tmp_path / 'elsewhere'}"]
    sightline.train(finished, changes, resume=True, display=Silent())
    assert records(finished)[-1]["step"] == 14
    assert Run.load(finished, device="cpu").recipe.data.folder == str(tmp_path / "elsewhere")


def test_resuming_on_generated_data_needs_no_data_folder(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    recipe, built_in = write_recipe(tmp_path / "gone", limits={"steps": 2}), {"kind": "dates", "examples": 40}
    content = yaml.safe_load(recipe.read_text())
    content["data"] |= {"train": [{**built_in, "split": "train"}], "validation": {**built_in, "split": "validation"}}
    recipe.write_text(yaml.safe_dump(content))
    run = sightline.train(recipe, out=tmp_path / "run", display=Silent()).folder
    shutil.rmtree(tmp_path / "gone")
    sightline.train(run, ["training.limits.steps=4"], resume=True, display=Silent())
    assert records(run)[-1]["step"] == 4


def test_resuming_with_changed_text_is_refused(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("".join(dates(59, 0)))
    (tmp_path / "valid.tsv").write_text("".join(dates(6, 11)))
    before = (finished / "recipe.yaml").read_bytes()
    told = rf"another text.*: 60 examples with [\d,]+ tokens then, 59 examples with .* now; check .*\({tmp_path}\)"
    with pytest.raises(RunError, match=told):
        sightline.train(finished, [f"data.folder={tmp_path}"], resume=True, display=Silent())
    assert (finished / "recipe.yaml").read_bytes() == before


def test_resuming_a_run_without_text_fingerprint(finished: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    del config["training_text"]
    (finished / "config.json").write_text(json.dumps(config))
    (finished / "manifest.json").unlink()  # nor do they have one
    sightline.train(finished, ["training.limits.steps=14"], resume=True, display=Silent())
    assert records(finished)[-1]["step"] == 14
