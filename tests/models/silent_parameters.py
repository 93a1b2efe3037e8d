"""Parameters that a loss does not depend on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def silent_parameters(model: nn.Module, loss: Tensor) -> list[str]:
    """The names of those that no gradient of the loss reaches, or one of zeros alone."""
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [
        name
        for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True)
        if gradient is None or not gradient.abs().max() > 0
    ]
