"""AdamW."""

from __future__ import annotations

import torch
from torch import nn

from sightline.recipe import Training


def build_optimizer(model: nn.Module, recipe: Training, device: torch.device) -> torch.optim.AdamW:
    """AdamW in its fused form; weight decay on matrices alone, not on biases, norms and other vectors."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in learned if parameter.dim() > 1]
    vectors = [parameter for parameter in learned if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=True)
