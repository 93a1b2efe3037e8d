"""Feed-forward bodies: all they see of a sequence is a fixed window (Bengio et al. 2003)."""

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
from sightline.models.protocol import Memory, join_optional, join_rows
from sightline.models.window.config import WindowConfig


class WindowNet(TapModule):
    """tanh(W_n … tanh(W_1 [x_1 ; … ; x_k])): the vectors of a window end to end, hidden layers, back to the width."""

    def __init__(self, recipe: WindowConfig, size: int, width: int) -> None:
        super().__init__()
        hidden = recipe.hidden or 2 * width
        widths = [size * width, *[hidden] * recipe.layers, width]
        self.size = size
        self.layers = nn.ModuleList(Linear(first, second) for first, second in pairwise(widths))
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T + k − 1, D) → (B, T, D), each from the k vectors that begin at its place."""
        x = x.unfold(1, self.size, 1).transpose(2, 3).flatten(2)  # (B, T, k · D)
        x = self.tap("window", x, "[x_1 ; … ; x_k]")
        for layer in self.layers:
            x = torch.tanh(layer(self.dropout(x)))
        return self.dropout(self.tap("features", x, "tanh(W x)", ["window"]))


class WindowEncoder(TapModule):
    """Each token from itself and `size` neighbours on either side."""

    by_layer: tuple[str, ...] = ("net.layers",)
    below: tuple[str, ...] = ()

    def __init__(self, recipe: WindowConfig, width: int) -> None:
        super().__init__()
        self.reach = recipe.size
        self.net = WindowNet(recipe, 2 * recipe.size + 1, width)

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        x, mask = layout.pad(x), layout.key_mask()
        if mask is not None:  # what stands behind a sentence is nothing, as what stands before it
            x = x * mask[..., None]
        x = self.net(nn.functional.pad(x, (0, 0, self.reach, self.reach)))
        return Memory(layout.unpad(self.tap("output", x)), layout)


@dataclass(frozen=True)
class WindowState:
    """The last vectors of each hypothesis; zeros before the first."""

    recent: Tensor  # (B, W, k − 1, D)
    memory: Tensor | None = None  # (B, 1, D): the mean of the source, where there is one

    def select(self, parents: Tensor) -> WindowState:
        rows = parents[:, :, None, None].expand(-1, -1, *self.recent.shape[2:])
        return replace(self, recent=self.recent.gather(1, rows))

    def keep(self, sentences: Tensor) -> WindowState:
        memory = None if self.memory is None else self.memory.index_select(0, sentences)
        return WindowState(self.recent.index_select(0, sentences), memory)

    def append(self, other: WindowState) -> WindowState:
        return WindowState(join_rows(self.recent, other.recent), join_optional(self.memory, other.memory))


class WindowDecoder(TapModule):
    """The next token from the last `size` ones, and from the mean of the source, if there is one."""

    by_layer: tuple[str, ...] = ("net.layers",)
    below: tuple[str, ...] = ()
    sees_source: tuple[str, ...] = ("bridge",)
    entry_points: ClassVar[tuple[str, ...]] = ("begin", "begin_empty", "prefill", "advance")

    def __init__(self, recipe: WindowConfig, width: int, *, source: bool = True) -> None:
        super().__init__()
        self.net = WindowNet(recipe, recipe.size, width)
        self.bridge = Linear(width, width) if source else None
        self.cross_attention_paths: tuple[str, ...] = ()
        self.longest: int | None = None

    def begin(self, memory: Memory) -> WindowState:
        summary = memory.summary()[:, -1:]  # (B, 1, D)
        assert self.bridge is not None
        return WindowState(self._zeros(len(summary), summary), self.bridge(summary))

    def begin_empty(self, batch: int, like: Tensor) -> WindowState:
        """Where nothing has been read: zeros."""
        return WindowState(self._zeros(batch, like))

    def prefill(self, x: Tensor, layout: Padded) -> WindowState:
        """After tokens x (B, S, D) of different lengths: the last ones of each."""
        before = torch.cat([self._zeros(len(x), x)[:, 0], x], dim=1)  # (B, k − 1 + S, D)
        places = layout.lengths.to(x.device)[:, None] + torch.arange(self.net.size - 1, device=x.device)
        return WindowState(before.gather(1, places[..., None].expand(-1, -1, x.shape[2]))[:, None])

    def advance(self, x: Tensor, state: WindowState, layout: Layout | None = None) -> tuple[Tensor, WindowState]:
        if isinstance(layout, Packed):
            features, state = self.advance(layout.pad(x), state)
            return layout.unpad(features), state
        sentences, width = state.recent.shape[:2]
        if width > 1 and x.shape[1] > 1:
            raise ValueError(f"{width} hypotheses a sentence advance one token at a time, not {x.shape[1]}")
        seen = torch.cat([state.recent.flatten(0, 1), x], dim=1)  # (B·W, k − 1 + T, D)
        features = self.net(seen)
        if state.memory is not None:
            features = features + state.memory.expand(-1, width, -1).reshape(len(x), 1, -1)
        recent = seen[:, x.shape[1] :].unflatten(0, (sentences, width))
        return features, replace(state, recent=recent)

    def _zeros(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, 1, self.net.size - 1, like.shape[-1])
