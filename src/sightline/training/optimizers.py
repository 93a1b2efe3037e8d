"""AdamW."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from sightline.recipe import Training


def build_optimizer(
    model: nn.Module, recipe: Training, device: torch.device, rates: Mapping[str, float] | None = None
) -> torch.optim.AdamW:
    """AdamW in its fused form; weight decay on matrices alone, not on biases, norms and other vectors.

    Frozen parameters are not in it. Each group has a `factor` of the learning rate: that of `rates`, by the names of
    its parameters, or 1.
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (rates or {}).get(name, 1.0), parameter.dim() > 1
            groups.setdefault(key, []).append(parameter)
    made = [
        {
            "params": parameters,
            "weight_decay": recipe.weight_decay if matrices else 0.0,
            "lr": recipe.lr * factor,
            "factor": factor,
        }
        for (factor, matrices), parameters in groups.items()
        if parameters
    ]
    return torch.optim.AdamW(made, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=True)
