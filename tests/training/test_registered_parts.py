"""Optimizers, schedules, callbacks and loggers that a plug-in registers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_jobs import Job

from sightline.recipe import Schedule, Training
from sightline.registry import REGISTRIES, Entry
from sightline.training.callbacks import Callback
from sightline.training.loggers import Logger
from sightline.training.trainer import Trainer


def sgd(groups: list[dict[str, Any]], training: Training) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=training.lr)


def halves(schedule: Schedule, step: int, done: float, warmed: float) -> float:
    return 0.5**step


class GradientCount(Callback):
    def on_log(self, trainer: Trainer, record: dict[str, Any]) -> None:
        record["with_gradient"] = sum(parameter.grad is not None for parameter in trainer.parameters)


class Steps(Logger):
    def __init__(self, run: Path, step: int = 0) -> None:
        self.path, self.seen = run / "steps.json", [step]

    def step(self, progress: Any, record: dict[str, Any]) -> None:
        self.seen.append(progress.step)

    def close(self) -> None:
        self.path.write_text(json.dumps(self.seen))


def test_a_training_uses_what_is_registered(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"optimizer": sgd, "schedule": halves, "callback": GradientCount, "logger": Steps}
    for part, implementation in parts.items():
        monkeypatch.setitem(REGISTRIES[part], "mine", Entry(implementation))
    run = job(optimizer="mine", schedule={"kind": "mine", "warmup": 0}, lr=1.0, clip=None)
    before = {name: weight.detach().clone() for name, weight in run.model.named_parameters()}
    run.fit()
    records = [record for record in run.journal() if record["kind"] == "train"]
    assert [record["lr"] for record in records] == [0.5**step for step in range(1, 7)]
    assert {record["with_gradient"] for record in records} == {len(before)}
    assert json.loads((run.run / "steps.json").read_text()) == [0, *range(1, 7)]


def test_an_unknown_part_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'adamw'"):
        Training.model_validate({"optimizer": "sdg"})
