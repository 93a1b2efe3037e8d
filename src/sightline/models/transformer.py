"""Transformer bodies: an encoder and a decoder (Vaswani et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sightline.layers.attention import KeysAndValues, MultiHeadAttention
from sightline.layers.dropout import Dropout
from sightline.layers.feedforward import FeedForwardNet
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.norms import NORMS, Residual
from sightline.layers.positions import build_added
from sightline.layers.tap import TapModule
from sightline.models.protocol import Memory
from sightline.recipe import TransformerBody


def _attention(recipe: TransformerBody, width: int, *, rotary: bool) -> MultiHeadAttention:
    return MultiHeadAttention(width, recipe.heads, dropout=recipe.attention_dropout, rotary=rotary)


class EncoderLayer(TapModule):
    """Self-attention, then a feed-forward net, each inside a residual connection."""

    def __init__(self, recipe: TransformerBody, width: int) -> None:
        super().__init__()
        self.attention = _attention(recipe, width, rotary=recipe.positions.kind == "rotary")
        self.feedforward = FeedForwardNet(recipe.feedforward, width)
        self.around_attention = Residual(recipe.norm, width, recipe.dropout)
        self.around_feedforward = Residual(recipe.norm, width, recipe.dropout)

    def forward(self, x: Tensor, layout: Layout, positions: Tensor) -> Tensor:
        heads = self.attention.queries_keys_values(self.around_attention.enter(x), positions)
        x = self.around_attention.leave(x, self.attention(*heads, layout=(layout, layout)))
        x = self.around_feedforward.leave(x, self.feedforward(self.around_feedforward.enter(x)))
        return self.tap("output", x)


class TransformerEncoder(TapModule):
    """Layers of self-attention over the source."""

    def __init__(self, recipe: TransformerBody, width: int) -> None:
        super().__init__()
        self.positions = build_added(recipe.positions, width)
        self.dropout = Dropout(recipe.dropout)
        self.layers = nn.ModuleList(EncoderLayer(recipe, width) for _ in range(recipe.layers))
        self.norm = NORMS[recipe.norm.kind](width) if recipe.norm.place == "pre" else nn.Identity()

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        if isinstance(layout, Padded) and self._better_packed(x, layout):
            packed = Packed.of(layout.lengths, longest=layout.longest)
            return Memory(packed.pad(self(packed.unpad(x), packed).states), layout)
        positions = layout.positions(x.device)
        x = self.dropout(self.positions(x, positions, layout.longest))
        for layer in self.layers:
            x = layer(x, layout, positions)
        x = self.tap("output", self.norm(x))
        return Memory(x, layout)

    def _better_packed(self, x: Tensor, layout: Padded) -> bool:
        """On the CPU products over padding cost what products over text do. (Whoever listens wants what was given.)"""
        plain = x.device.type == "cpu" and not torch.is_grad_enabled() and layout.mask is not None
        return plain and not any(isinstance(module, TapModule) and module.heard for module in self.modules())


@dataclass(frozen=True)
class Cache:
    """Keys and values one layer has seen, in slots that are only ever appended to: (B, H, capacity, K)."""

    own: KeysAndValues | None
    source: KeysAndValues


@dataclass(frozen=True)
class TransformerState:
    """The tokens so far, as slots shared by all hypotheses of a sentence.

    Hypotheses that continue others never copy keys and values: each slot was written once by one hypothesis, and
    `ancestry` (B, W, used) says which slots are in the past of which hypothesis. None: every slot is (W = 1).
    """

    caches: tuple[Cache, ...]
    layout: Layout
    length: int = 0  # tokens of each hypothesis so far
    used: int = 0  # slots written
    width: int = 1
    ancestry: Tensor | None = None

    def select(self, parents: Tensor) -> TransformerState:
        width = parents.shape[1]
        if self.width == 1 and width == 1:
            return self
        past = self.ancestry
        if past is None:
            past = torch.ones(parents.shape[0], 1, self.used, dtype=torch.bool, device=parents.device)
        rows = parents[:, :, None].expand(-1, -1, self.used)
        return replace(self, ancestry=past.gather(1, rows), width=width)

    def keep(self, sentences: Tensor) -> TransformerState:
        count = len(sentences)
        places = (sentences != torch.arange(count, device=sentences.device)).nonzero()[:, 0]
        movers = sentences[places]

        def part(pair: KeysAndValues, used: int) -> KeysAndValues:
            for tensor in pair:
                seen = tensor[:, :, :used]
                seen[places] = seen[movers]
            return KeysAndValues(pair.keys[:count], pair.values[:count])

        assert isinstance(self.layout, Padded)
        caches = tuple(
            Cache(cache.own and part(cache.own, self.used), part(cache.source, cache.source.keys.shape[2]))
            for cache in self.caches
        )
        ancestry = None if self.ancestry is None else self.ancestry.index_select(0, sentences)
        return replace(self, caches=caches, layout=self.layout.select(sentences), ancestry=ancestry)


@dataclass(frozen=True)
class Seen:
    """What the new tokens of a step may look at: the same for every layer."""

    positions: Tensor  # (1, W·T) where they stand
    used: int  # slots written before them
    past: Tensor | None  # (B, 1, W, used + W), None: all
    source: Tensor | None  # (B, 1, 1, S), None: all


def _append(own: KeysAndValues | None, used: int, new: KeysAndValues) -> KeysAndValues:
    """Write new slots behind the used ones; the buffers double when they are full."""
    if own is None:
        return new
    count = new.keys.shape[2]
    if used + count > own.keys.shape[2]:
        capacity = max(2 * (used + count), 16)

        def grown(old: Tensor) -> Tensor:
            buffer = old.new_empty(*old.shape[:2], capacity, old.shape[3])
            buffer[:, :, :used] = old[:, :, :used]
            return buffer

        own = KeysAndValues(grown(own.keys), grown(own.values))
    own.keys[:, :, used : used + count] = new.keys
    own.values[:, :, used : used + count] = new.values
    return own


class DecoderLayer(TapModule):
    """Self-attention to the past, attention to the source, a feed-forward net."""

    def __init__(self, recipe: TransformerBody, width: int) -> None:
        super().__init__()
        self.attention = _attention(recipe, width, rotary=recipe.positions.kind == "rotary")
        self.cross = _attention(recipe, width, rotary=False)
        self.feedforward = FeedForwardNet(recipe.feedforward, width)
        self.around_attention = Residual(recipe.norm, width, recipe.dropout)
        self.around_cross = Residual(recipe.norm, width, recipe.dropout)
        self.around_feedforward = Residual(recipe.norm, width, recipe.dropout)

    def forward(self, x: Tensor, cache: Cache, source: Layout, layout: Layout, positions: Tensor) -> Tensor:
        """All tokens at once: x (B, T, D) or (N, D)."""
        heads = self.attention.queries_keys_values(self.around_attention.enter(x), positions)
        x = self.around_attention.leave(x, self.attention(*heads, causal=True, layout=(layout, layout)))
        query = self.cross.queries(self.around_cross.enter(x))
        x = self.around_cross.leave(x, self.cross(query, *cache.source, layout=(layout, source)))
        return self._finish(x)

    def step(self, x: Tensor, cache: Cache, seen: Seen) -> tuple[Tensor, Cache]:
        """New tokens after cached ones: x (B, W·T, D), W hypotheses or T tokens of one."""
        query, key, value = (
            part.transpose(1, 2)  # (B, H, W·T, K)
            for part in self.attention.queries_keys_values(self.around_attention.enter(x), seen.positions)
        )
        own = _append(cache.own, seen.used, KeysAndValues(key, value))
        used = seen.used + key.shape[2]
        past = self.attention(
            query,
            own.keys[:, :, :used],
            own.values[:, :, :used],
            mask=seen.past,
            causal=seen.past is None and key.shape[2] > 1,
        )
        x = self.around_attention.leave(x, past)
        query = self.cross.queries(self.around_cross.enter(x)).transpose(1, 2)
        x = self.around_cross.leave(x, self.cross(query, *cache.source, mask=seen.source))
        return self._finish(x), Cache(own, cache.source)

    def _finish(self, x: Tensor) -> Tensor:
        x = self.around_feedforward.leave(x, self.feedforward(self.around_feedforward.enter(x)))
        return self.tap("output", x)


def _step_positions(x: Tensor, state: TransformerState) -> Tensor:
    """(1, W·T): where the new tokens stand; W hypotheses all at one place, T tokens of one at T places."""
    count = x.shape[1]
    if state.width > 1:
        return torch.full((1, count), state.length, device=x.device)
    return torch.arange(state.length, state.length + count, device=x.device)[None, :]


class TransformerDecoder(TapModule):
    """Layers of self-attention over the target so far and of attention to the source."""

    def __init__(self, recipe: TransformerBody, width: int) -> None:
        super().__init__()
        self.positions = build_added(recipe.positions, width)
        self.dropout = Dropout(recipe.dropout)
        self.layers = nn.ModuleList(DecoderLayer(recipe, width) for _ in range(recipe.layers))
        self.norm = NORMS[recipe.norm.kind](width) if recipe.norm.place == "pre" else nn.Identity()
        self.looks = tuple(f"layers.{index}.cross" for index in range(recipe.layers))
        self.longest = recipe.positions.longest if recipe.positions.kind == "learned" else None

    def begin(self, memory: Memory) -> TransformerState:
        """Project the memory once for every layer."""
        if isinstance(memory.layout, Packed):
            caches = (Cache(None, layer.cross.keys_values(memory.states)) for layer in self.layers)
        else:
            caches = (
                Cache(
                    None,
                    KeysAndValues(
                        *(part.transpose(1, 2).contiguous() for part in layer.cross.keys_values(memory.states))
                    ),
                )
                for layer in self.layers
            )
        return TransformerState(tuple(caches), memory.layout)

    def advance(
        self, x: Tensor, state: TransformerState, layout: Layout | None = None
    ) -> tuple[Tensor, TransformerState]:
        if isinstance(layout, Packed):
            positions = layout.positions(x.device)
            x = self.dropout(self.positions(x, positions, layout.longest))
            for layer, cache in zip(self.layers, state.caches, strict=True):
                x = layer(x, cache, state.layout, layout, positions)
            return self.tap("output", self.norm(x)), replace(state, length=layout.longest)
        return self._advance_cached(x, state)

    def _advance_cached(self, x: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        rows, tokens = x.shape[:2]
        sentences = rows // state.width
        if state.width > 1 and tokens > 1:
            raise ValueError(f"{state.width} hypotheses a sentence advance one token at a time, not {tokens}")
        x = x.reshape(sentences, state.width * tokens, -1)  # (B, W·T, D)
        positions, ancestry, source = _step_positions(x, state), _extend(state, x.device), state.layout.key_mask()
        seen = Seen(
            positions,
            state.used,
            past=None if ancestry is None else ancestry[:, None],
            source=None if source is None else source[:, None, None, :],
        )
        x = self.dropout(self.positions(x, positions, state.length + tokens))
        caches = []
        for layer, cache in zip(self.layers, state.caches, strict=True):
            x, cache = layer.step(x, cache, seen)
            caches.append(cache)
        after = replace(
            state,
            caches=tuple(caches),
            length=state.length + tokens,
            used=state.used + state.width * tokens,
            ancestry=ancestry,
        )
        return self.tap("output", self.norm(x)).reshape(rows, tokens, -1), after


def _extend(state: TransformerState, device: torch.device) -> Tensor | None:
    """The ancestry with this step's slots: each hypothesis sees its own new one."""
    if state.ancestry is None:
        return None
    own = torch.eye(state.width, dtype=torch.bool, device=device)
    return torch.cat([state.ancestry, own.expand(state.ancestry.shape[0], -1, -1)], dim=2)
