"""ConvS2S: gated convolutions with attention to the source in every layer (Gehring et al. 2017).

Sums of two terms of equal variance are scaled by √½, so that the variance does not change with depth (§3.4). Embeddings
have a standard deviation of 0.1, as in the paper, because the scores d·z are not scaled.

Layers may have a width C of their own, with linear maps from and to the width D of the embeddings (§3.2). z, e, g and
the features have width D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from sightline.layers.attention import attend, in_autocast
from sightline.layers.convolution import Convolution, NormalizedLinear, glu, scale_gradient
from sightline.layers.dropout import Dropout
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.positions import Learned, NoPositions
from sightline.layers.scores import Dot
from sightline.layers.tap import TapModule
from sightline.models.convolutional.config import ConvolutionalConfig
from sightline.models.convolutional.state import ConvolutionalState
from sightline.models.protocol import Memory, join_masks, join_rows, keep_rows

HALF = math.sqrt(0.5)
EMBEDDING_STD = 0.1  # initial standard deviation of embeddings and positions
POSITIONS = {"learned": Learned, "none": NoPositions}


class WidthMap(TapModule):
    """W x + b from one width to another, which initially keeps the variance of x before its dropout.

    Dropout with keep probability p divides the variance by p; weights of variance p / inputs multiply it by p (§3.5).
    """

    def __init__(self, inputs: int, outputs: int, formula: str, keep_probability: float = 1.0) -> None:
        super().__init__()
        self.project = NormalizedLinear(inputs, outputs, std=math.sqrt(keep_probability / inputs))
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) → (…, O), in the dtype of x also under autocast: sums over layers stay in float32."""
        return self.tap("output", self.project(x).to(x.dtype), self.formula)


def width_map(inputs: int, outputs: int, formula: str, keep_probability: float = 1.0) -> WidthMap | nn.Identity:
    """A linear map if the widths differ, else the identity."""
    return nn.Identity() if inputs == outputs else WidthMap(inputs, outputs, formula, keep_probability)


class GatedBlock(TapModule):
    """h' = √½ (GLU(W ∗ h + b) + h), with dropout on the input of the convolution."""

    entry_points: ClassVar[tuple[str, ...]] = ("advance",)

    def __init__(self, channels: int, *, kernel: int, causal: bool, dropout: float) -> None:
        super().__init__()
        inputs = kernel * channels
        std = math.sqrt(4 * (1 - dropout) / inputs)  # the gate divides the variance by four (§3.5)
        self.convolution = Convolution(NormalizedLinear(inputs, 2 * channels, std=std), kernel, causal=causal)
        self.dropout = Dropout(dropout)

    def forward(self, h: Tensor, layout: Layout) -> Tensor:
        """(B, T, C) or (N, C) → the same shape."""
        return self._output(h, self.convolution(self.dropout(h), layout))

    def advance(self, h: Tensor, recent: Tensor, ends: Tensor | None) -> tuple[Tensor, Tensor]:
        """A step: h (B·W, T, C) and the last inputs of the convolution → output, new last inputs."""
        convolved, recent = self.convolution.advance(self.dropout(h), recent, ends)
        return self._output(h, convolved), recent

    def _output(self, h: Tensor, convolved: Tensor) -> Tensor:
        return self.tap("output", (glu(convolved) + h) * HALF, "√½ (GLU(W ∗ h + b) + h)")


def build_blocks(recipe: ConvolutionalConfig, channels: int, *, causal: bool) -> nn.ModuleList:
    """Build the layers of an encoder or decoder."""
    return nn.ModuleList(
        GatedBlock(channels, kernel=recipe.kernel, causal=causal, dropout=recipe.dropout) for _ in range(recipe.layers)
    )


class InputEmbedding(TapModule):
    """e = 0.1 · x + p: embeddings x of variance one plus learned positions p."""

    def __init__(self, width: int, *, positions: str, max_positions: int, dropout: float) -> None:
        super().__init__()
        self.positions = POSITIONS[positions](width, max_positions)
        self.dropout = Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.positions.parameters():
            if not table.is_meta:
                nn.init.normal_(table, std=EMBEDDING_STD)

    def forward(self, x: Tensor, positions: Tensor, reach: int) -> Tensor:
        """x (…, D) at positions (…,), all less than `reach` → (…, D)."""
        return self.tap("vectors", self.dropout(self.positions(EMBEDDING_STD * x, positions, reach)), "0.1 x + p")


def build_input_embedding(recipe: ConvolutionalConfig, width: int) -> InputEmbedding:
    """Build the input embedding of an encoder or decoder."""
    positions = recipe.positions
    return InputEmbedding(
        width, positions=positions.kind, max_positions=positions.max_positions, dropout=recipe.dropout
    )


class ConvolutionalEncoder(TapModule):
    """Gated convolutions over the source; the memory includes the input embeddings."""

    by_layer: tuple[str, ...] = ("layers",)
    below: tuple[str, ...] = ("embed_positions", "input_projection")

    def __init__(self, recipe: ConvolutionalConfig, width: int) -> None:
        super().__init__()
        channels = recipe.layer_width(width)
        self.embed_positions = build_input_embedding(recipe, width)
        self.input_projection = width_map(width, channels, "W e + b", 1 - recipe.dropout)
        self.layers = build_blocks(recipe, channels, causal=False)
        self.output_projection = width_map(channels, width, "W h + b")

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        embeddings = self.embed_positions(x, layout.positions(x.device), layout.longest)
        h = self.input_projection(embeddings)  # (…, C)
        for layer in self.layers:
            h = layer(h, layout)
        return Memory(self.tap("output", self.output_projection(h)), layout, embeddings=embeddings)


@dataclass(frozen=True)
class SourceStates:
    """Keys and values of cross-attention with one head, the same for every layer."""

    keys: Tensor  # z: (B, 1, S, D), packed (M, 1, D)
    values: Tensor  # z + e, of the same shape
    mask: Tensor | None  # (B, S)
    scale: Tensor  # √S: (B, 1, 1), packed (B, 1), with packed targets (N, 1)
    layout: Packed | None = None  # of packed keys
    layouts: tuple[Packed, Packed] | None = None  # of packed queries and keys

    def for_targets(self, target: Packed) -> SourceStates:
        """The source for packed queries."""
        layouts = None if self.layout is None else (target, self.layout)
        return replace(self, scale=target.spread(self.scale), layouts=layouts)

    def keep(self, sentences: Tensor) -> SourceStates:
        keys, values, scale = (part.index_select(0, sentences) for part in (self.keys, self.values, self.scale))
        return SourceStates(keys, values, keep_rows(self.mask, sentences), scale)

    def append(self, other: SourceStates) -> SourceStates:
        keys, values = join_rows(self.keys, other.keys, dim=2), join_rows(self.values, other.values, dim=2)
        mask = join_masks(self.mask, other.mask, (self.keys, other.keys))
        return SourceStates(keys, values, mask, join_rows(self.scale, other.scale))


class StepAttention(TapModule):
    """One step of multi-step attention (§3.3, §3.4): √½ (h + c).

    d_i = W h_i + b + g_i,  α_ij = softmax_j(d_i·z_j),  c_i = √S Σ_j α_ij (z_j + e_j)

    g: target embeddings, z: encoder states, e: source embeddings. √S gives the mean of S vectors the variance of one
    vector. If h has another width, a linear map changes the width of c.
    """

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.project = NormalizedLinear(channels, width, std=math.sqrt(1 / channels))
        self.score = Dot()
        self.output_projection = width_map(width, channels, "W √S context + b")
        self.formula, self.inputs = "√½ (h + √S context)", ["context"]
        if width != channels:
            self.formula, self.inputs = "√½ (h + output_projection)", ["output_projection.output"]

    def forward(self, h: Tensor, embeddings: Tensor, source: SourceStates) -> Tensor:
        """h (B, T or W, C) or (N, C), target embeddings g (…, D) → the shape of h."""
        query = self.tap("query", self.project(h) + embeddings, "W h + b + g")
        keys, values = self.tap("key", source.keys, "z"), self.tap("value", source.values, "z + e")
        context = attend(
            in_autocast(query)[:, None],
            keys,
            values,
            score=self.score,
            mask=None if source.mask is None else source.mask[:, None, None, :],
            layout=source.layouts,
            tap=self.explicit_tap,
        )[:, 0]
        output = (h + self.output_projection(source.scale * context)) * HALF
        return self.tap("output", output, self.formula, self.inputs)


class ConvolutionalDecoder(TapModule):
    """Causal gated convolutions over the target, each followed by attention to the source, if any."""

    by_layer: tuple[str, ...] = ("layers", "attentions")
    below: tuple[str, ...] = ("embed_positions", "input_projection")
    sees_source: tuple[str, ...] = ("attentions",)
    entry_points: ClassVar[tuple[str, ...]] = ("begin", "begin_empty", "prefill", "advance")

    def __init__(self, recipe: ConvolutionalConfig, width: int, *, source: bool = True) -> None:
        super().__init__()
        self.width, self.channels = width, recipe.layer_width(width)
        self.embed_positions = build_input_embedding(recipe, width)
        self.input_projection = width_map(width, self.channels, "W g + b", 1 - recipe.dropout)
        self.layers = build_blocks(recipe, self.channels, causal=True)
        self.reaches: list[int] = [block.convolution.reach for block in self.layers]  # type: ignore[misc]
        count = recipe.layers if source else 0
        self.attentions = nn.ModuleList(StepAttention(width, self.channels) for _ in range(count))
        self.output_projection = width_map(self.channels, width, "W h + b")
        self.dropout = Dropout(recipe.dropout)
        self.cross_attention_paths = tuple(f"attentions.{index}" for index in range(len(self.attentions)))
        self.longest = recipe.positions.max_positions if recipe.positions.kind == "learned" else None

    def begin(self, memory: Memory) -> ConvolutionalState:
        """The initial state. Gradients to the encoder are scaled by 1 / (2 · attention layers) (§3.4).

        For encoders of other kinds, whose states have a variance near one, e = 0 and z is 0.1 times the states.
        """
        states = scale_gradient(memory.states, 1 / (2 * len(self.attentions)))  # (B, S, D) or (M, D)
        if memory.embeddings is None:
            values = states = EMBEDDING_STD * states
        else:
            values = states + memory.embeddings
        scale = memory.lengths().to(states.dtype).sqrt()[:, None]  # (B, 1)
        keys, values = (in_autocast(part)[:, None] for part in (states, values))
        if isinstance(memory.layout, Packed):
            return ConvolutionalState((), SourceStates(keys, values, None, scale, memory.layout))
        source = SourceStates(keys, values, memory.layout.key_mask(), scale[..., None])
        return replace(self.begin_empty(len(states), states), source=source)

    def begin_empty(self, batch: int, like: Tensor) -> ConvolutionalState:
        """The state before the first token, without a source."""
        return ConvolutionalState.empty(self.reaches, batch, self.channels, like)

    def prefill(self, x: Tensor, layout: Padded) -> ConvolutionalState:
        """The state after tokens x (B, S, D) of different lengths."""
        ends = layout.lengths.to(x.device)
        state = self._advance(x, self.begin_empty(len(x), x), ends)[1]
        return state if layout.mask is None else replace(state, left_padding=(x.shape[1] - ends)[:, None])

    def advance(
        self, x: Tensor, state: ConvolutionalState, layout: Layout | None = None
    ) -> tuple[Tensor, ConvolutionalState]:
        if not isinstance(layout, Packed):
            return self._advance(x, state)
        source = None if state.source is None else state.source.for_targets(layout)
        embeddings = self.embed_positions(x, layout.positions(x.device), layout.longest)
        h = self.input_projection(embeddings)  # (N, C)
        for index, layer in enumerate(self.layers):
            h = self._attend(index, layer(h, layout), embeddings, source)
        return self._features(h), replace(state, length=layout.longest)

    def _advance(
        self, x: Tensor, state: ConvolutionalState, ends: Tensor | None = None
    ) -> tuple[Tensor, ConvolutionalState]:
        """x (B·W, T, D), of which `ends` (B,) tokens are real → features, state."""
        tokens = x.shape[1]
        caches, recent = state.rows(tokens), []
        by_sentence = (state.shape[0], -1)  # (B, W·T), with T = 1 or W = 1
        by_row = (*x.shape[:2], self.channels)  # (B·W, T, C)
        embeddings = self.embed_positions(x.reshape(*by_sentence, self.width), *self._positions(tokens, state))
        h = self.input_projection(embeddings)
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            h, cache = layer.advance(h.reshape(by_row), cache, ends)
            recent.append(cache)
            h = self._attend(index, h.reshape(*by_sentence, self.channels), embeddings, state.source)
        return self._features(h.reshape(by_row)), state.advanced(recent, tokens)

    def _attend(self, index: int, h: Tensor, embeddings: Tensor, source: SourceStates | None) -> Tensor:
        return h if source is None else self.attentions[index](h, embeddings, source)

    def _features(self, h: Tensor) -> Tensor:
        return self.dropout(self.tap("output", self.output_projection(h)))

    def _positions(self, tokens: int, state: ConvolutionalState) -> tuple[Tensor, int]:
        """(1 or B, T): positions of the next tokens, and their upper bound."""
        positions, reach = state.positions(tokens), state.length + tokens
        if state.left_padding is None or self.longest is None:
            return positions, reach
        # finished sentences may share a batch with sentences that started later
        return positions.clamp(max=self.longest - 1), min(reach, self.longest)
