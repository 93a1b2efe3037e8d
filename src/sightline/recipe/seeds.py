"""Seeds that follow from the seed of a recipe."""

from __future__ import annotations

import numpy as np


def step_seed(seed: int, step: int) -> int:
    """The seed of all that is random inside one step."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)
