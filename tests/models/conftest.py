"""Fixtures for all tests of models."""

from __future__ import annotations

import pytest

from sightline.layers import attention


@pytest.fixture(autouse=True)
def explicit_kernel_up_to_three_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit between explicit and fused kernels on the CPU, so that tiny models use both."""
    monkeypatch.setattr(attention, "_SHORT_ON_CPU", 3)
