"""The number of threads and how OpenMP waits follow the load of the machine, unless the user has chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sightline
from dated_runs import write_recipe
from sightline.training import threads
from sightline.training.threads import CpuTimes, busy_cores, share_of_threads, threads_by_load
from watched_runs import Silent, own_cache


@pytest.fixture
def before_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")


@pytest.mark.usefixtures("before_torch")
@pytest.mark.parametrize(("busy", "spins"), [(False, "5000"), (True, "0")])
def test_spinning_follows_the_load(busy: bool, spins: str) -> None:
    environment: dict[str, str] = {}
    assert threads.choose_waiting(environment, lambda: busy) == spins
    assert environment == {"GOMP_SPINCOUNT": spins}


@pytest.mark.usefixtures("before_torch")
@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "SIGHTLINE_SPINCOUNT"])
def test_settings_of_the_user_are_kept(name: str) -> None:
    environment = {name: "x"}
    assert threads.choose_waiting(environment, lambda: True) is None and environment == {name: "x"}


def test_nothing_is_set_after_the_import_of_pytorch() -> None:
    assert "torch" in sys.modules
    environment: dict[str, str] = {}
    assert threads.choose_waiting(environment) is None and not environment


@pytest.mark.parametrize(
    ("running", "cores", "busy"),
    [(1, 2, False), (2, 2, True), (3, 2, True), (2, 4, False), (3, 4, True), (1, 1, False), (2, 1, True)],
)
def test_a_machine_is_busy_when_half_of_its_cores_are(
    running: int, cores: int, busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loadavg").write_text(f"9.00 9.00 9.00 {running}/250 1234\n")  # with this thread; averages lag behind
    monkeypatch.setattr(threads, "_LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(threads, "_PAUSE", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    assert threads.machine_is_busy() == busy


@pytest.mark.parametrize("content", [None, "", "1 2 3", "a b c d/e"])
def test_an_unreadable_load_counts_as_free(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "loadavg").write_text(content)
    monkeypatch.setattr(threads, "_LOAD", tmp_path / "loadavg")
    assert not threads.machine_is_busy()


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is in the wheels for Linux")
def test_the_command_sets_the_variable_before_pytorch_is_imported(tmp_path: Path) -> None:
    code = """
import atexit, os, sys
atexit.register(lambda: print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules, file=sys.stderr))
from sightline.cli import main
sys.argv = ["sightline", "--version"]
main()
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stderr.splitlines()[-1] in ("5000 False", "0 False")


@pytest.mark.parametrize(
    ("default", "others", "expected"),
    [(2, 0.0, 2), (2, 0.4, 2), (2, 0.5, 1), (2, 2.0, 1), (8, 0.9, 8), (8, 1.0, 4), (16, 1.5, 16), (16, 15.0, 8)],
)
def test_training_on_a_busy_machine_uses_half_of_the_threads(default: int, others: float, expected: int) -> None:
    assert share_of_threads(default, others) == expected


@pytest.mark.parametrize(
    ("default", "environment", "others", "expected"),
    [(2, {}, 1.0, 1), (2, {}, 0.0, None), (1, {}, 1.0, None), (2, {"OMP_NUM_THREADS": "2"}, 1.0, None)],
)
def test_the_number_of_threads_follows_the_load_unless_chosen(
    default: int, environment: dict[str, str], others: float, expected: int | None
) -> None:
    found = threads_by_load(default, None, environment, lambda since: others)
    assert (None if found is None else found[0]) == expected
    assert found is None or (found[1].startswith("other programs keep 1.0 cores busy") and "threads=2" in found[1])


def test_busy_cores_are_those_of_other_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(threads, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(threads, "_SHORTEST", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2}, raising=False)

    def stat(core0: int, core2: int) -> None:  # core 1 is not ours
        rows = [f"cpu  9 9 9 9 9 9 9 9\ncpu0 {core0} 0 0 7 7 0 0 0", "cpu1 99999999 0 0 7 7 0 0 0"]
        (tmp_path / "stat").write_text("\n".join([*rows, f"cpu2 0 0 {core2} 7 7 0 0 0", "intr 0"]) + "\n")

    stat(0, 0)
    now = CpuTimes.now()
    assert now is not None and now.everybody == 0
    since = CpuTimes(now.at - 10, now.everybody, now.this - 3)  # this process used 3 CPU seconds in 10 s
    stat(8 * ticks, 5 * ticks)
    assert busy_cores(since) == pytest.approx(1.0, abs=0.1)


def test_without_proc_the_machine_counts_as_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(threads, "_STAT", tmp_path / "stat")
    assert CpuTimes.now() is None and busy_cores(None) == 0.0


def test_a_reduced_number_of_threads_is_saved_and_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A training started on a busy machine resumes with the same number of threads on an idle one."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    load = {"others": 1.0}
    monkeypatch.setattr(threads.threads_by_load, "__defaults__", (lambda since: load["others"],))
    recipe = write_recipe(tmp_path, limits={"steps": 2}, validate_every=2, samples=0)
    recipe.write_text(recipe.read_text().replace("  threads: 1\n", ""))
    torch.set_num_threads(2)
    try:
        with own_cache(tmp_path / "cache"):
            run = sightline.train(recipe, out=tmp_path / "run", display=Silent()).folder
            assert torch.get_num_threads() == 1 and "threads: 1" in (run / "recipe.yaml").read_text()
            torch.set_num_threads(2)
            load["others"] = 0.0
            sightline.train(recipe, ["training.limits.steps=3"], out=run, resume=True, display=Silent())
            assert torch.get_num_threads() == 1
            torch.set_num_threads(2)
            idle = sightline.train(recipe, out=tmp_path / "idle", display=Silent()).folder
            assert torch.get_num_threads() == 2 and "threads: 2" not in (idle / "recipe.yaml").read_text()
    finally:
        torch.set_num_threads(1)
