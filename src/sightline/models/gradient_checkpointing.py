"""Gradient checkpointing: layers save only their inputs and are recomputed in the backward pass (Chen et al. 2016).

A step needs the memory of one layer plus the inputs of all layers, and about a third more time. Gradients do not
change, because recomputation uses the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sightline.layers.feedforward import CollectedModule, collect
from sightline.layers.norms import BatchNorm
from sightline.layers.tap import TapModule


class CheckpointedStack(nn.Module):
    """A stack of layers with optional gradient checkpointing."""

    gradient_checkpointing = False

    def run_layer(self, layer: nn.Module, run: Callable[..., Any], *arguments: Any) -> Any:
        """run(*arguments), where `run` is `layer` or a method of it. Recorded layers are not checkpointed."""
        if not (self.gradient_checkpointing and self.training and torch.is_grad_enabled()):
            return run(*arguments)
        recorded = any(isinstance(module, TapModule) and module.any_recorded for module in layer.modules())
        return run(*arguments) if recorded else checkpointed(layer, run, *arguments)


def enable_gradient_checkpointing(model: nn.Module) -> None:
    """Enable gradient checkpointing in all stacks of a model."""
    for module in model.modules():
        if isinstance(module, CheckpointedStack):
            module.gradient_checkpointing = True


def checkpointed(layer: nn.Module, run: Callable[..., Any], *arguments: Any) -> Any:
    """run(*arguments) with recomputation in the backward pass.

    Auxiliary losses are collected, and running averages of norms updated, in the forward pass only.
    """
    collecting = {
        path: module
        for path, module in layer.named_modules()
        if isinstance(module, CollectedModule) and module.collecting
    }

    def forward(*arguments: Any) -> tuple[Any, list[Tensor], list[Tensor]]:
        if not collecting:
            return run(*arguments), [], []
        with collect(layer) as own:
            result = run(*arguments)
        return result, own.losses, [own.counts[path] for path in collecting]

    options: dict[str, Any] = {}
    if any(isinstance(module, BatchNorm) for module in layer.modules()):
        options["context_fn"] = lambda: (nullcontext(), _frozen_averages(layer))
    result, losses, counts = checkpoint(forward, *arguments, use_reentrant=False, **options)
    for module, loss, count in zip(collecting.values(), losses, counts, strict=True):
        module.add_loss(loss, count)
    return result


@contextmanager
def _frozen_averages(layer: nn.Module) -> Iterator[None]:
    """Restore the running averages of batch norms after the block."""
    norms = [module for module in layer.modules() if isinstance(module, BatchNorm)]
    before = [(norm.mean, norm.variance) for norm in norms]
    for norm in norms:
        norm.mean, norm.variance = norm.mean.clone(), norm.variance.clone()
    try:
        yield
    finally:
        for norm, (mean, variance) in zip(norms, before, strict=True):
            norm.mean, norm.variance = mean, variance
