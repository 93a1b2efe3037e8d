"""Convolutional bodies: gated convolutions, and attention to the source in every layer (Gehring et al. 2017).

What a layer adds to its input, and what attention adds to that, is of equal variance: the sums are scaled by √½ (§3.4),
so that variance neither grows nor fades with depth. What enters has a standard deviation of 0.1, as in the paper: the
scores d·z are not scaled, and of vectors of variance one the softmax would see one alone.

Layers may have a width C of their own. Linear maps lead there from the vectors and back to the width D of the
embeddings (§3.2), in which all that is looked at stays: z, e, g and what the output layer reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from sightline.layers.attention import attend, in_autocast
from sightline.layers.convolution import Convolution, NormalizedLinear, RecentInputs, glu, scale_gradient
from sightline.layers.dropout import Dropout
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.positions import Learned, NoPositions
from sightline.layers.scores import Dot
from sightline.layers.tap import TapModule
from sightline.models.convolutional.config import ConvolutionalConfig
from sightline.models.protocol import Memory, join_left_padding, join_masks, join_rows

HALF = math.sqrt(0.5)
ENTERING = 0.1  # standard deviation of embeddings and positions at the start
POSITIONS = {"learned": Learned, "none": NoPositions}


class WidthMap(TapModule):
    """W x + b from one width to another, which begins with the variance that x had before it was dropped out.

    Dropout that keeps a share p divides the variance by p; weights of variance p / inputs multiply it by p (§3.5).
    """

    def __init__(self, inputs: int, outputs: int, formula: str, kept: float = 1.0) -> None:
        super().__init__()
        self.project = NormalizedLinear(inputs, outputs, std=math.sqrt(kept / inputs))
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) → (…, O)."""
        # in the precision of x: under autocast the sums over the layers are in float32, and a product would not be
        return self.tap("output", self.project(x).to(x.dtype), self.formula)


def width_map(inputs: int, outputs: int, formula: str, kept: float = 1.0) -> WidthMap | nn.Identity:
    """A linear projection where the widths differ, else the identity."""
    return nn.Identity() if inputs == outputs else WidthMap(inputs, outputs, formula, kept)


class GatedBlock(TapModule):
    """h' = √½ (GLU(W ∗ h + b) + h), with dropout on the input of the convolution."""

    entry_points: ClassVar[tuple[str, ...]] = ("advance",)

    def __init__(self, recipe: ConvolutionalConfig, channels: int, *, causal: bool) -> None:
        super().__init__()
        inputs = recipe.kernel * channels
        std = math.sqrt(4 * (1 - recipe.dropout) / inputs)  # the gate takes away three quarters of the variance (§3.5)
        self.convolution = Convolution(NormalizedLinear(inputs, 2 * channels, std=std), recipe.kernel, causal=causal)
        self.dropout = Dropout(recipe.dropout)

    def forward(self, h: Tensor, layout: Layout) -> Tensor:
        """(B, T, C) or (N, C) → the same."""
        return self._finish(h, self.convolution(self.dropout(h), layout))

    def advance(self, h: Tensor, recent: Tensor, ends: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B·W, T, C) behind the last inputs → the same, and what is last now."""
        convolved, recent = self.convolution.advance(self.dropout(h), recent, ends)
        return self._finish(h, convolved), recent

    def _finish(self, h: Tensor, convolved: Tensor) -> Tensor:
        return self.tap("output", (glu(convolved) + h) * HALF, "√½ (GLU(W ∗ h + b) + h)")


class Entrance(TapModule):
    """e = 0.1 · x + p: embeddings (of variance one) and learned positions."""

    def __init__(self, recipe: ConvolutionalConfig, width: int) -> None:
        super().__init__()
        self.positions = POSITIONS[recipe.positions.kind](width, recipe.positions.max_positions)
        self.dropout = Dropout(recipe.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.positions.parameters():
            if not table.is_meta:
                nn.init.normal_(table, std=ENTERING)

    def forward(self, x: Tensor, places: Tensor, reach: int) -> Tensor:
        """(…, D) at places (…,), all of them before `reach`."""
        return self.tap("vectors", self.dropout(self.positions(ENTERING * x, places, reach)), "0.1 x + p")


class ConvolutionalEncoder(TapModule):
    """Gated convolutions over the source; its vectors are handed on beside the states."""

    by_layer: tuple[str, ...] = ("layers",)
    below: tuple[str, ...] = ("embed_positions", "input_projection")

    def __init__(self, recipe: ConvolutionalConfig, width: int) -> None:
        super().__init__()
        channels = recipe.layer_width(width)
        self.embed_positions = Entrance(recipe, width)
        self.input_projection = width_map(width, channels, "W e + b", 1 - recipe.dropout)
        self.layers = nn.ModuleList(GatedBlock(recipe, channels, causal=False) for _ in range(recipe.layers))
        self.output_projection = width_map(channels, width, "W h + b")

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        entered = self.embed_positions(x, layout.positions(x.device), layout.longest)
        h = self.input_projection(entered)  # (…, C)
        for layer in self.layers:
            h = layer(h, layout)
        return Memory(self.tap("output", self.output_projection(h)), layout, embeddings=entered)


@dataclass(frozen=True)
class SourceStates:
    """What every layer looks at, as one head; packed (M, 1, D) where the layout says so, for packed targets."""

    keys: Tensor  # (B, 1, S, D) or (M, 1, D): z
    values: Tensor  # the same: z + e
    mask: Tensor | None  # (B, S)
    scale: Tensor  # (B, 1, 1): √S; packed (B, 1), and seen from N tokens (N, 1)
    layout: Packed | None = None
    seen_by: Packed | None = None

    def seen_from(self, target: Packed) -> SourceStates:
        """The same for the tokens of packed targets."""
        return replace(self, scale=target.spread(self.scale), seen_by=target)

    @property
    def layouts(self) -> tuple[Packed, Packed] | None:
        """The layouts of queries and keys, where both are packed; else None."""
        return None if self.layout is None or self.seen_by is None else (self.seen_by, self.layout)

    def keep(self, sentences: Tensor) -> SourceStates:
        keys, values, scale = (part.index_select(0, sentences) for part in (self.keys, self.values, self.scale))
        return SourceStates(keys, values, None if self.mask is None else self.mask.index_select(0, sentences), scale)

    def append(self, other: SourceStates) -> SourceStates:
        keys, values = join_rows(self.keys, other.keys, dim=2), join_rows(self.values, other.values, dim=2)
        mask = join_masks(self.mask, other.mask, (self.keys, other.keys))
        return SourceStates(keys, values, mask, join_rows(self.scale, other.scale))


class StepAttention(TapModule):
    """One of the steps of multi-step attention (§3.3, §3.4): √½ (h + c), from queries that know the token itself.

    d_i = W h_i + b + g_i,  α_ij = softmax_j(d_i·z_j),  c_i = S √(1/S) Σ_j α_ij (z_j + e_j)

    with g the vectors of the target, z the states of the source and e its vectors. S √(1/S) brings the mean of S
    vectors back to the variance of one. Where h is not as wide as they are, a map brings c to the width of h.
    """

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.project = NormalizedLinear(channels, width, std=math.sqrt(1 / channels))
        self.score = Dot()
        self.output_projection = width_map(width, channels, "W √S context + b")
        seen = ("√S context", "context") if width == channels else ("output_projection", "output_projection.output")
        self.formula, self.seen = f"√½ (h + {seen[0]})", seen[1]

    def forward(self, h: Tensor, given: Tensor, source: SourceStates) -> Tensor:
        """h (B, T or W, C), or (N, C), and g (…, D) → as h."""
        query = self.tap("query", self.project(h) + given, "W h + b + g")
        keys, values = self.tap("key", source.keys, "z"), self.tap("value", source.values, "z + e")
        mask = None if source.mask is None else source.mask[:, None, None, :]
        look = partial(attend, score=self.score, mask=mask, layout=source.layouts, tap=self.explicit_tap)
        context = look(in_autocast(query)[:, None], keys, values)[:, 0]
        return self.tap(
            "output", (h + self.output_projection(source.scale * context)) * HALF, self.formula, [self.seen]
        )


@dataclass(frozen=True)
class ConvolutionalState:
    """The last inputs of every layer, what the attention looks at, and where the next tokens stand."""

    recent: RecentInputs
    source: SourceStates | None = None
    length: int = 0  # tokens so far of the sentence that has most
    left_padding: Tensor | None = None  # (B, 1) how many fewer the others have, where they differ

    def select(self, parents: Tensor) -> ConvolutionalState:
        return replace(self, recent=self.recent.select(parents))

    def keep(self, sentences: Tensor) -> ConvolutionalState:
        return replace(
            self,
            recent=self.recent.keep(sentences),
            source=None if self.source is None else self.source.keep(sentences),
            left_padding=None if self.left_padding is None else self.left_padding.index_select(0, sentences),
        )

    def append(self, other: ConvolutionalState) -> ConvolutionalState:
        rows, device = (self.recent.shape[0], other.recent.shape[0]), self.recent.inputs[0].device
        length, left_padding = join_left_padding((self, other), rows, device)
        source = None if self.source is None or other.source is None else self.source.append(other.source)
        return ConvolutionalState(self.recent.append(other.recent), source, length, left_padding)


class ConvolutionalDecoder(TapModule):
    """Causal gated convolutions over the target so far, each followed by a look at the source, if there is one."""

    by_layer: tuple[str, ...] = ("layers", "attentions")
    below: tuple[str, ...] = ("embed_positions", "input_projection")
    sees_source: tuple[str, ...] = ("attentions",)
    entry_points: ClassVar[tuple[str, ...]] = ("begin", "begin_empty", "prefill", "advance")

    def __init__(self, recipe: ConvolutionalConfig, width: int, *, source: bool = True) -> None:
        super().__init__()
        self.width, self.channels = width, recipe.layer_width(width)
        self.embed_positions = Entrance(recipe, width)
        self.input_projection = width_map(width, self.channels, "W g + b", 1 - recipe.dropout)
        blocks = [GatedBlock(recipe, self.channels, causal=True) for _ in range(recipe.layers)]
        self.layers = nn.ModuleList(blocks)
        self.reaches = [block.convolution.reach for block in blocks]
        looks = recipe.layers if source else 0
        self.attentions = nn.ModuleList(StepAttention(width, self.channels) for _ in range(looks))
        self.output_projection = width_map(self.channels, width, "W h + b")
        self.dropout = Dropout(recipe.dropout)
        self.cross_attention_paths = tuple(f"attentions.{index}" for index in range(len(self.attentions)))
        self.longest = recipe.positions.max_positions if recipe.positions.kind == "learned" else None

    def begin(self, memory: Memory) -> ConvolutionalState:
        """The initial state. Gradients into the encoder are scaled by 1 / (2 · attention layers) (§3.4).

        An encoder of another kind hands on no vectors: e is zero, and its states, of a variance near one, come in as
        embeddings do, times 0.1.
        """
        states = scale_gradient(memory.states, 1 / (2 * len(self.attentions)))  # (B, S, D) or (M, D)
        if memory.embeddings is None:
            values = states = ENTERING * states
        else:
            values = states + memory.embeddings
        scale = memory.lengths().to(states.dtype).sqrt()[:, None]  # (B, 1)
        keys, values = (in_autocast(part)[:, None] for part in (states, values))
        if isinstance(memory.layout, Packed):  # targets are packed too, and come whole: nothing is recent
            return ConvolutionalState(RecentInputs(()), SourceStates(keys, values, None, scale, memory.layout))
        source = SourceStates(keys, values, memory.layout.key_mask(), scale[..., None])
        return replace(self.begin_empty(len(states), states), source=source)

    def begin_empty(self, batch: int, like: Tensor) -> ConvolutionalState:
        """Where nothing has been read: zeros."""
        return ConvolutionalState(RecentInputs.none(self.reaches, batch, self.channels, like))

    def prefill(self, x: Tensor, layout: Padded) -> ConvolutionalState:
        """After tokens x (B, S, D) of different lengths: the last ones of each."""
        ends = layout.lengths.to(x.device)
        state = self._advance(x, self.begin_empty(len(x), x), ends)[1]
        return state if layout.mask is None else replace(state, left_padding=(x.shape[1] - ends)[:, None])

    def advance(
        self, x: Tensor, state: ConvolutionalState, layout: Layout | None = None
    ) -> tuple[Tensor, ConvolutionalState]:
        if not isinstance(layout, Packed):
            return self._advance(x, state)
        source = None if state.source is None else state.source.seen_from(layout)
        given = self.embed_positions(x, layout.positions(x.device), layout.longest)
        h = self.input_projection(given)  # (N, C)
        for index, layer in enumerate(self.layers):
            h = self._look(index, layer(h, layout), given, source)
        return self._leave(h), replace(state, length=layout.longest)

    def _advance(
        self, x: Tensor, state: ConvolutionalState, ends: Tensor | None = None
    ) -> tuple[Tensor, ConvolutionalState]:
        """x (B·W, T, D); with `ends` (B,), only so many of the T tokens are real."""
        state.recent.check(x.shape[1])
        beside = (state.recent.shape[0], -1)  # (B, W·T): one token of many, or many of one
        rows = (*x.shape[:2], self.channels)  # (B·W, T, C)
        given = self.embed_positions(x.reshape(*beside, self.width), *self._places(x, state))
        h, last = self.input_projection(given), []
        for index, (layer, recent) in enumerate(zip(self.layers, state.recent.rows(), strict=True)):
            h, recent = layer.advance(h.reshape(rows), recent, ends)
            last.append(recent)
            h = self._look(index, h.reshape(*beside, self.channels), given, state.source)
        features = self._leave(h.reshape(rows))
        return features, replace(state, recent=state.recent.followed_by(last), length=state.length + x.shape[1])

    def _look(self, index: int, h: Tensor, given: Tensor, source: SourceStates | None) -> Tensor:
        """h with what it sees of the source in this layer, if there is one."""
        return h if source is None else self.attentions[index](h, given, source)

    def _leave(self, h: Tensor) -> Tensor:
        return self.dropout(self.tap("output", self.output_projection(h)))

    def _places(self, x: Tensor, state: ConvolutionalState) -> tuple[Tensor, int]:
        """(1 or B, T): where the new tokens stand, and what is behind all of them."""
        places = torch.arange(state.length, state.length + x.shape[1], device=x.device)[None, :]
        reach = state.length + x.shape[1]
        if state.left_padding is None:
            return places, reach
        places = places - state.left_padding
        if self.longest is None:
            return places, reach
        # sentences that have ended may stand beside those that began later and go on
        return places.clamp(max=self.longest - 1), min(reach, self.longest)
