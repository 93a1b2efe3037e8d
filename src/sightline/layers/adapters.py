"""Low-rank adapters (LoRA; Hu et al. 2021): y = W x + b + (α/r) B A x, where W stays as it is and A and B learn.

They stand where a weight is used, so every kernel that comes after it works as before; and they can be added to the
weight when the training is over, so a finished model knows nothing of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sightline.layers.feedforward import FeedForwardNet
from sightline.layers.initialization import normal_
from sightline.layers.linear import Linear, Projection, linear
from sightline.layers.multi_head import MultiHeadAttention
from sightline.recipe.model import AdaptersConfig


def low_rank(x: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """(…, I) → (…, O): (α/r) B A x with A = `down` (r, I), B = `up` (O, r), α/r = `scale` (Hu et al. 2021, §4.1)."""
    return linear(linear(x, down), up) * scale


class LowRank(nn.Module):
    """One adapter, for the outputs from `start` to `stop` of a weight (O, I). B starts at zero: nothing changes yet."""

    initialized_last = True

    def __init__(self, recipe: AdaptersConfig, inputs: int, start: int, stop: int) -> None:
        super().__init__()
        self.start, self.stop, self.scale = start, stop, recipe.alpha / recipe.rank
        self.down = nn.Parameter(torch.empty(recipe.rank, inputs))
        self.up = nn.Parameter(torch.empty(stop - start, recipe.rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        normal_(self.down, self.down.shape[1] ** -0.5)
        nn.init.zeros_(self.up)

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) → (…, stop − start)."""
        return low_rank(x, self.down, self.up, self.scale)

    def product(self) -> Tensor:
        """(stop − start, I): what it adds to the weight."""
        return self.scale * (self.up @ self.down)


class LowRankRows(nn.Module):
    """The adapters of one weight, each for rows of its own: queries, keys and values are rows of one product."""

    def __init__(self, recipe: AdaptersConfig, inputs: int, rows: dict[str, tuple[int, int]]) -> None:
        super().__init__()
        for name, (start, stop) in sorted(rows.items(), key=lambda item: item[1]):
            self.add_module(name, LowRank(recipe, inputs, start, stop))
        self.dropout = recipe.dropout

    def each(self) -> list[LowRank]:
        """From the first row to the last."""
        return [module for module in self.children() if isinstance(module, LowRank)]

    def forward(self, x: Tensor, y: Tensor, start: int, stop: int) -> Tensor:
        """What `x` (…, I) adds to the outputs `y` (…, stop − start) of the rows from `start` to `stop`."""
        if self.dropout and self.training:
            x = nn.functional.dropout(x, self.dropout)
        parts, done = [], start
        for adapter in self.each():
            if start <= adapter.start and adapter.stop <= stop:
                low, high = adapter.start - start, adapter.stop - start
                parts += [y[..., done - start : low], y[..., low:high] + adapter(x)]
                done = adapter.stop
        return torch.cat([*parts, y[..., done - start :]], dim=-1) if parts else y


def add_adapters(model: nn.Module, recipe: AdaptersConfig) -> None:
    """Put adapters where the recipe wants them: in every Transformer layer of the model."""
    found: set[str] = set()
    for module in list(model.modules()):
        if isinstance(module, MultiHeadAttention) and module.qkv is not None and module.output is not None:
            width, shared = module.width, module.shared_width
            ends: dict[str, tuple[int, int]] = {
                "query": (0, width),
                "key": (width, width + shared),
                "value": (width + shared, width + 2 * shared),
            }
            rows: dict[str, tuple[int, int]] = {
                name: span for name, span in ends.items() if name in recipe.target_modules
            }
            found |= _adapt(module.qkv, recipe, rows)
            found |= _adapt(module.output, recipe, {"output": (0, width)} if "output" in recipe.target_modules else {})
        elif isinstance(module, FeedForwardNet) and "feedforward" in recipe.target_modules:
            for net in (module.up, module.down):
                found |= _adapt(net, recipe, {"feedforward": (0, net.weight.shape[0])})
    if missing := [name for name in recipe.target_modules if name not in found]:
        raise ValueError(
            f"model.adapters.target_modules: {missing[0]} is nothing that the layers of this model have (experts and "
            f"attention without projections take no adapters); leave it out"
        )


def _adapt(weight: Linear, recipe: AdaptersConfig, rows: dict[str, tuple[int, int]]) -> set[str]:
    if rows:
        weight.adapters = LowRankRows(recipe, weight.weight.shape[1], rows)
    return set(rows)


@torch.no_grad()
def merge_adapters(model: nn.Module) -> int:
    """Add all adapters to the weights they stand beside, W + (α/r) B A, and take them out; how many there were."""
    count = 0
    for module in model.modules():
        if isinstance(module, Projection) and isinstance(module.adapters, LowRankRows):
            for adapter in module.adapters.each():
                module.weight[adapter.start : adapter.stop] += adapter.product()
                count += 1
            module.adapters = None
    return count


def is_adapter(name: str) -> bool:
    """Whether a parameter of that name belongs to an adapter."""
    return ".adapters." in name
