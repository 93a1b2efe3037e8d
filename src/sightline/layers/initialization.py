"""Initialization as a separate step, so that models can be built on the meta device.

    with torch.device("meta"):
        model = build_model(recipe, vocabulary)  # neither memory nor random numbers
    materialize(model, device)                   # like Module.to_empty, but tied parameters stay tied
    initialize(model)                            # the same weights as building on the CPU with the same seed

As in torch.nn, constructors call `reset_parameters()` for a module's own parameters. `reset_buffers()` computes
constant buffers (sinusoids, slopes, tables of the vocabulary); a model whose weights are loaded needs this alone.
`initialize` calls both in the order of the constructors: children first, unless a class sets `own_parameters_first`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def normal_(tensor: Tensor, std: float) -> Tensor:
    """Fill with N(0, std²) in place, with the same numbers as `torch.randn(shape) * std`."""
    if tensor.is_meta:  # normal_ on meta imports torch's compiler, which takes a second
        return tensor
    with torch.no_grad():
        return tensor.normal_().mul_(std)


@torch.no_grad()
def initialize(model: nn.Module) -> None:
    """Draw all weights of a model from the global generator, adapters last, and compute its constant buffers."""
    modules = list(_constructor_order(model, set()))
    for module in sorted(modules, key=lambda module: getattr(module, "initialized_last", False)):
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    reset_buffers(model)


def _constructor_order(module: nn.Module, seen: set[nn.Module]) -> Iterator[nn.Module]:
    if module in seen:
        return
    seen.add(module)
    own_first = getattr(module, "own_parameters_first", False)
    if own_first:
        yield module
    for child in module.children():
        yield from _constructor_order(child, seen)
    if not own_first:
        yield module


@torch.no_grad()
def reset_buffers(model: nn.Module) -> None:
    """Compute the constant buffers of a model."""
    for module in model.modules():
        if hasattr(module, "reset_buffers"):
            module.reset_buffers()


def materialize(model: nn.Module, device: torch.device | str = "cpu") -> None:
    """Move a model to `device`, with uninitialized memory for meta tensors. Tied weights stay tied."""
    moved: dict[int, Tensor] = {}
    for module in model.modules():
        owned: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for own in owned:
            for name, tensor in own.items():
                if tensor is None:
                    continue
                if id(tensor) not in moved:
                    if tensor.is_meta:  # (empty_like would import torch's compiler)
                        new = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                    else:
                        new = tensor.detach().to(device)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    moved[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if is_parameter else new
                own[name] = moved[id(tensor)]
