"""Initial weights as a separate step, so that a model can be built on the meta device.

    with torch.device("meta"):
        model = build_model(recipe, vocabulary)  # neither memory nor random numbers
    materialize(model, device)                   # like Module.to_empty, but shared parameters stay shared
    initialize(model)                            # the weights that building it on the CPU draws from the same seed

As in torch.nn, a module with parameters of its own sets them in `reset_parameters()`, which its constructor calls. A
module with constant buffers (sinusoids, slopes, tables of the vocabulary) sets them in `reset_buffers()`: a model whose
weights are loaded needs these alone. `initialize` calls both in the order of the constructors, so that a seed gives the
same weights either way: children first, unless a class says `own_parameters_first`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def normal_(tensor: Tensor, std: float) -> Tensor:
    """Fill with N(0, std²), in place: the numbers of `torch.randn(shape) * std`."""
    if tensor.is_meta:  # there PyTorch's is written in Python: calling it imports half of the compiler, in one second
        return tensor
    with torch.no_grad():
        return tensor.normal_().mul_(std)


@torch.no_grad()
def initialize(model: nn.Module) -> None:
    """Draw all weights of a model from the global generator and rebuild its buffers; adapters come last."""
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
    """Rebuild the constant buffers of a model."""
    for module in model.modules():
        if hasattr(module, "reset_buffers"):
            module.reset_buffers()


def materialize(model: nn.Module, device: torch.device | str = "cpu") -> None:
    """Move a model to `device`; what is on the meta device gets uninitialized memory there. Tied weights stay tied."""
    moved: dict[int, Tensor] = {}
    for module in model.modules():
        owned: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for own in owned:
            for name, tensor in own.items():
                if tensor is None:
                    continue
                if id(tensor) not in moved:
                    there = tensor.detach()
                    if tensor.is_meta:  # (empty_like would import the compiler)
                        there = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                    there = there.to(device)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    moved[id(tensor)] = nn.Parameter(there, tensor.requires_grad) if is_parameter else there
                own[name] = moved[id(tensor)]
