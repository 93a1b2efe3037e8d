"""Low-rank adapters (LoRA; Hu et al. 2021): y = W x + b + (α/r) B A x with frozen W and learned A and B.

Adapters are applied in `Projection`, and can be merged into the weights after training.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sightline.layers.feedforward import FeedForwardNet
from sightline.layers.initialization import normal_
from sightline.layers.linear import Linear, Projection, linear
from sightline.layers.multi_head import MultiHeadAttention
from sightline.recipe.model import AdaptersConfig


class LowRank(nn.Module):
    """(α/r) B A x for rows `start` to `stop` of a weight (O, I): A (r, I), B (stop − start, r), B = 0 at first."""

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
        return linear(linear(x, self.down), self.up) * self.scale

    def product(self) -> Tensor:
        """(α/r) B A (stop − start, I): the change of the weight."""
        return self.scale * (self.up @ self.down)


class LowRankRows(nn.Module):
    """The adapters of one weight, each for a range of rows (queries, keys and values share one weight)."""

    def __init__(
        self, inputs: int, rows: dict[str, tuple[int, int]], *, rank: int, alpha: float, dropout: float
    ) -> None:
        super().__init__()
        for name, (start, stop) in sorted(rows.items(), key=lambda item: item[1]):
            self.add_module(name, LowRank(inputs, start, stop, rank=rank, alpha=alpha))
        self.dropout = dropout

    def each(self) -> list[LowRank]:
        """The adapters, from the first row to the last."""
        return [module for module in self.children() if isinstance(module, LowRank)]

    def forward(self, x: Tensor, y: Tensor, start: int, stop: int) -> Tensor:
        """y (…, stop − start), the output of rows `start` to `stop` for x (…, I), plus the adapters of these rows."""
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
    """Add the adapters of a recipe to all attention layers and feed-forward nets of the model."""
    adapted: set[str] = set()
    for module in list(model.modules()):
        for weight, candidates in _adaptable(module):
            rows: dict[str, tuple[int, int]] = {
                name: bounds for name, bounds in candidates.items() if name in recipe.target_modules
            }
            if rows:
                weight.adapters = LowRankRows(
                    weight.weight.shape[1], rows, rank=recipe.rank, alpha=recipe.alpha, dropout=recipe.dropout
                )
            adapted |= rows.keys()
    if missing := [name for name in recipe.target_modules if name not in adapted]:
        raise ValueError(
            f"model.adapters.target_modules: no layer of this model has a {missing[0]} map (experts, and attention "
            f"and blocks without such a map, take no adapters); leave it out"
        )


def _adaptable(module: nn.Module) -> Iterator[tuple[Linear, dict[str, tuple[int, int]]]]:
    """Weights of a layer that take adapters, and the rows of each target module."""
    if isinstance(module, MultiHeadAttention):
        width, shared = module.width, module.shared_width
        if module.qkv is not None:
            key, value, end = (width + number * shared for number in range(3))
            yield module.qkv, {"query": (0, key), "key": (key, value), "value": (value, end)}
        if module.q is not None and module.kv is not None:
            yield module.q, {"query": (0, width)}
            yield module.kv, {"key": (0, shared), "value": (shared, 2 * shared)}
        if module.output is not None:
            yield module.output, {"output": (0, width)}
    elif isinstance(module, FeedForwardNet):
        for net in (module.up, module.down):
            yield net, {"feedforward": (0, net.weight.shape[0])}


@torch.no_grad()
def merge_adapters(model: nn.Module) -> int:
    """Replace each W by W + (α/r) B A and remove the adapters; returns their number."""
    count = 0
    for module in model.modules():
        if isinstance(module, Projection) and isinstance(module.adapters, LowRankRows):
            for adapter in module.adapters.each():
                module.weight[adapter.start : adapter.stop] += adapter.product()
                count += 1
            module.adapters = None
    return count


def is_adapter(name: str) -> bool:
    """True if this is the name of an adapter's parameter."""
    return ".adapters." in name
