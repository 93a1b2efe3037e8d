"""Numbers as tables show them."""

from __future__ import annotations

import math

NOTHING = "–"  # not known, not measured, or not there
UNSET = "not set"  # a key of a recipe that is null, or in a section that is


def count_text(value: float | None) -> str:
    """13035840 → 13.0M."""
    if value is None:
        return NOTHING
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.99995 * size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def power_text(value: float | None) -> str:
    """Floating-point operations as the published tables have them: 3.3·10^18."""
    if value is None:
        return NOTHING
    if value < 1e4:
        return f"{value:.0f}"
    exponent = math.floor(math.log10(value))
    digits = f"{value / 10**exponent:.1f}"
    if digits == "10.0":
        digits, exponent = "1.0", exponent + 1
    return f"{digits}·10^{exponent}"


def duration_text(seconds: float | None) -> str:
    """330 → 5.5 min."""
    if seconds is None:
        return NOTHING
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def memory_text(size: float | None) -> str:
    """1610612736 → 1.5 GiB."""
    if size is None:
        return NOTHING
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def rate_text(value: float | None) -> str:
    """Sentences a second."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def probability_text(p: float) -> str:
    """0.0123, or <0.0001."""
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def share_text(value: float) -> str:
    """0.4213 → 42.1%."""
    return f"{100 * value:.1f}%"
