"""ByteNet: dilated convolutions, with the source unfolded at a fixed ratio (Kalchbrenner et al. 2016).

There is no attention: the decoder reads at each step one encoder state, at a position in proportion to its own. The
length of the target is estimated from that of the source: t̂ = a·|s| + b.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sightline.layers.convolution import Convolution
from sightline.layers.devices import widest
from sightline.layers.dropout import Dropout
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.linear import Linear
from sightline.layers.norms import LayerNorm
from sightline.layers.tap import TapModule
from sightline.models.convolutional.config import ByteNetConfig
from sightline.models.convolutional.state import ConvolutionalState
from sightline.models.protocol import Memory, join_rows

COVERED = 0.99  # share of training targets for which t̂ is long enough


def fit_ratio(sources: np.ndarray, targets: np.ndarray, covered: float = COVERED) -> tuple[float, float]:
    """(a, b) of t̂ = a·s + b: least squares, with b raised until the share `covered` of targets is not longer than t̂.

    If the slope is undefined or not positive, a is the ratio of the means.
    """
    s, t = np.asarray(sources, np.float64), np.asarray(targets, np.float64)
    deviation = s - s.mean()
    square = float(deviation @ deviation)
    a = float(deviation @ t) / square if square else 0.0
    if a <= 0:
        a = float(t.mean() / s.mean())
    b = float(np.quantile(t - a * s, covered))
    return a, b


def unfold(states: Tensor, lengths: Tensor, positions: Tensor, ratio: Tensor) -> Tensor:
    """States (B, S, D) of sequences of lengths (B,) → (B, T, D), aligned with target positions (T,) or (B, T).

    Position t < t̂ = ⌈a·S + b⌉ reads state min(⌊t / a⌋, S − 1), later positions read zeros.
    """
    index, past_end = _align(lengths[:, None], positions, ratio)  # (B, T)
    aligned = states.gather(1, index[..., None].expand(-1, -1, states.shape[2]))
    return aligned.masked_fill(past_end[..., None], 0.0)


def unfold_packed(states: Tensor, source: Packed, target: Packed, ratio: Tensor) -> Tensor:
    """`unfold` for packed sequences: states (M, D) → (N, D), aligned with the target tokens."""
    index, past_end = _align(target.spread(source.offsets.diff()), target.index, ratio)  # (N,)
    aligned = states.index_select(0, target.spread(source.offsets[:-1]) + index)
    return aligned.masked_fill(past_end[:, None], 0.0)


def _align(lengths: Tensor, positions: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the source state for each target position, and whether the position is t̂ or later."""
    a, b = widest(ratio)
    index = (positions / a).floor().long().minimum(lengths - 1).clamp(min=0)
    return index, positions >= (a * lengths + b).ceil()


class DilatedBlock(TapModule):
    """x + W₂ r(C ∗ r(W₁ r(x))), r = ReLU ∘ LayerNorm; the convolution C has half of the width (§3.6)."""

    entry_points: ClassVar[tuple[str, ...]] = ("advance",)

    def __init__(self, width: int, *, kernel: int, dilation: int, causal: bool, dropout: float) -> None:
        super().__init__()
        half = width // 2
        self.norms = nn.ModuleList(LayerNorm(size) for size in (width, half, half))
        self.input_projection = Linear(width, half)
        self.convolution = Convolution(Linear(kernel * half, half), kernel, dilation=dilation, causal=causal)
        self.output_projection = Linear(half, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """(B, T, D) or (N, D) → the same shape."""
        return self._output(x, self.convolution(self._input(x), layout))

    def advance(self, x: Tensor, recent: Tensor, ends: Tensor | None) -> tuple[Tensor, Tensor]:
        """A step: x (B·W, T, D) and the last inputs of the convolution → output, new last inputs."""
        convolved, recent = self.convolution.advance(self._input(x), recent, ends)
        return self._output(x, convolved), recent

    def _input(self, x: Tensor) -> Tensor:
        """r(W₁ r(x)): (…, D) → (…, D/2)."""
        first, second, _ = self.norms
        return torch.relu(second(self.input_projection(torch.relu(first(x)))))

    def _output(self, x: Tensor, convolved: Tensor) -> Tensor:
        """x + W₂ r(convolved)."""
        output = self.output_projection(torch.relu(self.norms[2](convolved)))
        return self.tap("output", self.dropout.add(x, output), "x + W₂ r(C ∗ r(W₁ r(x)))")


def build_blocks(recipe: ByteNetConfig, width: int, *, causal: bool) -> nn.ModuleList:
    """Build the layers of an encoder or decoder; the dilations of the recipe repeat."""
    return nn.ModuleList(
        DilatedBlock(
            width,
            kernel=recipe.kernel,
            dilation=recipe.dilations[index % len(recipe.dilations)],
            causal=causal,
            dropout=recipe.dropout,
        )
        for index in range(recipe.layers)
    )


class ByteNetEncoder(TapModule):
    """Dilated convolutions over the source."""

    by_layer: tuple[str, ...] = ("layers",)
    below: tuple[str, ...] = ()

    def __init__(self, recipe: ByteNetConfig, width: int) -> None:
        super().__init__()
        self.layers = build_blocks(recipe, width, causal=False)
        self.norm = LayerNorm(width)
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, layout)
        return Memory(self.tap("output", self.norm(x)), layout)


@dataclass(frozen=True)
class ProjectedSource:
    """The projected states of the source, before they are unfolded."""

    states: Tensor  # (B, S, D), or (M, D) with a packed layout
    lengths: Tensor  # (B,)
    layout: Packed | None = None

    def keep(self, sentences: Tensor) -> ProjectedSource:
        return ProjectedSource(self.states.index_select(0, sentences), self.lengths.index_select(0, sentences))

    def append(self, other: ProjectedSource) -> ProjectedSource:
        states = join_rows(self.states, other.states, dim=1)
        return ProjectedSource(states, join_rows(self.lengths, other.lengths))


class ByteNetDecoder(TapModule):
    """Causal dilated convolutions over x_t + W z_t, with z_t position t of the unfolded source.

    The paper pads the source to t̂ positions before encoding; here the states of any encoder are unfolded to t̂ positions
    with ratio a (see `unfold`), which is the same for a = 1. After t̂ the decoder continues without a source (dynamic
    unfolding, §3.2). a and b are fitted before training and saved with the weights.
    """

    by_layer: tuple[str, ...] = ("layers",)
    below: tuple[str, ...] = ("source",)
    sees_source: tuple[str, ...] = ("source", "ratio")
    entry_points: ClassVar[tuple[str, ...]] = ("begin", "begin_empty", "prefill", "advance")
    ratio: Tensor

    def __init__(self, recipe: ByteNetConfig, width: int, *, source: bool = True) -> None:
        super().__init__()
        self.inner = width // 2
        self.layers = build_blocks(recipe, width, causal=True)
        self.reaches: list[int] = [block.convolution.reach for block in self.layers]  # type: ignore[misc]
        self.norm = LayerNorm(width)
        self.dropout = Dropout(recipe.dropout)
        self.source = Linear(width, width, bias=False) if source else None
        if source:
            self.register_buffer("ratio", torch.empty(2))  # a, b
            self.reset_parameters()
        self.cross_attention_paths: tuple[str, ...] = ()
        self.longest: int | None = None

    def reset_parameters(self) -> None:
        if self.source is not None:
            self.ratio.copy_(torch.tensor([1.0, 0.0]))

    def fit_lengths(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Fit the ratio to these lengths, plus one start or end token each."""
        if self.source is not None and len(sources):
            self.ratio.copy_(torch.tensor(fit_ratio(np.asarray(sources) + 1, np.asarray(targets) + 1)))

    def begin(self, memory: Memory) -> ConvolutionalState:
        """The initial state, with the projected source."""
        assert self.source is not None
        states, lengths = self.source(memory.states), memory.lengths()  # (B, S, D) or (M, D), (B,)
        if isinstance(memory.layout, Packed):
            return ConvolutionalState((), ProjectedSource(states, lengths, memory.layout))
        return replace(self.begin_empty(len(states), states), source=ProjectedSource(states, lengths))

    def begin_empty(self, batch: int, like: Tensor) -> ConvolutionalState:
        """The state before the first token, without a source."""
        return ConvolutionalState.empty(self.reaches, batch, self.inner, like)

    def prefill(self, x: Tensor, layout: Padded) -> ConvolutionalState:
        """The state after tokens x (B, S, D) of different lengths."""
        return self._advance(x, self.begin_empty(len(x), x), layout.lengths.to(x.device))[1]

    def advance(
        self, x: Tensor, state: ConvolutionalState, layout: Layout | None = None
    ) -> tuple[Tensor, ConvolutionalState]:
        if not isinstance(layout, Packed):
            return self._advance(x, state)
        if state.source is not None:
            aligned = unfold_packed(state.source.states, state.source.layout, layout, self.ratio)  # (N, D)
            x = x + self.tap("source", aligned, "W z_t")
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, layout)
        return self._features(x), replace(state, length=layout.longest)

    def _advance(
        self, x: Tensor, state: ConvolutionalState, ends: Tensor | None = None
    ) -> tuple[Tensor, ConvolutionalState]:
        """x (B·W, T, D), of which `ends` (B,) tokens are real → features, state."""
        tokens = x.shape[1]
        caches, recent = state.rows(tokens), []
        x = self.dropout(self._add_source(x, state))
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer.advance(x, cache, ends)
            recent.append(cache)
        return self._features(x), state.advanced(recent, tokens)

    def _features(self, x: Tensor) -> Tensor:
        return self.dropout(self.tap("output", self.norm(x)))

    def _add_source(self, x: Tensor, state: ConvolutionalState) -> Tensor:
        """x + W z: (B·W, T, D) → (B·W, T, D)."""
        if state.source is None:
            return x
        positions = state.positions(x.shape[1])  # (1 or B, T)
        aligned = unfold(state.source.states, state.source.lengths, positions, self.ratio)  # (B, T, D)
        aligned = self.tap("source", aligned, "W z_t")
        return (x.reshape(len(aligned), -1, x.shape[2]) + aligned).reshape(x.shape)  # T = 1 or W = 1
