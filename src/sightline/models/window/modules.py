"""Feed-forward encoder and decoder over a fixed window (Bengio et al. 2003)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from sightline.layers.dropout import Dropout
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.linear import Linear
from sightline.layers.tap import TapModule
from sightline.models.protocol import Memory, check_step, join_optional, join_rows, keep_rows, select_hypotheses
from sightline.models.window.config import WindowConfig


class WindowNet(TapModule):
    """tanh(W_n … tanh(W_1 [x_1 ; … ; x_k])) over each window of k vectors."""

    def __init__(self, size: int, width: int, *, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        widths = [size * width, *[hidden] * layers, width]
        self.size = size
        self.layers = nn.ModuleList(Linear(first, second) for first, second in pairwise(widths))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T + k − 1, D) → (B, T, D)."""
        x = x.unfold(1, self.size, 1).transpose(2, 3).flatten(2)  # (B, T, k·D)
        x = self.tap("window", x, "[x_1 ; … ; x_k]")
        for layer in self.layers:
            x = torch.tanh(layer(self.dropout(x)))
        return self.dropout(self.tap("features", x, "tanh(W x)", ["window"]))


def build_net(recipe: WindowConfig, size: int, width: int) -> WindowNet:
    """Build the net over windows of `size` vectors."""
    return WindowNet(size, width, hidden=recipe.hidden or 2 * width, layers=recipe.layers, dropout=recipe.dropout)


class WindowEncoder(TapModule):
    """A feed-forward net over each token and `size` neighbours on either side."""

    by_layer: tuple[str, ...] = ("net.layers",)
    below: tuple[str, ...] = ()

    def __init__(self, recipe: WindowConfig, width: int) -> None:
        super().__init__()
        self.reach = recipe.size
        self.net = build_net(recipe, 2 * recipe.size + 1, width)

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        x, mask = layout.pad(x), layout.key_mask()
        if mask is not None:  # zeros after a sentence, as before it
            x = x * mask[..., None]
        x = self.net(nn.functional.pad(x, (0, 0, self.reach, self.reach)))
        return Memory(layout.unpad(self.tap("output", x)), layout)


@dataclass(frozen=True)
class WindowState:
    """The last embeddings of each hypothesis, zeros before the first token."""

    recent: Tensor  # (B, W, k − 1, D)
    memory: Tensor | None = None  # (B, 1, D): projected summary of the source

    def select(self, parents: Tensor) -> WindowState:
        return replace(self, recent=select_hypotheses(self.recent, parents))

    def keep(self, sentences: Tensor) -> WindowState:
        return WindowState(self.recent.index_select(0, sentences), keep_rows(self.memory, sentences))

    def append(self, other: WindowState) -> WindowState:
        return WindowState(join_rows(self.recent, other.recent), join_optional(self.memory, other.memory))


class WindowDecoder(TapModule):
    """A feed-forward net over the last `size` tokens, plus a linear map of the source summary, if any."""

    by_layer: tuple[str, ...] = ("net.layers",)
    below: tuple[str, ...] = ()
    sees_source: tuple[str, ...] = ("bridge",)
    entry_points: ClassVar[tuple[str, ...]] = ("begin", "begin_empty", "prefill", "advance")

    def __init__(self, recipe: WindowConfig, width: int, *, source: bool = True) -> None:
        super().__init__()
        self.net = build_net(recipe, recipe.size, width)
        self.bridge = Linear(width, width) if source else None
        self.cross_attention_paths: tuple[str, ...] = ()
        self.longest: int | None = None

    def begin(self, memory: Memory) -> WindowState:
        summary = memory.summary()[:, -1:]  # (B, 1, D)
        assert self.bridge is not None
        return WindowState(self._zeros(len(summary), summary), self.bridge(summary))

    def begin_empty(self, batch: int, like: Tensor) -> WindowState:
        """The state before the first token, without a source."""
        return WindowState(self._zeros(batch, like))

    def prefill(self, x: Tensor, layout: Padded) -> WindowState:
        """The state after tokens x (B, S, D) of different lengths."""
        before = torch.cat([self._zeros(len(x), x)[:, 0], x], dim=1)  # (B, k − 1 + S, D)
        places = layout.lengths.to(x.device)[:, None] + torch.arange(self.net.size - 1, device=x.device)
        return WindowState(before.gather(1, places[..., None].expand(-1, -1, x.shape[2]))[:, None])

    def advance(self, x: Tensor, state: WindowState, layout: Layout | None = None) -> tuple[Tensor, WindowState]:
        if isinstance(layout, Packed):
            features, state = self.advance(layout.pad(x), state)
            return layout.unpad(features), state
        sentences, width = state.recent.shape[:2]
        check_step(width, x.shape[1])
        inputs = torch.cat([state.recent.flatten(0, 1), x], dim=1)  # (B·W, k − 1 + T, D)
        features = self.net(inputs)  # (B·W, T, D)
        if state.memory is not None:
            features = features + state.memory.expand(-1, width, -1).reshape(len(x), 1, -1)
        recent = inputs[:, x.shape[1] :].unflatten(0, (sentences, width))
        return features, replace(state, recent=recent)

    def _zeros(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, 1, self.net.size - 1, like.shape[-1])
