"""Transformer encoder and decoder (Vaswani et al. 2017).

A decoder runs over all target tokens at once (teacher forcing), or step by step with a KV cache (kv_cache.py,
state.py); tests/models/test_decoders.py compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from sightline.layers.dropout import Dropout
from sightline.layers.feedforward import build_feedforward
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.local_attention import LocalAttention, build_pattern
from sightline.layers.multi_head import KeysValues, MultiHeadAttention
from sightline.layers.norms import Residual, build_last_norm, build_residual
from sightline.layers.positions import (
    Distances,
    Relative,
    Rotation,
    build_added,
    build_bias,
    build_relative_keys,
)
from sightline.layers.scores import build_score
from sightline.layers.tap import TapModule
from sightline.models.gradient_checkpointing import CheckpointedStack
from sightline.models.protocol import Memory, check_step
from sightline.models.transformer.compressed_kv_cache import empty_kv_cache
from sightline.models.transformer.config import HeadAttentionConfig, TransformerConfig
from sightline.models.transformer.kv_cache import KVCache, StepContext
from sightline.models.transformer.state import (
    LayerCache,
    TransformerState,
    align_left,
    align_right,
    extend_ancestry,
    extend_slot_positions,
    heads_first,
    lower_triangle,
    step_positions,
)


class CausalSelfAttention(MultiHeadAttention):
    """Self-attention of a decoder layer, over whole targets or with a KV cache."""

    entry_points: ClassVar[tuple[str, ...]] = (*MultiHeadAttention.entry_points, "step")

    def step(self, x: Tensor, kv_cache: KVCache, step: StepContext) -> tuple[Tensor, KVCache]:
        """New tokens x (B, W·T, D) → outputs (B, W·T, D), and the cache with their keys and values."""
        projected = self.queries_keys_values(x, step.rotation)
        query, key, value = (part.transpose(1, 2) for part in projected)  # (B, H or G, W·T, Dh)
        if kv_cache.empty and self.qkv is None:  # without projections they are views of x
            key, value = key.clone(), value.clone()
        recorded = self.recorded
        kv_cache = kv_cache.update(KeysValues(key, value), step, recorded=recorded)
        if step.prefill is None or recorded:
            view = kv_cache.view(step, recorded=recorded)
            output = self(query, view.keys, view.values, mask=view.mask, causal=view.causal, relative=step.relative)
            return output, kv_cache
        heads = (align_left(part.transpose(1, 2), step.left_padding).flatten(0, 1) for part in (query, key, value))
        output = self(*heads, causal=True, layout=(step.prefill, step.prefill))  # (B·T, D)
        return align_right(output.unflatten(0, (len(x), -1)), step.left_padding), kv_cache


def build_self_attention(recipe: TransformerConfig, width: int, number: int, *, causal: bool) -> MultiHeadAttention:
    """Build the self-attention of layer `number` (from 0); the attention patterns of the recipe repeat."""
    head_width, rotary = width // recipe.heads, recipe.positions.kind == "rotary"
    relative_keys = build_relative_keys(recipe.positions, head_width, causal=causal)
    patterns, kv_heads = recipe.attention.pattern, recipe.attention.kv_heads or recipe.heads
    pattern = build_pattern(patterns[number % len(patterns)], kv_heads * head_width, rotary=rotary)
    kind = CausalSelfAttention if causal else MultiHeadAttention
    return kind(
        width,
        recipe.heads,
        dropout=recipe.attention_dropout,
        rotary=rotary,
        relative_keys=relative_keys,
        score=build_score(recipe.attention.kind, head_width, **recipe.attention.options(HeadAttentionConfig)),
        projections=recipe.attention.projections,
        bias=recipe.attention.bias,
        output_projection=recipe.attention.output_projection,
        groups=recipe.attention.kv_heads,
        pattern=pattern,
    )


def build_cross_attention(recipe: TransformerConfig, width: int, memory_width: int | None) -> MultiHeadAttention:
    """Build the cross-attention of a decoder layer; `memory_width`: of the encoder, if not `width`."""
    return MultiHeadAttention(
        width,
        recipe.heads,
        dropout=recipe.attention_dropout,
        score=build_score(
            recipe.attention.kind, width // recipe.heads, **recipe.attention.options(HeadAttentionConfig)
        ),
        projections=recipe.attention.projections,
        bias=recipe.attention.bias,
        output_projection=recipe.attention.output_projection,
        groups=recipe.attention.kv_heads,
        memory_width=memory_width,
    )


class TransformerStack(TapModule, CheckpointedStack):
    """Base class of encoder and decoder: positions, and the norm after the last layer."""

    by_layer: tuple[str, ...] = ("layers",)
    below: tuple[str, ...] = ("positions", "bias")

    def __init__(self, recipe: TransformerConfig, width: int, *, causal: bool) -> None:
        super().__init__()
        self.positions = build_added(recipe.positions, width)
        self.bias = build_bias(recipe.positions, recipe.heads, width, causal=causal)
        self.uses_distances = self.bias is not None or recipe.positions.kind == "shaw"
        self.rotary_width = width // recipe.heads if recipe.positions.kind == "rotary" else None
        self.dropout = Dropout(recipe.dropout)
        self.has_patterns = any(pattern.kind != "full" for pattern in recipe.attention.pattern)

    def rotation(self, positions: Tensor) -> Rotation | None:
        """The rotation at these positions, shared by all layers; None for other kinds of positions."""
        return None if self.rotary_width is None else Rotation.at(positions, self.rotary_width)

    def relative(self, distances: Distances) -> Relative:
        """Relative positions for all layers."""
        return Relative(distances, None if self.bias is None else self.bias(distances))

    def relative_within(self, count: int, device: torch.device) -> Relative | None:
        """Relative positions within whole sequences; None for other kinds of positions."""
        return self.relative(Distances.within(count, device)) if self.uses_distances else None


def padding_mask(layout: Layout | None) -> Tensor | None:
    """(B, T), True at real tokens of a padded batch; None if all are real, or for packed batches."""
    return layout.mask if isinstance(layout, Padded) else None


class TransformerLayer(TapModule):
    """Base class of a layer that ends with a feed-forward net, if the recipe has one.

    Subclasses build the modules, in the order in which their weights are drawn.
    """

    feedforward: nn.Module | None
    feedforward_residual: Residual

    def feed_forward(self, x: Tensor, valid: Tensor | None, real: Tensor | None) -> Tensor:
        """x (…, D) → (…, D). `valid`: real tokens of a padded batch; `real`: tokens that experts should see."""
        if self.feedforward is not None:
            output = self.feedforward(self.feedforward_residual.prenorm(x, valid), real)
            x = self.feedforward_residual.add(x, output, valid)
        return self.tap("output", x)


def build_layer_residual(recipe: TransformerConfig, width: int) -> Residual:
    """Build the residual connection around one sublayer."""
    return build_residual(recipe.norm, width, recipe.dropout, connected=recipe.residual)


class EncoderLayer(TransformerLayer):
    """Self-attention and a feed-forward net, each in a residual connection."""

    def __init__(self, recipe: TransformerConfig, width: int, number: int = 0) -> None:
        super().__init__()
        self.attention = build_self_attention(recipe, width, number, causal=False)
        self.feedforward = build_feedforward(recipe.feedforward, width, number)
        self.attention_residual = build_layer_residual(recipe, width)
        if self.feedforward is not None:
            self.feedforward_residual = build_layer_residual(recipe, width)

    def forward(self, x: Tensor, layout: Layout, rotation: Rotation | None, relative: Relative | None = None) -> Tensor:
        """x (B, S, D) or (N, D) → the same shape."""
        valid = padding_mask(layout)
        real = valid if isinstance(layout, Padded) else layout.real  # (N,) False at dummy tokens of a static batch
        heads = self.attention.queries_keys_values(self.attention_residual.prenorm(x, valid), rotation)
        attended = self.attention(*heads, layout=(layout, layout), relative=relative)
        return self.feed_forward(self.attention_residual.add(x, attended, valid), valid, real)


class TransformerEncoder(TransformerStack):
    """Layers of self-attention over the source."""

    def __init__(self, recipe: TransformerConfig, width: int) -> None:
        super().__init__(recipe, width, causal=False)
        self.layers = nn.ModuleList(EncoderLayer(recipe, width, number) for number in range(recipe.layers))
        self.norm = build_last_norm(recipe.norm, width)

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        """Embeddings x (B, S, D) or (N, D) → memory."""
        if isinstance(layout, Padded) and self._better_packed(x, layout):
            packed = Packed.of(layout.lengths, x.device, longest=layout.longest)
            return Memory(packed.pad(self(packed.unpad(x), packed).states), layout)
        positions, relative = layout.positions(x.device), self.relative_within(layout.longest, x.device)
        x, rotation = self.dropout(self.positions(x, positions, layout.longest)), self.rotation(positions)
        for layer in self.layers:
            x = self.run_layer(layer, layer, x, layout, rotation, relative)
        x = self.tap("output", self.norm(x, padding_mask(layout)), str(self.norm.formula))
        return Memory(x, layout)

    def _better_packed(self, x: Tensor, layout: Padded) -> bool:
        """True outside recordings if there is padding on the CPU (where it costs time), or local attention."""
        plain = x.device.type == "cpu" and not torch.is_grad_enabled() and layout.mask is not None
        recorded = any(isinstance(module, TapModule) and module.recorded for module in self.modules())
        return (plain or self.has_patterns) and not recorded


class DecoderLayer(TransformerLayer):
    """Causal self-attention, cross-attention (with `source`), and a feed-forward net, each in a residual connection."""

    entry_points: ClassVar[tuple[str, ...]] = ("step", "project_memory")

    def __init__(
        self,
        recipe: TransformerConfig,
        width: int,
        number: int = 0,
        *,
        source: bool,
        memory_width: int | None = None,
    ) -> None:
        super().__init__()
        self.attention = build_self_attention(recipe, width, number, causal=True)
        if source:
            self.cross_attention = build_cross_attention(recipe, width, memory_width)
        self.feedforward = build_feedforward(recipe.feedforward, width, number)
        self.attention_residual = build_layer_residual(recipe, width)
        if source:
            self.cross_attention_residual = build_layer_residual(recipe, width)
        if self.feedforward is not None:
            self.feedforward_residual = build_layer_residual(recipe, width)

    def project_memory(self, memory: Memory) -> KeysValues:
        """Keys and values of cross-attention, computed once per sentence: (B, G, S, Dh), packed (N, G, Dh)."""
        heads = self.cross_attention.keys_values(memory.states)
        return heads if isinstance(memory.layout, Packed) else heads_first(heads)

    def forward(
        self,
        x: Tensor,
        cache: LayerCache,
        source: Layout | None,
        layout: Packed,
        rotation: Rotation | None,
        relative: Relative | None = None,
    ) -> Tensor:
        """All target tokens at once: x (N, D) → (N, D)."""
        heads = self.attention.queries_keys_values(self.attention_residual.prenorm(x), rotation)
        attended = self.attention(*heads, causal=True, layout=(layout, layout), relative=relative)
        x = self.attention_residual.add(x, attended)
        if cache.cross_attention is not None and source is not None:
            query = self.cross_attention.queries(self.cross_attention_residual.prenorm(x))
            attended = self.cross_attention(query, *cache.cross_attention, layout=(layout, source))
            x = self.cross_attention_residual.add(x, attended)
        return self.feed_forward(x, None, layout.real)

    def step(self, x: Tensor, cache: LayerCache, step: StepContext) -> tuple[Tensor, LayerCache]:
        """New tokens x (B, W·T, D), W = 1 or T = 1 → outputs (B, W·T, D), new cache."""
        normed = self.attention_residual.prenorm(x, step.valid)
        attended, kv_cache = self.attention.step(normed, cache.self_attention, step)
        x = self.attention_residual.add(x, attended, step.valid)
        if cache.cross_attention is not None:
            query = self.cross_attention.queries(self.cross_attention_residual.prenorm(x, step.valid))
            attended = self.cross_attention(query.transpose(1, 2), *cache.cross_attention, mask=step.memory_mask)
            x = self.cross_attention_residual.add(x, attended, step.valid)
        return self.feed_forward(x, step.valid, step.valid), LayerCache(kv_cache, cache.cross_attention)


class TransformerDecoder(TransformerStack):
    """Layers of causal self-attention over the target and, with `source`, of cross-attention."""

    entry_points: ClassVar[tuple[str, ...]] = ("begin", "begin_empty", "prefill", "advance")
    sees_source: tuple[str, ...] = ("layers.*.cross_attention", "layers.*.cross_attention_residual")

    def __init__(
        self, recipe: TransformerConfig, width: int, *, source: bool = True, memory_width: int | None = None
    ) -> None:
        super().__init__(recipe, width, causal=True)
        self.layers = nn.ModuleList(
            DecoderLayer(recipe, width, number, source=source, memory_width=memory_width)
            for number in range(recipe.layers)
        )
        self.norm = build_last_norm(recipe.norm, width)
        paths = (f"layers.{number}.cross_attention" for number in range(recipe.layers))
        self.cross_attention_paths = tuple(paths) if source else ()
        self.longest = recipe.positions.max_positions if recipe.positions.kind == "learned" else None
        local = any(isinstance(layer.attention.pattern, LocalAttention) for layer in self._layers())
        self.needs_slot_positions = self.uses_distances or local

    def _layers(self) -> Iterable[DecoderLayer]:
        return cast("Iterable[DecoderLayer]", self.layers)

    def begin(self, memory: Memory) -> TransformerState:
        """The initial state, with projected keys and values of the memory for every layer."""
        memories = [layer.project_memory(memory) for layer in self._layers()]
        return TransformerState(self._empty(memories), memory.layout, memory.layout.batch, memory.states.device)

    def begin_empty(self, batch: int, like: Tensor) -> TransformerState:
        """The state before the first token, without a source."""
        return TransformerState(self._empty([None] * len(self.layers)), None, batch, like.device)

    def _empty(self, memories: Sequence[KeysValues | None]) -> tuple[LayerCache, ...]:
        return tuple(
            LayerCache(empty_kv_cache(layer.attention.pattern), memory)
            for layer, memory in zip(self._layers(), memories, strict=True)
        )

    def prefill(self, x: Tensor, layout: Padded) -> TransformerState:
        """The state after tokens x (B, S, D) of different lengths: shorter ones get left padding."""
        if layout.mask is None:
            return self._advance_cached(x, self.begin_empty(len(x), x), None)[1]
        left_padding = (x.shape[1] - layout.lengths)[:, None].to(x.device)  # (B, 1)
        visible = torch.arange(x.shape[1], device=x.device) >= left_padding  # (B, S)
        state = replace(self.begin_empty(len(x), x), left_padding=left_padding)
        _, state = self._advance_cached(align_right(x, left_padding), state, visible, visible)
        return replace(state, ancestry=visible[:, None, :])

    def advance(
        self, x: Tensor, state: TransformerState, layout: Layout | None = None
    ) -> tuple[Tensor, TransformerState]:
        """See `Decoder.advance`. Packed targets use `DecoderLayer.forward`, padded targets and steps the KV cache."""
        if not isinstance(layout, Packed):
            return self._advance_cached(x, state, padding_mask(layout))
        positions, relative = layout.positions(x.device), self.relative_within(layout.longest, x.device)
        x, rotation = self.dropout(self.positions(x, positions, layout.longest)), self.rotation(positions)
        for layer, cache in zip(self.layers, state.kv_cache, strict=True):
            x = self.run_layer(layer, layer, x, cache, state.layout, layout, rotation, relative)
        return self.tap("output", self.norm(x), str(self.norm.formula)), replace(state, length=layout.longest)

    def _advance_cached(
        self, x: Tensor, state: TransformerState, valid: Tensor | None, visible: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        """x (B·W, T, D) → features (B·W, T, D). `visible` (B, T): True where the first tokens are not left padding."""
        rows, tokens = x.shape[:2]
        check_step(state.width, tokens)
        x = x.reshape(rows // state.width, state.width * tokens, -1)  # (B, W·T, D)
        ancestry = extend_ancestry(state, tokens, x.device)
        step = self._step_context(x, state, ancestry, valid, visible)
        x = self.dropout(self.positions(x, step.positions, self._reach(state, tokens)))
        caches = []
        for layer, cache in zip(self._layers(), state.kv_cache, strict=True):
            x, cache = self.run_layer(layer, layer.step, x, cache, step)
            caches.append(cache)
        after = replace(
            state,
            kv_cache=tuple(caches),
            length=state.length + tokens,
            used=state.used + state.width * tokens,
            widths=state.widths + (state.width,) * tokens,
            ancestry=None if ancestry is None else ancestry[:, -state.width :],  # (B, W, used), of the last token
            slot_positions=step.slot_positions,
        )
        return self.tap("output", self.norm(x, valid), str(self.norm.formula)).reshape(rows, tokens, -1), after

    def _reach(self, state: TransformerState, tokens: int) -> int:
        """Upper bound of the positions after this step."""
        reach = state.length + tokens
        return reach if state.left_padding is None or self.longest is None else min(reach, self.longest)

    def _step_context(
        self,
        x: Tensor,
        state: TransformerState,
        ancestry: Tensor | None,
        valid: Tensor | None,
        visible: Tensor | None,
    ) -> StepContext:
        """Positions and masks of the new tokens x (B, W·T, D), shared by all layers."""
        tokens = x.shape[1] // state.width
        padded_positions = step_positions(x.shape[1], state, x.device)  # (1, W·T)
        positions = padded_positions
        if state.left_padding is not None:
            positions = (padded_positions - state.left_padding).clamp(min=0)  # (B, W·T)
            if self.longest is not None:  # finished rows may share a batch with rows that started later
                positions = positions.clamp(max=self.longest - 1)
        memory_mask = None if state.layout is None else state.layout.key_mask()  # (B, S)
        slot_positions = extend_slot_positions(state, padded_positions) if self.needs_slot_positions else None
        past_mask = None if ancestry is None else ancestry[:, None]  # (B, 1, W or T, slots)
        if visible is not None and (self.uses_distances or any(layer.attention.recorded for layer in self._layers())):
            past_mask = (visible[:, None, :] & lower_triangle(tokens, x.device))[:, None]
        first = state.used == 0 and state.width == 1
        relative = None
        if self.uses_distances and slot_positions is not None:
            relative = self.relative(Distances(padded_positions[0], slot_positions, first))
        prefill = first and (self.has_patterns or (visible is not None and not self.uses_distances))
        return StepContext(
            positions,
            state.used,
            past_mask=past_mask,
            memory_mask=None if memory_mask is None else memory_mask[:, None, None, :],
            relative=relative,
            rotation=self.rotation(positions),
            valid=valid,
            length=state.length,
            width=state.width,
            max_width=state.max_width,
            slot_positions=slot_positions,
            left_padding=state.left_padding,
            prefill=Packed.of([tokens] * len(x), x.device) if prefill else None,
        )
