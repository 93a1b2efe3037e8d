"""The weights of a model by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """What makes a model that model: its parameters, shared ones once, and the statistics its norms have gathered."""
    saved = model.state_dict().keys()  # buffers that are not saved are made again with the model
    return dict(model.named_parameters()) | {name: part for name, part in model.named_buffers() if name in saved}


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, on the host; shared ones once."""
    return {name: parameter.detach().cpu().contiguous() for name, parameter in weights_of(model).items()}


def load_parameters(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the model; names and shapes must be the model's own."""
    own = weights_of(model)
    missing, extra = sorted(set(own) - set(weights)), sorted(set(weights) - set(own))
    if missing or extra:
        raise ValueError(f"these weights are of another model: missing {missing[:3]}, not expected {extra[:3]}")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != weights[name].shape:
                raise ValueError(
                    f"weight {name} has shape {tuple(weights[name].shape)}, the model's is {tuple(parameter.shape)}"
                )
            parameter.copy_(weights[name])
