"""What the tests of models share."""

from __future__ import annotations

import pytest

from sightline.layers import attention


@pytest.fixture(autouse=True)
def some_keys_are_short_and_some_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU few keys go to the explicit kernel and many to the fused one; here both run in every model."""
    monkeypatch.setattr(attention, "_SHORT_ON_CPU", 3)
