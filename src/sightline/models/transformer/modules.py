"""Transformer bodies: an encoder and a decoder (Vaswani et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from sightline.layers.dropout import Dropout
from sightline.layers.feedforward import build_feedforward
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.local_attention import Local, Span, build_span
from sightline.layers.multi_head import KeysAndValues, MultiHeadAttention
from sightline.layers.norms import Residual, build_last_norm
from sightline.layers.positions import (
    Distances,
    Relative,
    RelativeKeys,
    Rotation,
    build_added,
    build_bias,
    build_relative_keys,
)
from sightline.layers.scores import build_score
from sightline.layers.tap import TapModule
from sightline.models.gradient_checkpointing import CheckpointedStack
from sightline.models.protocol import Memory
from sightline.models.transformer.config import HeadAttentionConfig, TransformerConfig
from sightline.models.transformer.kv_cache import Seen, Slots, blank_past
from sightline.models.transformer.state import (
    Cache,
    TransformerState,
    aligned_left,
    aligned_right,
    copied,
    extend_ancestry,
    extend_slots,
    lower,
    step_places,
)


def _attention(
    recipe: TransformerConfig,
    width: int,
    *,
    rotary: bool = False,
    relative_keys: RelativeKeys | None = None,
    span: Span | None = None,
) -> MultiHeadAttention:
    kind = recipe.attention
    return MultiHeadAttention(
        width,
        recipe.heads,
        dropout=recipe.attention_dropout,
        rotary=rotary,
        relative_keys=relative_keys,
        score=build_score(kind.kind, width // recipe.heads, **kind.options(HeadAttentionConfig)),
        projections=kind.projections,
        groups=kind.kv_heads,
        span=span,
    )


def _self_attention(recipe: TransformerConfig, width: int, number: int, *, causal: bool) -> MultiHeadAttention:
    """That of layer `number`, counted from 0: spans take turns."""
    head_width, rotary = width // recipe.heads, recipe.positions.kind == "rotary"
    keys = build_relative_keys(recipe.positions, head_width, causal=causal)
    spans, groups = recipe.attention.pattern, recipe.attention.kv_heads or recipe.heads
    span = build_span(spans[number % len(spans)], groups * head_width, rotary=rotary)
    return _attention(recipe, width, rotary=rotary, relative_keys=keys, span=span)


class Stack(TapModule, CheckpointedStack):
    """What encoder and decoder share: where order enters, the layers (theirs to make) and the norm at the end."""

    by_layer: tuple[str, ...] = ("layers",)
    below: tuple[str, ...] = ("positions", "bias")

    def __init__(self, recipe: TransformerConfig, width: int, *, causal: bool) -> None:
        super().__init__()
        self.positions = build_added(recipe.positions, width)
        self.bias = build_bias(recipe.positions, recipe.heads, width, causal=causal)
        self.by_distance = recipe.positions.kind in ("alibi", "t5", "shaw")
        self.turned_width = width // recipe.heads if recipe.positions.kind == "rotary" else None
        self.dropout = Dropout(recipe.dropout)
        self.has_spans = any(span.kind != "full" for span in recipe.attention.pattern)

    def rotation(self, positions: Tensor) -> Rotation | None:
        """What turns queries and keys at these positions, in every layer; None where nothing does."""
        return None if self.turned_width is None else Rotation.at(positions, self.turned_width)

    def relative(self, distances: Distances) -> Relative:
        """What each layer is told of the distances."""
        return Relative(distances, None if self.bias is None else self.bias(distances))

    def relative_within(self, count: int, device: torch.device) -> Relative | None:
        """The same for sequences that are there as a whole; None where distances are not asked for."""
        return self.relative(Distances.within(count, device)) if self.by_distance else None


def _valid(layout: Layout | None) -> Tensor | None:
    """(B, T), True where a padded tensor is real; None where all of it is, as in a packed one."""
    return layout.mask if isinstance(layout, Padded) else None


def _real(layout: Layout) -> Tensor | None:
    """(B, T) or (N,), True at tokens that are neither padding nor fill a static batch up; None where all are real."""
    return layout.mask if isinstance(layout, Padded) else layout.real


class EncoderLayer(TapModule):
    """Self-attention, then a feed-forward net, each inside a residual connection."""

    def __init__(self, recipe: TransformerConfig, width: int, number: int = 0) -> None:
        super().__init__()
        self.attention = _self_attention(recipe, width, number, causal=False)
        self.feedforward = build_feedforward(recipe.feedforward, width, number)
        self.attention_residual = Residual(recipe.norm, width, recipe.dropout)
        self.feedforward_residual = Residual(recipe.norm, width, recipe.dropout)

    def forward(self, x: Tensor, layout: Layout, rotation: Rotation | None, relative: Relative | None = None) -> Tensor:
        valid = _valid(layout)
        heads = self.attention.queries_keys_values(self.attention_residual.enter(x, valid), rotation)
        seen = self.attention(*heads, layout=(layout, layout), relative=relative)
        x = self.attention_residual.leave(x, seen, valid)
        fed = self.feedforward(self.feedforward_residual.enter(x, valid), _real(layout))
        return self.tap("output", self.feedforward_residual.leave(x, fed, valid))


class TransformerEncoder(Stack):
    """Layers of self-attention over the source."""

    def __init__(self, recipe: TransformerConfig, width: int) -> None:
        super().__init__(recipe, width, causal=False)
        self.layers = nn.ModuleList(EncoderLayer(recipe, width, number) for number in range(recipe.layers))
        self.norm = build_last_norm(recipe.norm, width)

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        if isinstance(layout, Padded) and self._better_packed(x, layout):
            packed = Packed.of(layout.lengths, x.device, longest=layout.longest)
            return Memory(packed.pad(self(packed.unpad(x), packed).states), layout)
        positions, relative = layout.positions(x.device), self.relative_within(layout.longest, x.device)
        x, rotation = self.dropout(self.positions(x, positions, layout.longest)), self.rotation(positions)
        for layer in self.layers:
            x = self.run_layer(layer, layer, x, layout, rotation, relative)
        x = self.tap("output", self.norm(x, _valid(layout)), str(self.norm.formula))
        return Memory(x, layout)

    def _better_packed(self, x: Tensor, layout: Padded) -> bool:
        """On the CPU products over padding cost what products over text do; and spans cut sequences anew, end to end.

        (Whoever listens wants what was given.)
        """
        plain = x.device.type == "cpu" and not torch.is_grad_enabled() and layout.mask is not None
        heard = any(isinstance(module, TapModule) and module.recorded for module in self.modules())
        return (plain or self.has_spans) and not heard


class DecoderLayer(TapModule):
    """Self-attention to the past, attention to the source if there is one, a feed-forward net."""

    def __init__(self, recipe: TransformerConfig, width: int, number: int = 0, *, source: bool) -> None:
        super().__init__()
        self.attention = _self_attention(recipe, width, number, causal=True)
        if source:
            self.cross_attention = _attention(recipe, width)
        self.feedforward = build_feedforward(recipe.feedforward, width, number)
        self.attention_residual = Residual(recipe.norm, width, recipe.dropout)
        if source:
            self.cross_attention_residual = Residual(recipe.norm, width, recipe.dropout)
        self.feedforward_residual = Residual(recipe.norm, width, recipe.dropout)

    def forward(
        self,
        x: Tensor,
        cache: Cache,
        source: Layout | None,
        layout: Packed,
        rotation: Rotation | None,
        relative: Relative | None = None,
    ) -> Tensor:
        """All tokens at once: x (N, D)."""
        heads = self.attention.queries_keys_values(self.attention_residual.enter(x), rotation)
        past = self.attention(*heads, causal=True, layout=(layout, layout), relative=relative)
        x = self.attention_residual.leave(x, past)
        if cache.source is not None and source is not None:
            query = self.cross_attention.queries(self.cross_attention_residual.enter(x))
            x = self.cross_attention_residual.leave(
                x, self.cross_attention(query, *cache.source, layout=(layout, source))
            )
        return self._finish(x, None, layout.real)

    def step(self, x: Tensor, cache: Cache, seen: Seen) -> tuple[Tensor, Cache]:
        """New tokens after cached ones: x (B, W·T, D), W hypotheses or T tokens of one."""
        query, key, value = (
            part.transpose(1, 2)  # (B, H or G, W·T, Dh)
            for part in self.attention.queries_keys_values(self.attention_residual.enter(x, seen.valid), seen.rotation)
        )
        if cache.own.empty and self.attention.qkv is None:  # they are views of x, and of one another
            key, value = key.clone(), value.clone()
        own, past = self._look_back(query, KeysAndValues(key, value), cache.own, seen)
        x = self.attention_residual.leave(x, past, seen.valid)
        if cache.source is not None:
            query = self.cross_attention.queries(self.cross_attention_residual.enter(x, seen.valid)).transpose(1, 2)
            x = self.cross_attention_residual.leave(
                x, self.cross_attention(query, *cache.source, mask=seen.source), seen.valid
            )
        return self._finish(x, seen.valid, seen.valid), Cache(own, cache.source)

    def _look_back(self, query: Tensor, new: KeysAndValues, own: Slots, seen: Seen) -> tuple[Slots, Tensor]:
        """Heads (B, H or G, W·T, Dh) of the new tokens → what is kept of them, and what they see (B, W·T, D)."""
        shown = self.attention.recorded
        own = own.grown(new, seen, shown=shown)
        if seen.whole is None or shown:
            view = own.view(seen, shown=shown)
            sight = {"mask": view.mask, "causal": view.causal, "relative": seen.relative}
            return own, self.attention(query, view.keys, view.values, **sight)
        heads = (aligned_left(part.transpose(1, 2), seen.shift).flatten(0, 1) for part in (query, *new))  # (B·T, ·, Dh)
        past = self.attention(*heads, causal=True, layout=(seen.whole, seen.whole))
        return own, aligned_right(past.unflatten(0, (len(query), -1)), seen.shift)

    def _finish(self, x: Tensor, valid: Tensor | None, real: Tensor | None) -> Tensor:
        fed = self.feedforward(self.feedforward_residual.enter(x, valid), real)
        return self.tap("output", self.feedforward_residual.leave(x, fed, valid))


class TransformerDecoder(Stack):
    """Layers of self-attention over the target so far and, if there is a source, of attention to it."""

    sees_source: tuple[str, ...] = ("layers.*.cross_attention", "layers.*.cross_attention_residual")

    def __init__(self, recipe: TransformerConfig, width: int, *, source: bool = True) -> None:
        super().__init__(recipe, width, causal=True)
        layers = (DecoderLayer(recipe, width, number, source=source) for number in range(recipe.layers))
        self.layers = nn.ModuleList(layers)
        self.norm = build_last_norm(recipe.norm, width)
        self.cross_attention_paths = (
            tuple(f"layers.{index}.cross_attention" for index in range(recipe.layers)) if source else ()
        )
        self.longest = recipe.positions.max_positions if recipe.positions.kind == "learned" else None
        self.by_place = self.by_distance or any(isinstance(layer.attention.span, Local) for layer in self.layers)

    def begin(self, memory: Memory) -> TransformerState:
        """Project the memory once for every layer."""
        if isinstance(memory.layout, Packed):
            sources = [layer.cross_attention.keys_values(memory.states) for layer in self.layers]
        else:
            sources = [copied(layer.cross_attention.keys_values(memory.states)) for layer in self.layers]
        return TransformerState(self._blank(sources), memory.layout, memory.layout.batch, memory.states.device)

    def begin_empty(self, batch: int, like: Tensor) -> TransformerState:
        """Where there is no source and nothing has been written."""
        return TransformerState(self._blank([None] * len(self.layers)), None, batch, like.device)

    def _blank(self, sources: Sequence[KeysAndValues | None]) -> tuple[Cache, ...]:
        spans = (layer.attention.span for layer in cast("Iterable[DecoderLayer]", self.layers))
        return tuple(Cache(blank_past(span), source) for span, source in zip(spans, sources, strict=True))

    def prefill(self, x: Tensor, layout: Padded) -> TransformerState:
        """After tokens x (B, S, D) of different lengths: all end at the same slot, shorter ones begin later."""
        if layout.mask is None:
            return self._advance_cached(x, self.begin_empty(len(x), x), None)[1]
        shift = (x.shape[1] - layout.lengths)[:, None].to(x.device)  # (B, 1)
        visible = torch.arange(x.shape[1], device=x.device) >= shift  # (B, S)
        state = replace(self.begin_empty(len(x), x), shift=shift)
        _, state = self._advance_cached(aligned_right(x, shift), state, visible, visible)
        return replace(state, ancestry=visible[:, None, :])

    def advance(
        self, x: Tensor, state: TransformerState, layout: Layout | None = None
    ) -> tuple[Tensor, TransformerState]:
        if isinstance(layout, Packed):
            positions, relative = layout.positions(x.device), self.relative_within(layout.longest, x.device)
            x, rotation = self.dropout(self.positions(x, positions, layout.longest)), self.rotation(positions)
            for layer, cache in zip(self.layers, state.caches, strict=True):
                x = self.run_layer(layer, layer, x, cache, state.layout, layout, rotation, relative)
            return self.tap("output", self.norm(x), str(self.norm.formula)), replace(state, length=layout.longest)
        return self._advance_cached(x, state, _valid(layout))

    def _all_pairs(self) -> bool:
        """Whether some layer needs the distance of every pair of tokens, or records its attention."""
        layers = cast("Iterable[DecoderLayer]", self.layers)
        return self.by_distance or any(layer.attention.recorded for layer in layers)

    def _positions_at(self, places: Tensor, state: TransformerState, reach: int) -> tuple[Tensor, int]:
        """Which tokens of their sentences those at these places are, and how many positions that takes at most."""
        if state.shift is None:
            return places, reach
        positions = (places - state.shift).clamp(min=0)
        if self.longest is None:
            return positions, reach
        # sentences that ended may stand beside those that began later and go on
        return positions.clamp(max=self.longest - 1), min(reach, self.longest)

    def _advance_cached(
        self, x: Tensor, state: TransformerState, valid: Tensor | None, visible: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        """`visible` (B, T): which of the first tokens are real, where some sentences begin later."""
        rows, tokens = x.shape[:2]
        sentences = rows // state.width
        if state.width > 1 and tokens > 1:
            raise ValueError(f"{state.width} hypotheses a sentence advance one token at a time, not {tokens}")
        x = x.reshape(sentences, state.width * tokens, -1)  # (B, W·T, D)
        places, ancestry = step_places(x.shape[1], state, x.device), extend_ancestry(state, tokens, x.device)
        positions, reach = self._positions_at(places, state, state.length + tokens)
        source = None if state.layout is None else state.layout.key_mask()
        slots = extend_slots(state, places) if self.by_place else None
        past = None if ancestry is None else ancestry[:, None]  # (B, 1, W or T, slots)
        if visible is not None and self._all_pairs():
            past = (visible[:, None, :] & lower(tokens, x.device))[:, None]
        whole = state.used == 0 and state.width == 1
        late = visible is not None and not self.by_distance
        distances = Distances(places[0], slots, whole) if self.by_distance and slots is not None else None
        seen = Seen(
            positions,
            state.used,
            past=past,
            source=None if source is None else source[:, None, None, :],
            relative=None if distances is None else self.relative(distances),
            rotation=self.rotation(positions),
            valid=valid,
            length=state.length,
            width=state.width,
            widest=state.widest,
            slots=slots,
            shift=state.shift,
            whole=Packed.of([tokens] * rows, x.device) if whole and (self.has_spans or late) else None,
        )
        x = self.dropout(self.positions(x, positions, reach))
        caches = []
        for layer, cache in zip(cast("Iterable[DecoderLayer]", self.layers), state.caches, strict=True):
            x, cache = self.run_layer(layer, layer.step, x, cache, seen)
            caches.append(cache)
        after = replace(
            state,
            caches=tuple(caches),
            length=state.length + tokens,
            used=state.used + state.width * tokens,
            widths=state.widths + (state.width,) * tokens,
            ancestry=None if ancestry is None else ancestry[:, -state.width :],  # of T tokens the last sees all
            slots=slots,
        )
        return self.tap("output", self.norm(x, valid), str(self.norm.formula)).reshape(rows, tokens, -1), after
