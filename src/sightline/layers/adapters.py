"""Low-rank adapters (LoRA; Hu et al. 2021): y = W x + b + (α/r) B A x, where W stays as it is and A and B learn.

Adapters are applied where a weight is used, so that all kernels after it stay the same. After training they can be
added to the weight, so that a finished model has none.
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
    """One adapter, for the outputs from `start` to `stop` of a weight (O, I). B starts at zero."""

    initialized_last = True

    def __init__(self, inputs: int, start: int, stop: int, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.start, self.stop, self.scale = start, stop, alpha / rank
        self.down = nn.Parameter(torch.empty(rank, inputs))
        self.up = nn.Parameter(torch.empty(stop - start, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        normal_(self.down, self.down.shape[1] ** -0.5)
        nn.init.zeros_(self.up)

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) → (…, stop − start)."""
        return low_rank(x, self.down, self.up, self.scale)

    def product(self) -> Tensor:
        """(stop − start, I): the change of the weight."""
        return self.scale * (self.up @ self.down)


class LowRankRows(nn.Module):
    """The adapters of one weight, each for some rows: queries, keys and values are rows of one product."""

    def __init__(self, recipe: AdaptersConfig, inputs: int, rows: dict[str, tuple[int, int]]) -> None:
        super().__init__()
        for name, (start, stop) in sorted(rows.items(), key=lambda item: item[1]):
            self.add_module(name, LowRank(inputs, start, stop, rank=recipe.rank, alpha=recipe.alpha))
        self.dropout = recipe.dropout

    def each(self) -> list[LowRank]:
        """The adapters, from the first row to the last."""
        return [module for module in self.children() if isinstance(module, LowRank)]

    def forward(self, x: Tensor, y: Tensor, start: int, stop: int) -> Tensor:
        """Outputs `y` (…, stop − start) of the rows from `start` to `stop`, plus the adapters of `x` (…, I)."""
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
    """Add the adapters of a recipe to every Transformer layer of the model."""
    adapted: set[str] = set()
    for module in list(model.modules()):
        if isinstance(module, MultiHeadAttention) and module.qkv is not None and module.output is not None:
            width, shared = module.width, module.shared_width
            ends: dict[str, tuple[int, int]] = {
                "query": (0, width),
                "key": (width, width + shared),
                "value": (width + shared, width + 2 * shared),
            }
            rows: dict[str, tuple[int, int]] = {
                name: rows for name, rows in ends.items() if name in recipe.target_modules
            }
            adapted |= _adapt(module.qkv, recipe, rows)
            adapted |= _adapt(
                module.output, recipe, {"output": (0, width)} if "output" in recipe.target_modules else {}
            )
        elif isinstance(module, FeedForwardNet) and "feedforward" in recipe.target_modules:
            for net in (module.up, module.down):
                adapted |= _adapt(net, recipe, {"feedforward": (0, net.weight.shape[0])})
    if missing := [name for name in recipe.target_modules if name not in adapted]:
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
    """Add all adapters to their weights, W + (α/r) B A, and remove them; returns how many there were."""
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
