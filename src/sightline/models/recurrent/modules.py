"""Recurrent encoder and decoder, with and without attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from sightline.layers.attention import attend
from sightline.layers.dropout import Dropout
from sightline.layers.feedforward import ExpertsBetween, build_experts
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.linear import Linear
from sightline.layers.recurrent import BackwardRecurrence, Hidden, Recurrence, build_skip_connection
from sightline.layers.scores import AttentionScore, build_score
from sightline.layers.tap import TapModule
from sightline.models.protocol import (
    Memory,
    check_step,
    join_masks,
    join_optional,
    join_rows,
    keep_rows,
    select_hypotheses,
)
from sightline.models.recurrent.config import AttentionConfig, RecurrentDecoderConfig, RecurrentEncoderConfig


class RecurrentStack(TapModule):
    """Base class of encoder and decoder: recurrent layers with skip connections.

    h_k = recurrence_k(x_k), x_{k+1} = skip_k(x_k, h_k), from the input x_1 to the output x_{L+1}. Skip connections:

    - none: x_{k+1} = h_k.
    - residual: x_{k+1} = h_k + x_k from the third layer on (Wu et al. 2016, §3.1).
    - fast-forward: x_{k+1} = W_k [x_k ; h_k] (Zhou et al. 2016, §3.1, with f for x). Simplified: in the paper f is the
      input of the gates, four times as wide, of which the next layer reads half, and output layer and attention read
      [f ; h] of the top layer instead of x_{L+1}.

    Dropout applies to the input of each recurrence, not to the skip connection.
    """

    by_layer: tuple[str, ...] = ("layers", "skip_connections", "between.experts")
    below: tuple[str, ...] = ()

    def __init__(
        self, layers: Sequence[Recurrence], inputs: Sequence[int], skip_connections: str, width: int, dropout: float
    ):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.skip_connections = nn.ModuleList(
            build_skip_connection(skip_connections, number, size, width) for number, size in enumerate(inputs)
        )
        self.dropout = Dropout(dropout)


class RecurrentEncoder(RecurrentStack):
    """Recurrent encoder.

    Bidirectional layers concatenate two directions of half the width, or add or average two of full width (`merge`).
    `directions: bottom`: only the lowest layer is bidirectional (Wu et al. 2016, §3.2, there with full width for each
    direction). `alternating`: layers read forwards and backwards in turns (Zhou et al. 2016, §3.2, who concatenate two
    such stacks).
    """

    def __init__(self, recipe: RecurrentEncoderConfig, width: int) -> None:
        layers = [_encoder_layer(recipe, width, direction) for direction in layer_directions(recipe)]
        super().__init__(layers, [width] * recipe.layers, recipe.skip_connections, width, recipe.dropout)
        self.between = _experts_between(recipe, width)

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        x = layout.pad(x)  # (B, S, D)
        finals = []
        for number, (layer, skip) in enumerate(zip(self.layers, self.skip_connections, strict=True)):
            x = self.between(number, x, layout.key_mask())
            states, final = layer.read(self.dropout(x), layout)
            x = skip(x, states)
            finals.append(final)
        hidden, *cells = (torch.stack(part, dim=1) for part in zip(*finals, strict=True))  # (B, L, D)
        return Memory(layout.unpad(self.tap("output", x)), layout, hidden, final_cells=cells[0] if cells else None)


def _experts_between(recipe: RecurrentEncoderConfig | RecurrentDecoderConfig, width: int) -> ExpertsBetween:
    experts = None if recipe.experts is None else build_experts(recipe.experts, width, 4 * width)
    return ExpertsBetween(experts, recipe.layers, recipe.dropout)


Direction = Literal["forward", "backward", "both"]


def layer_directions(recipe: RecurrentEncoderConfig) -> list[Direction]:
    """The direction of each layer, from the bottom."""
    if not recipe.bidirectional:
        return ["forward"] * recipe.layers
    if recipe.directions == "alternating":
        return ["backward" if number % 2 else "forward" for number in range(recipe.layers)]
    return ["both" if recipe.directions == "all" or number == 0 else "forward" for number in range(recipe.layers)]


def _encoder_layer(recipe: RecurrentEncoderConfig, width: int, direction: Direction) -> Recurrence:
    if direction == "both":
        each = width // 2 if recipe.merge == "concatenate" else width
        return Recurrence(recipe.full_cell, width, each, bidirectional=True, bias=recipe.bias, merge=recipe.merge)
    kind = BackwardRecurrence if direction == "backward" else Recurrence
    return kind(recipe.full_cell, width, width, bias=recipe.bias)


class SourceAttention(TapModule):
    """Cross-attention of a recurrent decoder: scores, weights, context (Bahdanau et al. 2015, Luong et al. 2015)."""

    entry_points: ClassVar[tuple[str, ...]] = ("project_memory",)

    def __init__(self, score: AttentionScore) -> None:
        super().__init__()
        self.score = score

    def project_memory(self, states: Tensor) -> Tensor:
        """Encoder states (B, S, D₁) → prepared keys (B, S, ·), computed once per sentence."""
        return self.score.prepare(states)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """query (B, T, D), prepared keys (B, 1, S, ·), values (B, 1, S, D₁), mask (B, S) → context (B, T, D₁)."""
        mask = None if mask is None else mask[:, None, None, :]  # (B, 1, 1, S)
        return attend(query[:, None], keys, values, score=self.score, mask=mask, tap=self.explicit_tap)[:, 0]


def build_attention(recipe: AttentionConfig, width: int, memory_width: int) -> SourceAttention | None:
    """Build the cross-attention of a decoder; None for `kind: none`."""
    if recipe.kind == "none":
        return None
    return SourceAttention(build_score(recipe.kind, width, memory_width, **recipe.options(AttentionConfig)))


@dataclass(frozen=True)
class RecurrentState:
    """The hidden state of every layer, and the keys and values of cross-attention."""

    hidden: tuple[Hidden, ...]  # (B, W, D) each
    input_feed: Tensor | None  # (B, W, ·): last features or context
    keys: Tensor | None = None  # (B, 1, S, ·), prepared for the score
    values: Tensor | None = None  # (B, 1, S, D₁)
    mask: Tensor | None = None  # (B, S)

    def select(self, parents: Tensor) -> RecurrentState:
        hidden = tuple(tuple(select_hypotheses(part, parents) for part in layer) for layer in self.hidden)
        feed = None if self.input_feed is None else select_hypotheses(self.input_feed, parents)
        return replace(self, hidden=hidden, input_feed=feed)

    def keep(self, sentences: Tensor) -> RecurrentState:
        hidden = tuple(tuple(part.index_select(0, sentences) for part in layer) for layer in self.hidden)
        optional = (self.input_feed, self.keys, self.values, self.mask)
        return RecurrentState(hidden, *(keep_rows(part, sentences) for part in optional))

    def append(self, other: RecurrentState) -> RecurrentState:
        hidden = tuple(
            tuple(join_rows(*parts) for parts in zip(*layers, strict=True))
            for layers in zip(self.hidden, other.hidden, strict=True)
        )
        feed = join_optional(self.input_feed, other.input_feed)
        if self.keys is None or other.keys is None:
            return RecurrentState(hidden, feed)
        keys, values = join_rows(self.keys, other.keys, dim=2), join_optional(self.values, other.values, dim=2)
        return RecurrentState(hidden, feed, keys, values, join_masks(self.mask, other.mask, (self.keys, other.keys)))

    def parts(self) -> dict[str, Tensor]:
        """The hidden states by name, detached, for the next segment of text (truncated backpropagation)."""
        return {
            f"{layer}.{part}": tensor.detach()
            for layer, hidden in enumerate(self.hidden)
            for part, tensor in enumerate(hidden)
        }

    def with_parts(self, parts: Mapping[str, Tensor]) -> RecurrentState:
        """Replace the hidden states."""
        hidden = tuple(
            tuple(parts[f"{layer}.{part}"].to(tensor) for part, tensor in enumerate(own))
            for layer, own in enumerate(self.hidden)
        )
        return replace(self, hidden=hidden)


class InitialState(nn.Module):
    """A learned initial hidden state of one layer: h₀, and c₀ of an LSTM."""

    def __init__(self, parts: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(parts, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, batch: int) -> Hidden:
        """The state (B, D), once for each part."""
        return tuple(part.expand(batch, -1) for part in self.weight)


class RecurrentDecoder(RecurrentStack):
    """Recurrent decoder: features f from the output x of the stack and the context c of cross-attention.

    f = tanh(W_c [x ; c]) with query x (Luong et al. 2015); with `readout: concatenate`, f = [x ; c]; without attention
    f = x. Encoder states, and so c, may have a width D₁ of their own.

    `query: previous`: the query is the top state d_{i−1} of the previous step, and the bottom layer reads [token ; c]
    (Bahdanau et al. 2015).

    `attention_from: bottom`: the query is the output of the bottom layer, and every layer above reads [x_k ; c] (Wu et
    al. 2016, fig. 1).

    Input feeding: the bottom layer also reads f of the previous step, or with `attention_from: bottom` its c.
    """

    sees_source: tuple[str, ...] = ("bridges", "attention", "attentional")
    entry_points: ClassVar[tuple[str, ...]] = ("begin", "begin_empty", "prefill", "advance")

    def __init__(
        self, recipe: RecurrentDecoderConfig, width: int, *, source: bool = True, memory_width: int | None = None
    ) -> None:
        memory_width = width if memory_width is None else memory_width
        attends, low = recipe.attention.kind != "none", recipe.attention_from == "bottom"
        concatenates = attends and recipe.readout == "concatenate"
        features_width = width + memory_width if concatenates else width
        fed = 0
        if recipe.input_feeding:
            fed = memory_width if low else features_width
        elif recipe.query == "previous":
            fed = memory_width
        inputs = [width + fed if number == 0 else width for number in range(recipe.layers)]
        contexts = [memory_width if low and number > 0 else 0 for number in range(recipe.layers)]
        layers = [
            Recurrence(recipe.full_cell, x + c, width, bias=recipe.bias) for x, c in zip(inputs, contexts, strict=True)
        ]
        super().__init__(layers, inputs, recipe.skip_connections, width, recipe.dropout)
        self.between = _experts_between(recipe, width)
        self.low, self.query_previous, self.init_hidden = low, recipe.query == "previous", recipe.init_hidden
        self.features_width, self.feed_width = features_width, fed if recipe.input_feeding else 0
        bridged, learned = source and recipe.init_hidden == "bridge", recipe.init_hidden == "learned"
        self.bridges = nn.ModuleList(Linear(memory_width, width * layer.parts) for layer in layers if bridged)
        self.initial_states = nn.ModuleList(InitialState(layer.parts, width) for layer in layers if learned)
        self.attention = build_attention(recipe.attention, width, memory_width)
        self.attentional = Linear(width + memory_width, width) if attends and not concatenates else None
        self.cross_attention_paths = () if self.attention is None else ("attention",)
        self.longest: int | None = None

    def begin(self, memory: Memory) -> RecurrentState:
        """Initial hidden states, from the encoder's final states or without it; attention keys."""
        values = memory.layout.pad(memory.states)
        keys = values if self.attention is None else self.attention.project_memory(values)
        encoded = self.init_hidden in ("bridge", "last")
        starts = self._encoded_starts(memory) if encoded else self._starts(len(values), values)
        hidden = tuple(tuple(part[:, None] for part in start) for start in starts)
        feed = values.new_zeros(values.shape[0], 1, self.feed_width) if self.feed_width else None
        return RecurrentState(hidden, feed, keys[:, None], values[:, None], memory.layout.key_mask())

    def _encoded_starts(self, memory: Memory) -> list[Hidden]:
        """Initial state of each layer from the encoder's final states, aligned at the top.

        bridge: tanh(W h + b) of the final h. last: the final h, and c of an LSTM, unchanged.
        """
        summary, cells = memory.summary(), memory.final_cells  # (B, L, D₁)
        lowest = max(summary.shape[1] - len(self.layers), 0)  # lowest layer of the encoder that is used
        starts: list[Hidden] = []
        for number, layer in enumerate(self.layers):
            index = min(number + lowest, summary.shape[1] - 1)
            if self.init_hidden == "last":
                parts = [summary] if layer.parts == 1 or cells is None else [summary, cells]
                starts.append(tuple(part[:, index] for part in parts))
            else:
                projected = self.bridges[number](summary[:, index])  # (B, parts · D)
                starts.append(tuple(torch.tanh(part) for part in projected.chunk(layer.parts, dim=-1)))
        return starts

    def _starts(self, batch: int, like: Tensor) -> list[Hidden]:
        """Initial state of each layer without a source: zeros, or learned."""
        if self.init_hidden == "learned":
            return [start(batch) for start in self.initial_states]
        return [layer.start(batch, like) for layer in self.layers]

    def begin_empty(self, batch: int, like: Tensor) -> RecurrentState:
        """The state before the first token, without a source."""
        starts = self._starts(batch, like)
        return RecurrentState(tuple(tuple(part[:, None] for part in start) for start in starts), None)

    def prefill(self, x: Tensor, layout: Padded) -> RecurrentState:
        """The state after tokens x (B, S, D) of different lengths."""
        hidden, starts = [], self._starts(len(x), x)
        for number, (layer, skip) in enumerate(zip(self.layers, self.skip_connections, strict=True)):
            x = self.between(number, x, layout.mask)
            states, last = layer.read_through(self.dropout(x), layout, starts[number])
            x = skip(x, states)
            hidden.append(tuple(part[:, None] for part in last))
        return RecurrentState(tuple(hidden), None)

    def advance(self, x: Tensor, state: RecurrentState, layout: Layout | None = None) -> tuple[Tensor, RecurrentState]:
        valid = None if layout is None else layout.key_mask()
        if isinstance(layout, Packed):
            features, state = self._advance(layout.pad(x), state, valid)
            return layout.unpad(features), state
        return self._advance(x, state, valid)

    def _advance(self, x: Tensor, state: RecurrentState, valid: Tensor | None) -> tuple[Tensor, RecurrentState]:
        """x (B·W, T, D), `valid` (B, T) or None → features (B·W, T, D), state."""
        check_step(state.hidden[0][0].shape[1], x.shape[1])
        bottom = 1 if self.low else len(self.layers)  # number of layers below the attention
        outputs, attended = [], []  # (B·W, t, D) each
        stepwise = self.query_previous or state.input_feed is not None
        for part in x.split(1, dim=1) if stepwise else (x,):
            context = None
            if self.query_previous:
                context = self._context(state.hidden[-1][0].reshape(len(x), 1, -1), state)
                assert context is not None
                part = torch.cat([part, context], dim=-1)
            elif state.input_feed is not None:
                part = torch.cat([part, state.input_feed.reshape(len(x), 1, -1)], dim=-1)
            output, state = self._run(part, state, range(bottom), valid)
            outputs.append(output)
            context = self._context(output, state) if context is None else context
            attended.append(context if self.low and context is not None else self._features(output, context))
            if state.input_feed is not None:
                state = replace(state, input_feed=attended[-1].reshape(state.input_feed.shape))
        context = torch.cat(attended, dim=1)  # (B·W, T, ·): context if self.low, else features
        if not self.low:
            return context, state
        top, state = self._run(torch.cat(outputs, dim=1), state, range(bottom, len(self.layers)), valid, context)
        return self._features(top, context), state

    def _run(
        self,
        x: Tensor,
        state: RecurrentState,
        numbers: range,
        valid: Tensor | None = None,
        context: Tensor | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """Run layers `numbers` over x (B·W, T, ·) and the context (B·W, T, D) → output (B·W, T, D), state."""
        hidden = list(state.hidden)
        for number in numbers:
            x, shape = self.between(number, x, valid), hidden[number][0].shape
            inputs = self.dropout(x if context is None else torch.cat([x, context], dim=-1))
            states, last = self.layers[number](inputs, tuple(part.reshape(-1, shape[2]) for part in hidden[number]))
            x = self.skip_connections[number](x, states)
            hidden[number] = tuple(part.reshape(shape) for part in last)
        return x, replace(state, hidden=tuple(hidden))

    def _context(self, query: Tensor, state: RecurrentState) -> Tensor | None:
        """Query (B·W, T, D) → context (B·W, T, D₁); None without attention."""
        if self.attention is None:
            return None
        assert state.keys is not None and state.values is not None
        rows = query.reshape(state.keys.shape[0], -1, query.shape[2])  # (B, W·T, D)
        context: Tensor = self.attention(rows, state.keys, state.values, state.mask)
        return context.reshape(*query.shape[:2], -1)

    def _features(self, top: Tensor, context: Tensor | None) -> Tensor:
        """Output of the stack (B·W, T, D) and context (B·W, T, D₁) → features."""
        if context is None:
            return self.dropout(self.tap("features", top, "x"))
        if self.attentional is None:
            return self.dropout(self.tap("features", torch.cat([top, context], dim=-1), "[x ; c]"))
        features = torch.tanh(self.attentional(torch.cat([top, context], dim=-1)))
        return self.dropout(self.tap("features", features, "tanh(W_c [x ; c])"))
