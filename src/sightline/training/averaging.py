"""Averages of weights: the running one of a training, and that of several checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sightline.models.weights import weights_of


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
        """Go on from saved averages."""
        for name, average in self.weights.items():
            average.copy_(weights[name])


def mean_weights(models: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several models, weight by weight, summed in float64."""
    return {
        name: torch.stack([model[name].double() for model in models]).mean(0).to(weight.dtype).contiguous()
        for name, weight in models[0].items()
    }
