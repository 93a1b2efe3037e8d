"""Choosing a device, deterministic algorithms, and keeping freed memory."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys

import pytest
import torch

from sightline.layers.devices import choose_device, deterministic_algorithms


def test_auto_is_the_cpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("cuda", 0, "device cuda was requested, but PyTorch finds no CUDA device; use cpu or auto"),
        ("cuda:2", 2, "device cuda:2 was requested, but the last one here is cuda:1; take one of those"),
        ("gpu", 2, "there is no device 'gpu'; use auto, cpu, cuda, cuda:N or mps"),
        ("meta", 0, "device meta is not supported; use auto, cpu, cuda, cuda:N or mps"),
        ("mps", 0, "device mps was requested, but PyTorch finds no Apple GPU; use cpu or auto"),
        ("cpu:3", 0, "device cpu:3 was requested, but there is only one cpu; use cpu"),
    ],
)
def test_missing_devices_are_refused(name: str, count: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        choose_device(name)


def test_mps_is_used_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps") == torch.device("mps") and choose_device("auto") == torch.device("cpu")


def test_a_named_cuda_device_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert choose_device("cuda:1") == torch.device("cuda:1") and current == [torch.device("cuda:1")]


def test_deterministic_algorithms_are_on_inside_the_block_only() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
        with deterministic_algorithms(True):
            assert torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.deterministic
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        with deterministic_algorithms(False):
            assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.deterministic


PAGE_FAULTS = """
import resource, torch
from sightline.layers.devices import keep_freed_memory
torch.set_num_threads(1)
kept = keep_freed_memory()
def step():
    for _ in range(3):
        torch.ones(2_000_000).add_(1)  # 8 MB
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(**more: str) -> tuple[str, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PAGE_FAULTS]
    done = subprocess.run(command, env=environment | more, capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked to keep freed memory")
def test_freed_memory_is_reused_unless_the_user_configured_malloc() -> None:
    kept, faults = page_faults()
    kept_by_user, faults_by_user = page_faults(MALLOC_MMAP_THRESHOLD_="65536")
    assert (kept, kept_by_user) == ("True", "False")
    assert faults_by_user > 10_000  # 15 times 8 MB in pages of 4 kB
    assert faults < faults_by_user / 4  # the heap may still grow once or twice
