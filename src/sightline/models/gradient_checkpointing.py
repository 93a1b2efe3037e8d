"""Layers that keep only what enters them and are computed again on the way back (Chen et al. 2016).

A step then takes the memory of one layer and of the inputs of all, and about a third more work. What is random is drawn
the same both times, so the gradients are those of a plain step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sightline.layers.feedforward import CollectedModule, collect
from sightline.layers.norms import BatchNorm
from sightline.layers.tap import TapModule


class CheckpointedStack(nn.Module):
    """A stack whose layers can be computed twice, while it is trained."""

    gradient_checkpointing = False

    def run_layer(self, layer: nn.Module, run: Callable[..., Any], *given: Any) -> Any:
        """run(*given), where `run` is `layer` or a method of it. Whoever listens to it hears it once: it is kept."""
        if not (self.gradient_checkpointing and self.training and torch.is_grad_enabled()):
            return run(*given)
        listened = any(isinstance(module, TapModule) and module.any_recorded for module in layer.modules())
        return run(*given) if listened else checkpointed(layer, run, *given)


def enable_gradient_checkpointing(model: nn.Module) -> None:
    """From now on the layers of the model's stacks keep nothing but their inputs."""
    for module in model.modules():
        if isinstance(module, CheckpointedStack):
            module.gradient_checkpointing = True


def checkpointed(layer: nn.Module, run: Callable[..., Any], *given: Any) -> Any:
    """run(*given), whose gradient will be found by running it again.

    What the layer hands to a collector is handed on once, and running averages of norms move once.
    """
    handing = {
        path: module
        for path, module in layer.named_modules()
        if isinstance(module, CollectedModule) and module.collecting
    }

    def both_times(*given: Any) -> tuple[Any, list[Tensor], list[Tensor]]:
        if not handing:
            return run(*given), [], []
        with collect(layer) as own:
            result = run(*given)
        return result, own.losses, [own.counts[path] for path in handing]

    options: dict[str, Any] = {}
    if any(isinstance(module, BatchNorm) for module in layer.modules()):
        options["context_fn"] = lambda: (nullcontext(), _averages_differentiable(layer))
    result, losses, counts = checkpoint(both_times, *given, use_reentrant=False, **options)
    for module, loss, count in zip(handing.values(), losses, counts, strict=True):
        module.add_loss(loss, count)
    return result


def _averages_differentiable(layer: nn.Module) -> AbstractContextManager[None]:
    """Let batch norms work on copies of their running averages inside the block."""

    @contextmanager
    def block() -> Iterator[None]:
        norms = [module for module in layer.modules() if isinstance(module, BatchNorm)]
        before = [(norm.mean, norm.variance) for norm in norms]
        for norm in norms:
            norm.mean, norm.variance = norm.mean.clone(), norm.variance.clone()
        try:
            yield
        finally:
            for norm, (mean, variance) in zip(norms, before, strict=True):
                norm.mean, norm.variance = mean, variance

    return block()
