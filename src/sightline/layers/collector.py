"""What a layer wants minimized beside the objective, and what it counted on the way, handed to whoever collects.

Losses live outside models, but a layer may have one of its own: experts want to be used evenly. Inside
`with collect(model) as extra:` such layers hand over what they have; outside nothing is computed and nothing kept. No
layer keeps a tensor after the block, and the block may stand inside a compiled function.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sightline.layers.tap import TapModule


@dataclass
class Collected:
    """What the layers of one forward pass handed over."""

    paths: tuple[str, ...]  # of the layers that may, in the order of the model
    losses: list[Tensor] = field(default_factory=list)  # each for the whole batch, its weight in it
    counts: dict[str, Tensor] = field(default_factory=dict)  # by path

    def row(self) -> Tensor | None:
        """All counts one after the other, in the order of the model; None where nothing was counted."""
        found = [self.counts[path] for path in self.paths if path in self.counts]
        return torch.cat(found) if found else None


class CollectedModule(TapModule):
    """A layer with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._collected: Collected | None = None
        self._collected_as = ""

    @property
    def collecting(self) -> bool:
        """Whether somebody wants the loss. Losses are for training: a layer that is being tested has none."""
        return self.training and self._collected is not None

    def add_loss(self, loss: Tensor, counts: Tensor) -> None:
        """Give what is to be minimized (weighted) and what was counted to the collector, if there is one."""
        if self._collected is not None:
            self._collected.losses.append(loss)
            before = self._collected.counts.get(self._collected_as)
            self._collected.counts[self._collected_as] = counts if before is None else before + counts


@contextmanager
def collect(model: nn.Module) -> Iterator[Collected]:
    """Collect what the layers of `model` hand over inside the block."""
    modules = [(path, module) for path, module in model.named_modules() if isinstance(module, CollectedModule)]
    collected = Collected(tuple(path for path, _ in modules))
    before = [(module, module._collected, module._collected_as) for _, module in modules]
    for path, module in modules:
        module._collected, module._collected_as = collected, path
    try:
        yield collected
    finally:
        for module, other, path in before:
            module._collected, module._collected_as = other, path
