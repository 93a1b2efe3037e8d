"""How far a run is, read from its folder: nothing here asks the process."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline.files import parse_json, read_json
from sightline.recipe import Recipe
from sightline.recipe.bodies import NgramConfig
from sightline.run_folder import newest_progress
from sightline.training.ending import limit_reached


def ended(run: Path, recipe: Recipe) -> bool:
    """Whether the training of a run has come to its end, rather than to an interruption.

    It ends by validating, saving a checkpoint and writing the model, in this order, once a limit is reached. So a
    limit of the recipe (as it is now: a raised one makes it go on) must be reached by the newest checkpoint, which must
    be validated, and the model must be no older than it. A doubt costs little: resuming an ended run changes nothing.
    What is counted has no checkpoints; there the model card is written last.
    """
    if isinstance(recipe.model.decoder, NgramConfig):
        return (run / "model.safetensors").is_file() and (run / "README.md").is_file()
    saved = newest_progress(run)
    if saved is None:
        return False
    try:
        progress = read_json(saved)
        if (run / "model.safetensors").stat().st_mtime_ns < saved.stat().st_mtime_ns:
            return False
        return bool(progress["validated"] == progress["step"] and limit_reached(progress, recipe))
    except (OSError, ValueError, KeyError):  # not whole: resuming will tell, or repair it
        return False


@dataclass
class Follower:
    """Follows a run's metrics.jsonl as it grows."""

    path: Path
    metric: str  # shown where a validation has it; else its loss is
    train: dict[str, Any] = field(default_factory=dict)  # the newest record of each kind
    validation: dict[str, Any] = field(default_factory=dict)
    _read: int = 0

    @classmethod
    def of(cls, run: Path, recipe: Recipe) -> Follower:
        return cls(run / "metrics.jsonl", recipe.evaluation.metrics[0])

    def look(self) -> None:
        """Read what was added since the last look."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read:  # a resumed training cuts what it will do again
                    self._read = 0
                file.seek(self._read)
                text = file.read()
        except OSError:
            return  # not begun yet
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                record = parse_json(line)
            except ValueError:
                continue  # the second half of a line, after a cut
            if isinstance(record, dict) and record.get("kind") == "train":
                self.train = record
            elif isinstance(record, dict) and record.get("kind") == "validation":
                self.validation = record

    @property
    def _newest(self) -> dict[str, Any]:
        return max(self.train, self.validation, key=lambda record: int(record.get("step", -1)))

    @property
    def step(self) -> int | None:
        return self._newest.get("step")

    @property
    def epoch(self) -> int | None:
        return self._newest.get("epoch")

    @property
    def score(self) -> str:
        """The latest validation: `exact 93.20`."""
        for name in (self.metric, "loss"):
            if name in self.validation:
                return f"{name} {self.validation[name]:.{3 if name == 'loss' else 2}f}"
        return ""

    @property
    def speed(self) -> str:
        """`12,300 tokens/s`, as of the last record."""
        return f"{self.train['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in self.train else ""
