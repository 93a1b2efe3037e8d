"""Devices by their names: those that are not there are refused, and the one that is chosen is the current one."""

from __future__ import annotations

import os
import re

import pytest
import torch

from sightline.layers.devices import choose_device, deterministic_algorithms


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "there", "said"),
    [
        ("cuda", 0, "device cuda was asked for, and PyTorch sees no CUDA device; use cpu or auto"),
        ("cuda:2", 2, "device cuda:2 was asked for, and the last one here is cuda:1; take one of those"),
        ("gpu", 2, "there is no device 'gpu'; use auto, cpu, cuda, cuda:N or mps"),
        ("meta", 0, "device meta is not supported; use auto, cpu, cuda, cuda:N or mps"),
        ("mps", 0, "device mps was asked for, and PyTorch sees no Apple GPU; use cpu or auto"),
        ("cpu:3", 0, "device cpu:3 was asked for, and there is only one cpu; use cpu"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    name: str, there: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        choose_device(name)


def test_an_apple_gpu_is_taken_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps") == torch.device("mps") and choose_device("auto") == torch.device("cpu")


def test_deterministic_algorithms_are_on_inside_the_block_alone() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
        with deterministic_algorithms(True):
            assert torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.deterministic
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        with deterministic_algorithms(False):
            assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.deterministic


def test_the_device_that_is_named_is_the_one_kernels_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert choose_device("cuda:1") == torch.device("cuda:1") and current == [torch.device("cuda:1")]
