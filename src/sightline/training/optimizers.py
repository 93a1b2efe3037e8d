"""AdamW, and the running average of the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sightline.recipe import Training


def build_optimizer(model: nn.Module, recipe: Training, device: torch.device) -> torch.optim.AdamW:
    """AdamW in its fused form; weight decay on matrices alone, not on biases, norms and other vectors."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=True)


class RunningAverage:
    """θ̄ ← d θ̄ + (1 − d) θ with d = min(decay, (1 + t) / (10 + t)), so that early weights are soon forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        averages = list(self.weights.values())
        torch._foreach_lerp_(averages, [parameter.detach() for _, parameter in model.named_parameters()], 1 - decay)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Go on from saved averages."""
        for name, average in self.weights.items():
            average.copy_(weights[name])
