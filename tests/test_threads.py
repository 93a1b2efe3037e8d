"""How OpenMP threads wait is chosen before PyTorch is imported, by the load, unless somebody has chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sightline import threads


@pytest.fixture
def before_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")


@pytest.mark.usefixtures("before_torch")
@pytest.mark.parametrize(("busy", "spins"), [(False, "5000"), (True, "0")])
def test_the_load_decides(busy: bool, spins: str) -> None:
    environment: dict[str, str] = {}
    assert threads.choose_waiting(environment, lambda: busy) == spins
    assert environment == {"GOMP_SPINCOUNT": spins}


@pytest.mark.usefixtures("before_torch")
@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "SIGHTLINE_SPINCOUNT"])
def test_what_a_user_has_chosen_stays(name: str) -> None:
    environment = {name: "x"}
    assert threads.choose_waiting(environment, lambda: True) is None and environment == {name: "x"}


def test_once_pytorch_is_there_it_is_too_late() -> None:
    assert "torch" in sys.modules
    environment: dict[str, str] = {}
    assert threads.choose_waiting(environment) is None and not environment


@pytest.mark.parametrize(
    ("running", "cores", "busy"),
    [(1, 2, False), (2, 2, True), (3, 2, True), (2, 4, False), (3, 4, True), (1, 1, False), (2, 1, True)],
)
def test_a_machine_is_busy_where_others_take_half_of_its_cores(
    running: int, cores: int, busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loadavg").write_text(f"9.00 9.00 9.00 {running}/250 1234\n")  # with this thread; averages lag behind
    monkeypatch.setattr(threads, "_LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(threads, "_PAUSE", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    assert threads.machine_is_busy() == busy


@pytest.mark.parametrize("content", [None, "", "1 2 3", "a b c d/e"])
def test_where_nobody_knows_it_is_free(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if content is not None:
        (tmp_path / "loadavg").write_text(content)
    monkeypatch.setattr(threads, "_LOAD", tmp_path / "loadavg")
    assert not threads.machine_is_busy()


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is in the wheels for Linux")
def test_the_command_sets_it_before_pytorch_is_imported(tmp_path: Path) -> None:
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
