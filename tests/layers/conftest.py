"""What the tests of layers share."""

import pytest

from sightline.layers import attention


@pytest.fixture(autouse=True)
def the_fused_kernel_takes_short_keys_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny tensors all go to the explicit kernel on the CPU: fused = explicit would compare it with itself."""
    monkeypatch.setattr(attention, "_SHORT_ON_CPU", -1)
