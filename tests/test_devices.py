"""Devices by their names: those that are not there are refused, and the one that is chosen is the current one."""

from __future__ import annotations

import re

import pytest
import torch

from sightline.experiment import choose_device


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "there", "said"),
    [
        ("cuda", 0, "device cuda was asked for, and PyTorch sees no CUDA device; use cpu or auto"),
        ("cuda:2", 2, "device cuda:2 was asked for, and the last one here is cuda:1; take one of those"),
        ("gpu", 2, "there is no device 'gpu'; use auto, cpu, cuda or cuda:N"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    name: str, there: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        choose_device(name)


def test_the_device_that_is_named_is_the_one_kernels_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert choose_device("cuda:1") == torch.device("cuda:1") and current == [torch.device("cuda:1")]
