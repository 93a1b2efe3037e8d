"""Recurrent bodies: an encoder and a decoder with or without attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sightline.layers.attention import attend
from sightline.layers.dropout import Dropout
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.linear import Linear
from sightline.layers.recurrent import Hidden, Recurrence
from sightline.layers.scores import build_score
from sightline.layers.tap import TapModule
from sightline.models.protocol import Memory
from sightline.recipe_model import RecurrentDecoder as DecoderRecipe
from sightline.recipe_model import RecurrentEncoder as EncoderRecipe


class RecurrentEncoder(TapModule):
    """Layers that read the source, in both directions if asked: each direction then has half the width."""

    def __init__(self, recipe: EncoderRecipe, width: int) -> None:
        super().__init__()
        half = width // 2 if recipe.bidirectional else width
        self.layers = nn.ModuleList(
            Recurrence(recipe.cell, width, half, bidirectional=recipe.bidirectional) for _ in range(recipe.layers)
        )
        self.dropout = Dropout(recipe.dropout)

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        x = layout.pad(x)  # (B, S, D)
        finals = []
        for layer in self.layers:
            x, final = layer.read(self.dropout(x), layout)
            finals.append(final)
        return Memory(layout.unpad(self.tap("output", x)), layout, torch.stack(finals, dim=1))


class SourceAttention(TapModule):
    """A decoder state looks at the encoder's: scores, weights, context."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.score = build_score(kind, width)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """query (B, T, D), prepared keys and values (B, 1, S, D) → context (B, T, D)."""
        seen = None if mask is None else mask[:, None, None, :]
        return attend(query[:, None], keys, values, score=self.score, mask=seen, tap=self.explicit_tap)[:, 0]


@dataclass(frozen=True)
class RecurrentState:
    """The hidden state of every layer, and what the attention looks at."""

    hidden: tuple[Hidden, ...]  # (B, W, D) each
    feed: Tensor | None  # (B, W, D): the last attentional state, for input feeding
    keys: Tensor | None = None  # (B, 1, S, D), prepared for the score
    values: Tensor | None = None  # (B, 1, S, D)
    mask: Tensor | None = None  # (B, S)

    def select(self, parents: Tensor) -> RecurrentState:
        def pick(part: Tensor) -> Tensor:
            return part.gather(1, parents[:, :, None].expand(-1, -1, part.shape[2]))

        hidden = tuple(tuple(pick(part) for part in layer) for layer in self.hidden)
        return replace(self, hidden=hidden, feed=None if self.feed is None else pick(self.feed))

    def keep(self, sentences: Tensor) -> RecurrentState:
        def pick(part: Tensor | None) -> Tensor | None:
            return None if part is None else part.index_select(0, sentences)

        hidden = tuple(tuple(part.index_select(0, sentences) for part in layer) for layer in self.hidden)
        return RecurrentState(hidden, *(pick(part) for part in (self.feed, self.keys, self.values, self.mask)))

    def parts(self) -> dict[str, Tensor]:
        """The hidden states by name, cut off from what made them: what a window of text hands on to the next."""
        return {
            f"{layer}.{part}": tensor.detach()
            for layer, hidden in enumerate(self.hidden)
            for part, tensor in enumerate(hidden)
        }

    def with_parts(self, parts: Mapping[str, Tensor]) -> RecurrentState:
        """The same, going on from these hidden states."""
        hidden = tuple(
            tuple(parts[f"{layer}.{part}"].to(tensor) for part, tensor in enumerate(own))
            for layer, own in enumerate(self.hidden)
        )
        return replace(self, hidden=hidden)


class RecurrentDecoder(TapModule):
    """Layers that write the target: ŷ = softmax(W₂ f), f made of the top state h and the context c.

    With attention, f = tanh(W_c [h ; c]) (Luong et al. 2015); without, f = h, and all the decoder knows of the source
    is the vector it started from.
    """

    def __init__(self, recipe: DecoderRecipe, width: int, *, source: bool = True) -> None:
        super().__init__()
        self.feeding = recipe.input_feeding
        layers = [
            Recurrence(recipe.cell, 2 * width if self.feeding and index == 0 else width, width)
            for index in range(recipe.layers)
        ]
        self.layers = nn.ModuleList(layers)
        self.bridges = nn.ModuleList(Linear(width, width * layer.parts) for layer in layers if source)
        self.attention = None if recipe.attention.kind == "none" else SourceAttention(recipe.attention.kind, width)
        self.mix = None if self.attention is None else Linear(2 * width, width)
        self.dropout = Dropout(recipe.dropout)
        self.looks = () if self.attention is None else ("attention",)
        self.longest: int | None = None

    def begin(self, memory: Memory) -> RecurrentState:
        """Start each layer from the encoder's final states, the top one from its top one; prepare the keys."""
        values = memory.layout.pad(memory.states)
        keys = values if self.attention is None else self.attention.score.prepare(values)
        summary = memory.summary()
        hidden = []
        deeper = max(summary.shape[1] - len(self.layers), 0)  # layers of the encoder below those that start one here
        for index, (layer, bridge) in enumerate(zip(self.layers, self.bridges, strict=True), deeper):
            start = bridge(summary[:, min(index, summary.shape[1] - 1)])  # (B, parts · D)
            hidden.append(tuple(torch.tanh(part)[:, None] for part in start.chunk(layer.parts, dim=-1)))
        feed = values.new_zeros(values.shape[0], 1, values.shape[2]) if self.feeding else None
        return RecurrentState(tuple(hidden), feed, keys[:, None], values[:, None], memory.layout.key_mask())

    def begin_blank(self, batch: int, like: Tensor) -> RecurrentState:
        """Where nothing has been read: zeros."""
        starts = (layer.start(batch, like) for layer in self.layers)
        return RecurrentState(tuple(tuple(part[:, None] for part in start) for start in starts), None)

    def begin_after(self, x: Tensor, layout: Padded) -> RecurrentState:
        """After tokens x (B, S, D) of different lengths."""
        hidden = []
        for layer in self.layers:
            x, last = layer.read_through(self.dropout(x), layout)
            hidden.append(tuple(part[:, None] for part in last))
        return RecurrentState(tuple(hidden), None)

    def advance(self, x: Tensor, state: RecurrentState, layout: Layout | None = None) -> tuple[Tensor, RecurrentState]:
        if isinstance(layout, Packed):
            features, state = self.advance(layout.pad(x), state)
            return layout.unpad(features), state
        sentences, width = state.hidden[0][0].shape[:2]
        if width > 1 and x.shape[1] > 1:
            raise ValueError(f"{width} hypotheses a sentence advance one token at a time, not {x.shape[1]}")
        if not self.feeding:
            top, hidden = self._run(x, state.hidden)
            features = self._look(top.reshape(sentences, -1, top.shape[2]), state)
            return features.reshape(x.shape[0], x.shape[1], -1), replace(state, hidden=hidden)
        outputs = []
        for t in range(x.shape[1]):
            assert state.feed is not None
            fed = torch.cat([x[:, t], state.feed.reshape(x.shape[0], -1)], dim=-1)
            top, hidden = self._run(fed[:, None], state.hidden)
            features = self._look(top.reshape(sentences, width, -1), state)  # (B, W, D)
            state = replace(state, hidden=hidden, feed=features)
            outputs.append(features.reshape(x.shape[0], -1))
        return torch.stack(outputs, dim=1), state

    def _run(self, x: Tensor, hidden: Sequence[Hidden]) -> tuple[Tensor, tuple[Hidden, ...]]:
        """The recurrent layers over x (B·W, T, ·) → top states (B·W, T, D) and the hidden states after."""
        after = []
        for layer, before in zip(self.layers, hidden, strict=True):
            shape = before[0].shape
            x, last = layer(self.dropout(x), tuple(part.reshape(-1, shape[2]) for part in before))
            after.append(tuple(part.reshape(shape) for part in last))
        return x, tuple(after)

    def _look(self, top: Tensor, state: RecurrentState) -> Tensor:
        """Top states (B, T or W, D) → features of the same shape."""
        if self.attention is None or self.mix is None:
            return self.dropout(self.tap("features", top, "h"))
        assert state.keys is not None and state.values is not None
        context = self.attention(top, state.keys, state.values, state.mask)
        features = torch.tanh(self.mix(torch.cat([top, context], dim=-1)))
        return self.dropout(self.tap("features", features, "tanh(W_c [h ; c])"))
