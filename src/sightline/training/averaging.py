"""Averages of weights, and which weights the finished model has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sightline.models.weights import parameters_of, weights_of
from sightline.recipe import Training
from sightline.terminal import plural
from sightline.training.checkpoints import Checkpoints, Progress


class RunningAverage:
    """θ̄ ← d θ̄ + (1 − d) θ with d = min(decay, (1 + t) / (10 + t)), so that early weights are soon forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: parameter.detach().clone() for name, parameter in weights_of(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        averages = list(self.weights.values())
        torch._foreach_lerp_(averages, [weight.detach() for weight in weights_of(model).values()], 1 - decay)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Continue from saved averages."""
        for name, average in self.weights.items():
            average.copy_(weights[name])


def mean_weights(models: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several models, weight by weight, summed in float64."""
    return {
        name: torch.stack([model[name].double() for model in models]).mean(0).to(weight.dtype).contiguous()
        for name, weight in models[0].items()
    }


def finished_weights(
    training: Training, progress: Progress, model: nn.Module, average: RunningAverage | None, checkpoints: Checkpoints
) -> tuple[dict[str, Tensor], str | None]:
    """The weights of the finished model by averaging.kind and result, and a note if they are a mean of checkpoints."""
    if training.averaging.kind == "checkpoints":
        steps = [step for step in progress.recent if checkpoints.usable(step)]
        if steps:
            count = training.averaging.count
            fewer = f" (of the {count} that training.averaging.count asks for)" if len(steps) < count else ""
            note = (
                f"the finished model is the mean of {plural(len(steps), 'checkpoint')}{fewer}, at step "
                f"{', '.join(map(str, steps))}; validations were of single ones"
            )
            return mean_weights([checkpoints.weights(step) for step in steps]), note
    step = progress.best_step if training.result == "best" and progress.best_step is not None else progress.step
    if step == progress.step or not checkpoints.usable(step):
        if average is None:
            return parameters_of(model), None
        return {name: weight.cpu() for name, weight in average.weights.items()}, None
    return (checkpoints.weights(step) if average is None else checkpoints.averages(step)), None
