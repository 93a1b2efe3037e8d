"""Fixtures for all tests of layers."""

import pytest

from sightline.layers import attention


@pytest.fixture(autouse=True)
def fused_kernel_for_short_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the fused kernel also for few keys, which otherwise use the explicit one on the CPU."""
    monkeypatch.setattr(attention, "_SHORT_ON_CPU", -1)
