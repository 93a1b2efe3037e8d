"""Parts of a training, each with an option: an optimizer, a loss, a schedule, a callback and a logger.

```yaml
training:
  optimizer: {kind: heavy-ball, momentum: 0.5}
  loss: {kind: scaled, factor: 2.0}
  schedule: {kind: halving, half_life: 10}
  callbacks: [{kind: weight-norm, digits: 4}]
  loggers: [{kind: lines, file: losses.txt}]
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

import sightline
from sightline.data.collate import TrainingBatch
from sightline.layers.losses import Loss
from sightline.recipe import Schedule, Training
from sightline.recipe.schema import Section
from sightline.tasks.losses import batch_loss
from sightline.training.callbacks import Callback
from sightline.training.loggers import Logger


class HeavyBallConfig(Section):
    """SGD with momentum."""

    kind: Literal["heavy-ball"] = "heavy-ball"
    momentum: float = Field(0.9, ge=0, lt=1, description="share of the last update that is kept")


@sightline.register("optimizer", "heavy-ball", config=HeavyBallConfig)
def heavy_ball(groups: list[dict[str, Any]], training: Training, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=training.lr, momentum=momentum)


class ScaledConfig(Section):
    """The loss of the task, multiplied by a factor."""

    kind: Literal["scaled"] = "scaled"
    factor: float = Field(1.0, gt=0, description="of the loss")


@sightline.register("loss", "scaled", config=ScaledConfig)
def scaled(model: Any, batch: TrainingBatch, *args: Any, factor: float, **kwargs: Any) -> Loss:
    loss = batch_loss(model, batch, *args, **kwargs)
    return loss._replace(total=factor * loss.total)


class HalvingConfig(Schedule):
    """Half the rate every so many steps."""

    kind: Literal["halving"] = "halving"  # type: ignore[assignment]
    half_life: int = Field(1, ge=1, description="steps in which the rate halves")


@sightline.register("schedule", "halving", config=HalvingConfig)
def halving(schedule: HalvingConfig, step: int, done: float, warmed: float) -> float:
    return float(0.5 ** (step / schedule.half_life))


class WeightNormConfig(Section):
    """The norm of all weights."""

    kind: Literal["weight-norm"] = "weight-norm"
    digits: int = Field(6, ge=1, description="decimal places")


@sightline.register("callback", "weight-norm", config=WeightNormConfig)
class WeightNorm(Callback):
    def __init__(self, digits: int) -> None:
        self.digits = digits

    def on_log(self, trainer: Any, record: dict[str, Any]) -> None:
        norms = [parameter.detach().norm() for parameter in trainer.parameters]
        record["weight_norm"] = round(float(torch.stack(norms).norm()), self.digits)


class LinesConfig(Section):
    """One line with the loss of each record."""

    kind: Literal["lines"] = "lines"
    file: str = Field("lines.txt", description="its name in the run folder")


@sightline.register("logger", "lines", config=LinesConfig)
class Lines(Logger):
    def __init__(self, run: Path, step: int, file: str) -> None:
        self.path = run / file

    def step(self, progress: Any, record: dict[str, Any]) -> None:
        if record:
            with self.path.open("a") as lines:
                lines.write(f"{record['step']} {record['loss']}\n")
