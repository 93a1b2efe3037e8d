"""What a convolutional layer sees: the window of each one, and how far back the text reaches it through those below.

Read from the arithmetic of a trace: a convolution takes its neighbours by cutting a padded text at several places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.inspection.trace import Trace

_CONVOLUTION = re.compile(r"^(encoder|decoder)\..*convolution\.output$")


@dataclass(frozen=True)
class Window:
    """One convolution: the places it sees, counted from its own, and those that reach it in all."""

    path: str
    side: str  # encoder or decoder
    offsets: tuple[int, ...]
    reach: tuple[int, int]  # the furthest place before and behind, through all layers below


def windows_of(trace: Trace) -> list[Window]:
    """Every convolution of a trace, in order; none where there is none, or where nobody followed the arithmetic."""
    found: list[Window] = []
    for step in trace:
        match = _CONVOLUTION.match(step.name)
        offsets = _offsets(trace, step.key) if match else ()
        if match and offsets and step.key == step.name:
            below = [window.reach for window in found if window.side == match[1]] or [(0, 0)]
            reach = (below[-1][0] + min(offsets), below[-1][1] + max(offsets))
            found.append(Window(step.name.removesuffix(".output"), match[1], offsets, reach))
    return found


def _offsets(trace: Trace, key: str) -> tuple[int, ...]:
    """Where the cuts that lead to a step begin, from the place itself; padding in front is before the first place."""
    own = [step for step in trace.steps if step.unnamed and step.key.startswith(key + "~")]
    starts = sorted(
        {step.arguments["start"] for step in own if step.operation == "cut" and step.arguments["axis"] == 1}
    )
    padded = [step.arguments["widths"][1][0] for step in own if step.operation == "pad"]
    before = padded[-1] if padded else max(starts, default=0)  # what looks only back ends at its own place
    return tuple(start - before for start in starts)


def first_seen(windows: list[Window], length: int) -> NDArray[np.float64]:
    """(T, T): the layer, from 1, at which each place (down) first sees each token (across); 0 where it never does."""
    found = np.zeros((length, length))
    seen = np.eye(length, dtype=bool)
    for number, window in enumerate(windows, 1):
        taken = np.zeros_like(seen)
        for offset in window.offsets:
            first, last = max(0, -offset), min(length, length - offset)
            if first < last:
                taken[first:last] |= seen[first + offset : last + offset]
        seen = taken | seen  # residual links keep what was there
        found[(found == 0) & seen] = number
    return found
