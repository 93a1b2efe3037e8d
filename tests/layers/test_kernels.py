"""Kernels written in Triton run where it can build what launches them, and else PyTorch's operations do."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from sightline.layers import kernels


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for headers, on a system with Triton, gcc and Python's headers."""
    (tmp_path / "Python.h").touch()
    for name in ("CC", "CPATH", "C_INCLUDE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/gcc" if name == "gcc" else None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme: str(tmp_path))
    return tmp_path


def test_triton_runs_where_it_finds_a_compiler_and_the_headers(installed: Path) -> None:
    assert kernels._triton_runs()


def test_without_triton_there_is_nothing_to_run(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not kernels._triton_runs()


def test_without_a_compiler_triton_does_not_run(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not kernels._triton_runs()
    monkeypatch.setenv("CC", "/opt/cc")
    assert kernels._triton_runs()


def test_without_the_headers_triton_does_not_run(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (installed / "Python.h").unlink()
    assert not kernels._triton_runs()
    monkeypatch.setenv("CPATH", "/opt/headers")
    assert kernels._triton_runs()
