"""The norm of the gradient of each part of a model, beside that of the whole."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

_LAYER = re.compile(r"^((?:\w+\.)*?layers\.\d+)\.")


class LayerNorms:
    """‖∂L/∂θ_part‖ for each part with parameters of its own: encoder.layers.0, decoder.norm, output, …

    Shared parameters count for the part that holds them first. Norms stay on the device until somebody looks.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parts: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.parts.setdefault(part_of(name), []).append(parameter)

    def __call__(self) -> Tensor:
        """(parts,) norms of the gradients as they are now; nothing waits for them."""
        every = []
        for parameters in self.parts.values():
            found = [parameter.grad for parameter in parameters if parameter.grad is not None]
            norms = torch.stack(torch._foreach_norm(found)) if found else torch.zeros(1, device=parameters[0].device)
            every.append(torch.linalg.vector_norm(norms.float()))
        return torch.stack(every)

    def record(self, norms: Tensor) -> dict[str, float]:
        """The same for a journal."""
        return {name: float(f"{value:.6g}") for name, value in zip(self.parts, norms.tolist(), strict=True)}


def part_of(name: str) -> str:
    """The part a parameter belongs to: its layer, or what stands beside the layers."""
    layer = _LAYER.match(name)
    if layer is not None:
        return layer[1]
    parts = name.split(".")[:-1]
    return ".".join(parts[:2] if parts[:1] in (["encoder"], ["decoder"]) else parts[:1]) or name
