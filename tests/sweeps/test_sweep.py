"""Running sweeps: mostly with fake trainings, and a few real ones at the end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fake_training
import pytest
from fake_training import Notes, command_of
from rich.console import Console
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.run_folder import lock_run
from sightline.sweeps.board import table
from sightline.sweeps.grid import SweepError
from sightline.sweeps.plan import plan_sweep
from sightline.sweeps.sweep import Job, Sweep, run_sweep, thread_share, train_command
from sightline.training.world import Interrupted


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


def pretend(recipe: str, grid: Sequence[str], *, jobs: int = 1, compare: Any = None, **behaviours: str) -> Sweep:
    """Run a sweep with fake trainings."""
    folder = Path(recipe).parent
    plan = plan_sweep(recipe, grid, out=folder / "sweep")
    return run_sweep(plan, jobs=jobs, command=command_of(folder, **behaviours), compare=compare)


def called(folders: Sequence[Path]) -> list[str]:
    return [folder.name for folder in folders]


# --- failing and going on ------------------------------------------------------------------------------------------


def test_failed_runs_are_reported_and_do_not_stop_others(
    recipe: str, notes: Notes, capsys: pytest.CaptureFixture[str]
) -> None:
    result = pretend(recipe, ["seed=1,2,3,4"], seed_1="fail", seed_3="die")
    assert called(result.failed) == ["seed=1", "seed=3"]
    assert called(result.finished) == ["seed=2", "seed=4"]
    assert notes.names("begin") == ["seed=1", "seed=2", "seed=3", "seed=4"]
    lines = capsys.readouterr().err.splitlines()
    log = result.folder / "logs" / "seed=1.log"
    assert [re.sub(r"\d:\d\d", "TIME", line) for line in lines] == [
        f"4 runs in {result.folder}",
        "[1/4] seed=1: started",
        "[1/4] seed=1: failed (exit code 3) after TIME",
        "[2/4] seed=2: started",
        "[2/4] seed=2: done after TIME at step 12, exact 75.00",
        "[3/4] seed=3: started",
        "[3/4] seed=3: failed (killed by SIGKILL, perhaps out of memory) after TIME",
        "[4/4] seed=4: started",
        "[4/4] seed=4: done after TIME at step 12, exact 75.00",
        f"seed=1 failed (exit code 3); the end of {log}:",
        "    one",
        "    two",
        "    sightline: it went wrong",
        f"seed=3 failed (killed by SIGKILL, perhaps out of memory); the end of {log.with_name('seed=3.log')}:",
        "    (no output)",
        f"{result.folder}: 2 done, 2 failed",
    ]


def test_repeating_a_sweep_skips_finished_and_repeats_failed_runs(
    recipe: str, notes: Notes, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(recipe, ["seed=1,2"], seed_1="fail")
    notes.path.unlink()
    capsys.readouterr()
    result = pretend(recipe, ["seed=1,2,3"])
    assert notes.names("begin") == ["seed=1", "seed=3"]
    assert (notes.names("resume"), notes.names("new")) == (["seed=1"], ["seed=3"])
    assert called(result.finished) == ["seed=1", "seed=2", "seed=3"]
    assert "3 runs in" in (message := capsys.readouterr().err)
    assert "1 finished before, 1 to resume, 1 new" in message
    assert (result.folder / "logs" / "seed=1.log").read_text().count(fake_training.__file__) == 2  # both attempts
    assert called(pretend(recipe, ["seed=4"]).finished) == ["seed=1", "seed=2", "seed=3", "seed=4"]


def test_a_run_that_cannot_start_fails_alone(recipe: str, notes: Notes) -> None:
    real = command_of(notes.path.parent)
    plan = plan_sweep(recipe, ["seed=1,2"], out="sweep")

    def broken(run: Any) -> list[str]:
        return ["/no/such/program"] if run.name == "seed=1" else list(real(run))

    result = run_sweep(plan, command=broken, compare=None)
    assert (called(result.failed), called(result.finished)) == (["seed=1"], ["seed=2"])


def test_sweeps_lock_their_folder(recipe: str, tmp_path: Path) -> None:
    plan = plan_sweep(recipe, ["seed=1"], out="sweep")
    with lock_run(plan.folder), pytest.raises(SweepError, match="another sweep is running in sweep; wait for it"):
        run_sweep(plan, command=command_of(tmp_path))
    pretend(recipe, ["seed=2"])
    with pytest.raises(SweepError, match=r"sweep\.yaml was changed by another sweep meanwhile; start this one again"):
        run_sweep(plan, command=command_of(tmp_path))


# --- several at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("jobs", "most"), [(1, 1), (2, 2)])
def test_jobs_limits_concurrent_runs(recipe: str, notes: Notes, jobs: int, most: int) -> None:
    meeting = {"seed_1": "meet", "seed_2": "meet"} if jobs == 2 else {}
    result = pretend(recipe, ["seed=1,2,3,4,5"], jobs=jobs, **meeting)
    assert len(result.finished) == 5
    running, counts = 0, []
    for words in notes.lines():
        running += {"begin": 1, "end": -1}.get(words[0], 0)
        counts.append(running)
    assert max(counts) == most


def threads(notes: Notes) -> set[str]:
    return {words[2] for words in notes.lines() if words[0] == "threads"}


def test_concurrent_runs_share_the_cores(recipe: str, notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pretend(recipe, ["seed=1,2"], jobs=8)  # only two are left to run
    assert threads(notes) == {"6"}
    notes.path.unlink()
    pretend(recipe, ["seed=3,4"], jobs=1)
    assert threads(notes) == {"-"}
    notes.path.unlink()
    pretend(recipe, ["seed=5,6", "training.threads=3"], jobs=2)  # the recipe says how many
    assert threads(notes) == {"-"}
    notes.path.unlink()
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    pretend(recipe, ["seed=7,8"], jobs=2)
    assert threads(notes) == {"5"}
    assert thread_share(50, {}) == {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


# --- comparing -----------------------------------------------------------------------------------------------------


def test_finished_runs_are_compared_after_failures(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    requested: list[Any] = []

    def compare(runs: Sequence[Path], folder: Path, missing: Sequence[str]) -> str:
        requested.append((called(runs), folder.name, missing))
        return "compared"

    assert pretend(recipe, ["seed=1,2"], seed_1="fail", compare=compare).comparison is None
    assert "nothing to compare" in capsys.readouterr().err
    assert pretend(recipe, ["seed=2,3,4"], seed_4="fail", compare=compare).comparison == "compared"
    assert requested == [(["seed=2", "seed=3"], "comparison", ["seed=4"])]


def test_incomparable_runs_are_still_trained(recipe: str) -> None:
    def refuse(runs: Sequence[Path], folder: Path, missing: Sequence[str]) -> Any:
        raise ValueError("they have no test set in common")

    with pytest.raises(SweepError, match="are trained, but they cannot be compared: they have no test set in common"):
        pretend(recipe, ["seed=1,2"], compare=refuse)
    assert len(pretend(recipe, ["seed=1,2"]).finished) == 2


# --- Ctrl-C --------------------------------------------------------------------------------------------------------


def test_ctrl_c_lets_runs_save(recipe: str, notes: Notes, tmp_path: Path) -> None:
    command = [sys.executable, fake_training.__file__, "--sweep", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    try:
        notes.wait_for("ready", 2)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the sweep and whatever is in its group
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == f"{tmp_path}/sweep: 1 done, 2 interrupted, 1 waiting\n"
    assert "stopping: waiting for 2 to save" in err
    saved = sorted(words[1:] for words in notes.lines() if words[0] == "saved")
    assert saved == [["seed=2", "1"], ["seed=3", "1"]]  # interrupted once
    assert "seed=4" not in notes.names("begin")
    plan = plan_sweep(recipe, ["seed=1,2,3,4"], out="sweep")
    assert [run.state for run in plan.runs] == ["finished", "begun", "begun", "new"]
    assert "--resume" in train_command(plan.runs[1])
    assert "--resume" not in train_command(plan.runs[3])
    assert len(pretend(recipe, ["seed=1,2,3,4"]).finished) == 4


def test_an_interrupted_sweep_prints_its_command(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise Interrupted

    monkeypatch.setattr("sightline.sweeps.sweep.run_sweep", interrupted)
    monkeypatch.setattr(sys, "argv", ["sightline", "sweep", recipe, "model.encoder={kind: transformer},null"])
    result = CliRunner().invoke(app, ["sweep", recipe, "seed=1,2"])
    assert result.exit_code == 130
    message = f"interrupted; continue with: sightline sweep {recipe} 'model.encoder={{kind: transformer}},null'\n"
    assert result.stderr == message


# --- what is seen --------------------------------------------------------------------------------------------------


def shown(jobs: Sequence[Job], rows: int | None = None) -> str:
    console = Console(width=110, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table(jobs, rows))
    return console.export_text()


def test_live_table_shows_progress_of_runs(recipe: str, tmp_path: Path) -> None:
    plan = plan_sweep(recipe, ["model.width=8,16", "seed=1,2"])
    jobs = [Job(run) for run in plan.runs]
    jobs[0].state, jobs[0].seconds = "done", 3700
    jobs[1].state = "running"
    jobs[2].state, jobs[2].seconds = "failed", 5
    fake_training.save(plan.runs[1].folder, 6)
    jobs[1].follower.read()
    text = shown(jobs)
    assert re.search(r"width=8,seed=1 +done +1:01:40", text)
    assert re.search(r"width=8,seed=2 +running .* 2 +6/12 +exact 75\.00 +1,234 tokens/s", text)
    assert re.search(r"width=16,seed=1 +failed +0:05", text)
    assert "1 done, 1 failed, 1 running, 1 waiting" in text
    text = shown(jobs, rows=2)
    assert "width=8,seed=2" in text
    assert "width=16,seed=2" not in text
    assert "(not shown: 1 done, 1 waiting)" in text


def test_a_dry_run_lists_the_runs_and_writes_nothing(recipe: str, tmp_path: Path) -> None:
    pretend(recipe, ["seed=1"])
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(app, ["sweep", recipe, "seed=1,2", "--out", "sweep", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "2 runs in sweep: 1 finished before, 0 to resume, 1 new",
        "  seed=1  finished  seed=1",
        "  seed=2  new       seed=2",
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_names_the_recipes_of_a_list(recipe: str, tmp_path: Path) -> None:
    shutil.copy(recipe, tmp_path / "other.yaml")
    (tmp_path / "list.yaml").write_text("- name: own\n- {recipe: other.yaml, model.width: 16}\n")
    result = CliRunner().invoke(app, ["sweep", recipe, "seed=1", "--list", "list.yaml", "--out", "sweep", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1:] == [
        "  own             new       seed=1",
        "  other,width=16  new       other.yaml model.width=16 seed=1",
    ]


def test_compare_expands_the_folder_of_a_sweep(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(recipe, ["seed=2,1,3"], seed_1="fail")
    given: list[list[Path]] = []
    monkeypatch.setattr(
        "sightline.comparison.compare_runs.compare", lambda runs, **_: given.append(list(runs)) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(app, ["compare", "other", "sweep", "a+b"], catch_exceptions=False)
    assert given == [[Path("other"), Path("sweep/seed=2"), Path("sweep/seed=3"), Path("a+b")]]
    read: list[Path] = []
    monkeypatch.setattr("sightline.cli.compare._own_test_set", lambda run, *files: read.append(run))
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(app, ["compare", "sweep", "--source", "a", "--reference", "b"], catch_exceptions=False)
    assert read == [Path("sweep/seed=2")]  # files are read as the first run wants it
    for run in given[0][1:3]:
        (run / "model.safetensors").unlink()
    with pytest.raises(SweepError, match="sweep: none of 3 runs of this sweep has a model yet; continue it"):
        CliRunner().invoke(app, ["compare", "sweep"], catch_exceptions=False)


# --- real trainings ------------------------------------------------------------------------------------------------


def test_each_combination_is_an_ordinary_run(recipe: str, tmp_path: Path) -> None:
    """Two processes train, one fails; then an interrupted one is resumed."""
    arguments = ["sweep", recipe, "data.clean.max_tokens=2,32", "training.threads=1", "--no-compare", "--jobs", "2"]
    result = CliRunner().invoke(app, [*arguments, "--out", "sweep"])
    assert result.exit_code == 1
    assert "max_tokens=2 failed (exit code 1); the end of sweep/logs/max_tokens=2.log:" in result.stderr
    assert "sightline: no examples are left of the 45 read (45 too long)" in result.stderr
    alone = sightline.train(recipe, ["training.threads=1"], out=tmp_path / "alone").folder
    run = tmp_path / "sweep" / "max_tokens=32"
    model = (alone / "model.safetensors").read_bytes()
    assert (run / "model.safetensors").read_bytes() == model
    again = ["data.clean.max_tokens=32", "training.threads=1"]
    assert plan_sweep(recipe, again, out="sweep").runs[0].state == "finished"
    shutil.rmtree(run / "checkpoints" / "step-00000012")  # as if it had been killed before it saved
    (run / "model.safetensors").unlink()
    comparison = sightline.sweep(recipe, again, out="sweep", compare=False)
    assert called(comparison.finished) == ["max_tokens=32"]
    assert "resumed at step 9" in (tmp_path / "sweep" / "logs" / "max_tokens=32.log").read_text()
    assert (run / "model.safetensors").read_bytes() == model
