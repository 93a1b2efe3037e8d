"""ByteNet: dilated convolutions, and a target that runs over the source at a fixed ratio (Kalchbrenner et al. 2016).

There is no attention: the decoder stands on the encoder, and reads at each step what the encoder made of the place it
has come to. How many places there are is guessed from the length of the source: t̂ = a·|s| + b.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sightline.layers.convolution import Convolution, RecentInputs
from sightline.layers.devices import widest
from sightline.layers.dropout import Dropout
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.linear import Linear
from sightline.layers.norms import LayerNorm
from sightline.layers.tap import TapModule
from sightline.models.convolutional.config import ByteNetConfig
from sightline.models.protocol import Memory, join_left_padding, join_optional

COVERED = 0.99  # the share of training targets that t̂ should be long enough for


def fit_ratio(sources: np.ndarray, targets: np.ndarray, covered: float = COVERED) -> tuple[float, float]:
    """(a, b) of t̂ = a·s + b: least squares, then b raised until so large a share of the targets is covered.

    Where lengths do not tell a slope (all sources are alike, or longer ones have shorter targets), a is the ratio of
    the means.
    """
    s, t = np.asarray(sources, np.float64), np.asarray(targets, np.float64)
    spread = s - s.mean()
    square = float(spread @ spread)
    a = float(spread @ t) / square if square else 0.0
    if a <= 0:
        a = float(t.mean() / s.mean())
    b = float(np.quantile(t - a * s, covered))
    return a, b


def unfold(states: Tensor, lengths: Tensor, places: Tensor, ratio: Tensor) -> Tensor:
    """States (B, S, D) of sequences of lengths (B,) → (B, T, D): those aligned with target positions (T,) or (B, T).

    Place t < t̂ = ⌈a·S + b⌉ is given the state ⌊t / a⌋, or the last one; from t̂ on there are zeros.
    """
    index, past = _standing(lengths[:, None], places, ratio)  # (B, T)
    read = states.gather(1, index[..., None].expand(-1, -1, states.shape[2]))
    return read.masked_fill(past[..., None], 0.0)


def unfold_packed(states: Tensor, source: Packed, target: Packed, ratio: Tensor) -> Tensor:
    """The same of sequences end to end: states (M, D) → (N, D), those aligned with each target token."""
    index, past = _standing(target.spread(source.offsets.diff()), target.index, ratio)  # (N,)
    read = states.index_select(0, target.spread(source.offsets[:-1]) + index)
    return read.masked_fill(past[:, None], 0.0)


def _standing(lengths: Tensor, places: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Which state each place is given, and whether it is t̂ or past it, in sources of these lengths."""
    a, b = widest(ratio)
    index = (places / a).floor().long().minimum(lengths - 1).clamp(min=0)
    return index, places >= (a * lengths + b).ceil()


class DilatedBlock(TapModule):
    """x + W₂ r(C ∗ r(W₁ r(x))), r = ReLU ∘ LayerNorm: the convolution works in half of the width (§3.6)."""

    entry_points: ClassVar[tuple[str, ...]] = ("advance",)

    def __init__(self, recipe: ByteNetConfig, width: int, index: int, *, causal: bool) -> None:
        super().__init__()
        half = width // 2
        dilation = recipe.dilations[index % len(recipe.dilations)]
        self.norms = nn.ModuleList(LayerNorm(size) for size in (width, half, half))
        self.input_projection = Linear(width, half)
        self.convolution = Convolution(
            Linear(recipe.kernel * half, half), recipe.kernel, dilation=dilation, causal=causal
        )
        self.output_projection = Linear(half, width)
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """(B, T, D) or (N, D) → the same."""
        return self._finish(x, self.convolution(self._inner(x), layout))

    def advance(self, x: Tensor, recent: Tensor, ends: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B·W, T, D) behind the last inputs of the convolution → the same, and what is last now."""
        convolved, recent = self.convolution.advance(self._inner(x), recent, ends)
        return self._finish(x, convolved), recent

    def _inner(self, x: Tensor) -> Tensor:
        """What is convolved: (…, D) → (…, D/2)."""
        first, second, _ = self.norms
        return torch.relu(second(self.input_projection(torch.relu(first(x)))))

    def _finish(self, x: Tensor, convolved: Tensor) -> Tensor:
        output = self.output_projection(torch.relu(self.norms[2](convolved)))
        return self.tap("output", self.dropout.add(x, output), "x + W₂ r(C ∗ r(W₁ r(x)))")


class ByteNetEncoder(TapModule):
    """Dilated convolutions over the source."""

    by_layer: tuple[str, ...] = ("layers",)
    below: tuple[str, ...] = ()

    def __init__(self, recipe: ByteNetConfig, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DilatedBlock(recipe, width, index, causal=False) for index in range(recipe.layers))
        self.norm = LayerNorm(width)
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, layout)
        return Memory(self.tap("output", self.norm(x)), layout)


@dataclass(frozen=True)
class ByteNetState:
    """The last inputs of every convolution, and the source the target runs over."""

    recent: RecentInputs
    source: Tensor | None = None  # (B, S, D), or (M, D) as the layout says, projected
    lengths: Tensor | None = None  # (B,) how much of it is real
    layout: Packed | None = None  # of a packed source
    length: int = 0  # tokens so far of the sentence that has most
    left_padding: Tensor | None = None  # (B, 1) how many fewer the others have, where they differ

    def select(self, parents: Tensor) -> ByteNetState:
        return replace(self, recent=self.recent.select(parents))

    def keep(self, sentences: Tensor) -> ByteNetState:
        both = (self.source, self.lengths)
        source, lengths = (None if part is None else part.index_select(0, sentences) for part in both)
        left_padding = None if self.left_padding is None else self.left_padding.index_select(0, sentences)
        return replace(
            self, recent=self.recent.keep(sentences), source=source, lengths=lengths, left_padding=left_padding
        )

    def append(self, other: ByteNetState) -> ByteNetState:
        rows, device = (self.recent.shape[0], other.recent.shape[0]), self.recent.inputs[0].device
        length, left_padding = join_left_padding((self, other), rows, device)
        return ByteNetState(
            self.recent.append(other.recent),
            join_optional(self.source, other.source, dim=1),
            join_optional(self.lengths, other.lengths),
            length=length,
            left_padding=left_padding,
        )


class ByteNetDecoder(TapModule):
    """Causal dilated convolutions over x_t + W z_t, z_t being position t of the unfolded source.

    The paper fills the source up to t̂ places and encodes them all; here the encoder's states, which any encoder may
    have made, are laid out over t̂ places at the ratio a (see `unfold`), which for a = 1 is place by place. Past t̂ the
    target goes on without a source (dynamic unfolding, §3.2). a and b are fitted before training and saved with it.
    """

    by_layer: tuple[str, ...] = ("layers",)
    below: tuple[str, ...] = ("source",)
    sees_source: tuple[str, ...] = ("source", "ratio")
    entry_points: ClassVar[tuple[str, ...]] = ("begin", "begin_empty", "prefill", "advance")
    ratio: Tensor

    def __init__(self, recipe: ByteNetConfig, width: int, *, source: bool = True) -> None:
        super().__init__()
        self.inner = width // 2
        blocks = [DilatedBlock(recipe, width, index, causal=True) for index in range(recipe.layers)]
        self.layers = nn.ModuleList(blocks)
        self.reaches = [block.convolution.reach for block in blocks]
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
        """Find the ratio of these lengths (without marks: there is one on either side)."""
        if self.source is not None and len(sources):
            self.ratio.copy_(torch.tensor(fit_ratio(np.asarray(sources) + 1, np.asarray(targets) + 1)))

    def begin(self, memory: Memory) -> ByteNetState:
        """Project the source once, before it is unfolded."""
        assert self.source is not None
        states = self.source(memory.states)  # (B, S, D) or (M, D)
        if isinstance(memory.layout, Packed):  # targets are packed too, and come whole: nothing is recent
            return ByteNetState(RecentInputs(()), states, layout=memory.layout)
        return replace(self.begin_empty(len(states), states), source=states, lengths=memory.lengths())

    def begin_empty(self, batch: int, like: Tensor) -> ByteNetState:
        """Where nothing has been read: zeros."""
        return ByteNetState(RecentInputs.none(self.reaches, batch, self.inner, like))

    def prefill(self, x: Tensor, layout: Padded) -> ByteNetState:
        """After tokens x (B, S, D) of different lengths: the last ones of each."""
        return self._advance(x, self.begin_empty(len(x), x), layout.lengths.to(x.device))[1]

    def advance(self, x: Tensor, state: ByteNetState, layout: Layout | None = None) -> tuple[Tensor, ByteNetState]:
        if not isinstance(layout, Packed):
            return self._advance(x, state)
        if state.source is not None and state.layout is not None:
            x = x + self.tap("source", unfold_packed(state.source, state.layout, layout, self.ratio), "W z_t")  # (N, D)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, layout)
        return self._leave(x), replace(state, length=layout.longest)

    def _advance(self, x: Tensor, state: ByteNetState, ends: Tensor | None = None) -> tuple[Tensor, ByteNetState]:
        """x (B·W, T, D); with `ends` (B,), only so many of the T tokens are real."""
        state.recent.check(x.shape[1])
        x, last = self.dropout(self._read(x, state)), []
        for layer, recent in zip(self.layers, state.recent.rows(), strict=True):
            x, recent = layer.advance(x, recent, ends)
            last.append(recent)
        return self._leave(x), replace(state, recent=state.recent.followed_by(last), length=state.length + x.shape[1])

    def _leave(self, x: Tensor) -> Tensor:
        return self.dropout(self.tap("output", self.norm(x)))

    def _read(self, x: Tensor, state: ByteNetState) -> Tensor:
        """x + W z: (B·W, T, D), with the source states aligned with the new tokens."""
        if state.source is None or state.lengths is None:
            return x
        places = torch.arange(state.length, state.length + x.shape[1], device=x.device)[None, :]  # (1 or B, T)
        if state.left_padding is not None:
            places = places - state.left_padding
        read = self.tap("source", unfold(state.source, state.lengths, places, self.ratio), "W z_t")  # (B, T, D)
        return (x.reshape(len(read), -1, x.shape[2]) + read).reshape(x.shape)  # one token of W, or T of one
