"""Kernels written in Triton run where it can build what launches them; what the CPU can do is asked of it."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sightline.layers import kernels


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for headers, on a system with Triton, gcc and Python's headers."""
    (tmp_path / "Python.h").touch()
    for name in ("CC", "CPATH", "C_INCLUDE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/gcc" if name == "gcc" else None)
    headers = {("include", "posix_prefix"): str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_default_scheme", lambda: "posix_prefix")
    monkeypatch.setattr(sysconfig, "get_path", lambda *names: headers.get(names, "nowhere"))
    return tmp_path


def test_triton_runs_where_it_finds_a_compiler_and_the_headers(installed: Path) -> None:
    assert kernels._triton_runs()


def test_without_triton_no_kernel_runs(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not kernels._triton_runs()


def test_without_a_compiler_triton_does_not_run(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not kernels._triton_runs()
    monkeypatch.setenv("CC", "/opt/cc")
    assert kernels._triton_runs()


def test_clang_is_a_compiler_too(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/clang" if name == "clang" else None)
    assert kernels._triton_runs()


def test_an_empty_cc_is_the_compiler_that_triton_would_call(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "")
    assert not kernels._triton_runs()


def test_debians_headers_are_found_where_its_packages_put_them(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_default_scheme", lambda: "posix_local")
    assert kernels._triton_runs()


@pytest.mark.parametrize("name", ["CPATH", "C_INCLUDE_PATH"])
def test_without_the_headers_triton_does_not_run(installed: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (installed / "Python.h").unlink()
    assert not kernels._triton_runs()
    monkeypatch.setenv(name, "")
    assert not kernels._triton_runs()
    monkeypatch.setenv(name, "/opt/headers")
    assert kernels._triton_runs()


def test_triton_kernels_support_cuda_tensors_up_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes(device: str, dtype: torch.dtype) -> bool:
        tensor: Any = SimpleNamespace(device=torch.device(device), dtype=dtype)
        return kernels.supports_triton(tensor)

    monkeypatch.setattr(kernels, "TRITON", True)
    assert all(takes("cuda", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16))
    assert not takes("cuda", torch.float64)
    assert not takes("cpu", torch.float32)
    monkeypatch.setattr(kernels, "TRITON", False)
    assert not takes("cuda", torch.float32)


@pytest.mark.parametrize(
    ("machine", "able", "expected"),
    [
        ("x86_64", ("onednn", "avx512_bf16"), True),
        ("AMD64", ("onednn", "amx_tile"), True),
        ("x86_64", ("onednn", "other"), False),  # oneDNN can do it with AVX-512 alone, at half the speed of float32
        ("aarch64", ("onednn", "other"), True),
        ("aarch64", ("onednn",), False),
        ("arm64", ("other",), False),
        ("x86_64", ("avx512_bf16",), False),
    ],
)
def test_bfloat16_support_of_the_cpu(
    machine: str, able: tuple[str, ...], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: "onednn" in able)
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda name=name: name in able)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: "other" in able)
    assert kernels.cpu_multiplies_bfloat16.__wrapped__() == expected
