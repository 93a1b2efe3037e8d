"""What the steps of a training measured: left on the device until somebody looks, for looking makes every step wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sightline.files import write_json


class NotFinite(ArithmeticError):
    """The loss or its gradient became infinite or not a number."""


@dataclass(frozen=True)
class Reading:
    """What is known of a step before somebody looks at its numbers."""

    step: int
    epoch: int
    examples: np.ndarray  # of all its batches
    values: Tensor  # loss, nll and norm of the gradient, then what layers counted


class Readings:
    """The readings since the last record: first pending, then seen."""

    def __init__(self, seen: Iterable[tuple[float, ...]] = ()) -> None:
        self._pending: list[Reading] = []
        self.seen = list(seen)

    def add(self, reading: Reading) -> None:
        """Keep a reading for the next look."""
        self._pending.append(reading)

    def look(self) -> Reading | None:
        """Look at all that is pending: the first that is not finite, if there is one."""
        if not self._pending:
            return None
        values = (
            torch.stack([reading.values for reading in self._pending]).cpu().double().numpy()
        )  # (steps, 3 + counts)
        bad = np.flatnonzero(~np.isfinite(values).all(1))
        if len(bad):
            return self._pending[int(bad[0])]
        self.seen += [tuple(row) for row in values.tolist()]
        self._pending = []
        return None

    def means(self) -> tuple[list[float], int]:
        """The mean of each number over the steps seen, and how many those were; the next ones are counted anew."""
        means, steps = np.mean(self.seen, axis=0).tolist(), len(self.seen)
        self.seen = []
        return means, steps


def not_finite(run: Path, bad: Reading, texts: list[dict[str, str]], newest: int | None) -> NotFinite:
    """The error of a step that came to no number; its examples are saved. `newest` is the last good checkpoint."""
    path, (loss, _, norm) = run / "bad-batch.json", bad.values[:3].tolist()
    record = {
        "step": bad.step,
        "epoch": bad.epoch,
        "loss": str(loss),
        "gradient_norm": str(norm),
        "examples": texts,
    }
    write_json(path, record)
    kept = f"the last good checkpoint is step {newest}" if newest is not None else "no checkpoint was saved before"
    return NotFinite(
        f"step {bad.step}: loss {loss}, gradient norm {norm}; the batch is saved in {path}, {kept}. "
        f"Lower training.lr, lengthen training.schedule.warmup, or look at that batch"
    )
