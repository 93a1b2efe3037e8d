"""Transformer bodies: an encoder and a decoder (Vaswani et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sightline.layers.attention import KeysAndValues, MultiHeadAttention
from sightline.layers.dropout import Dropout
from sightline.layers.feedforward import build_feedforward
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.norms import Residual, build_last_norm
from sightline.layers.positions import build_added
from sightline.layers.relative_positions import Distances, Relative, RelativeKeys, build_bias, build_relative_keys
from sightline.layers.scores import build_head_score
from sightline.layers.tap import TapModule
from sightline.models.protocol import Memory
from sightline.recipe_model import TransformerBody


def _attention(
    recipe: TransformerBody, width: int, *, rotary: bool = False, relative_keys: RelativeKeys | None = None
) -> MultiHeadAttention:
    kind = recipe.attention
    return MultiHeadAttention(
        width,
        recipe.heads,
        dropout=recipe.attention_dropout,
        rotary=rotary,
        relative_keys=relative_keys,
        score=build_head_score(kind.kind, width // recipe.heads, scaled=kind.scaled),
        projections=kind.projections,
        groups=kind.groups,
    )


def _self_attention(recipe: TransformerBody, width: int, *, causal: bool) -> MultiHeadAttention:
    keys = build_relative_keys(recipe.positions, width // recipe.heads, causal=causal)
    return _attention(recipe, width, rotary=recipe.positions.kind == "rotary", relative_keys=keys)


class Stack(TapModule):
    """What encoder and decoder share: where order enters, the layers (theirs to make) and the norm at the end."""

    def __init__(self, recipe: TransformerBody, width: int, *, causal: bool) -> None:
        super().__init__()
        self.positions = build_added(recipe.positions, width)
        self.bias = build_bias(recipe.positions, recipe.heads, width, causal=causal)
        self.by_distance = recipe.positions.kind in ("alibi", "t5", "shaw")
        self.dropout = Dropout(recipe.dropout)

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

    def __init__(self, recipe: TransformerBody, width: int, number: int = 0) -> None:
        super().__init__()
        self.attention = _self_attention(recipe, width, causal=False)
        self.feedforward = build_feedforward(recipe.feedforward, width, number)
        self.around_attention = Residual(recipe.norm, width, recipe.dropout)
        self.around_feedforward = Residual(recipe.norm, width, recipe.dropout)

    def forward(self, x: Tensor, layout: Layout, positions: Tensor, relative: Relative | None = None) -> Tensor:
        valid = _valid(layout)
        heads = self.attention.queries_keys_values(self.around_attention.enter(x, valid), positions)
        seen = self.attention(*heads, layout=(layout, layout), relative=relative)
        x = self.around_attention.leave(x, seen, valid)
        fed = self.feedforward(self.around_feedforward.enter(x, valid), _real(layout))
        return self.tap("output", self.around_feedforward.leave(x, fed, valid))


class TransformerEncoder(Stack):
    """Layers of self-attention over the source."""

    def __init__(self, recipe: TransformerBody, width: int) -> None:
        super().__init__(recipe, width, causal=False)
        self.layers = nn.ModuleList(EncoderLayer(recipe, width, number) for number in range(recipe.layers))
        self.norm = build_last_norm(recipe.norm, width)

    def forward(self, x: Tensor, layout: Layout) -> Memory:
        if isinstance(layout, Padded) and self._better_packed(x, layout):
            packed = Packed.of(layout.lengths, longest=layout.longest)
            return Memory(packed.pad(self(packed.unpad(x), packed).states), layout)
        positions, relative = layout.positions(x.device), self.relative_within(layout.longest, x.device)
        x = self.dropout(self.positions(x, positions, layout.longest))
        for layer in self.layers:
            x = layer(x, layout, positions, relative)
        x = self.tap("output", self.norm(x, _valid(layout)), str(self.norm.formula))
        return Memory(x, layout)

    def _better_packed(self, x: Tensor, layout: Padded) -> bool:
        """On the CPU products over padding cost what products over text do. (Whoever listens wants what was given.)"""
        plain = x.device.type == "cpu" and not torch.is_grad_enabled() and layout.mask is not None
        return plain and not any(isinstance(module, TapModule) and module.heard for module in self.modules())


@dataclass(frozen=True)
class Cache:
    """Keys and values one layer has seen, in slots that are only ever appended to: (B, G, capacity, K).

    Their memory is nobody else's: `TransformerState.keep` writes to it. (G is H but for heads that share.)
    """

    own: KeysAndValues | None
    source: KeysAndValues | None  # None: there is no source to look at


@dataclass(frozen=True)
class TransformerState:
    """The tokens so far, as slots shared by all hypotheses of a sentence.

    Hypotheses that continue others never copy keys and values: each slot was written once by one hypothesis, and
    `ancestry` (B, W, used) says which slots are in the past of which hypothesis. None: every slot is (W = 1).
    """

    caches: tuple[Cache, ...]
    layout: Layout | None
    length: int = 0  # tokens of each hypothesis so far
    used: int = 0  # slots written
    width: int = 1
    ancestry: Tensor | None = None
    slots: Tensor | None = None  # (used,) the position each slot stands at, where distances are asked for
    shift: Tensor | None = None  # (B, 1) places before the first token of each sentence, where some began later

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

        assert not isinstance(self.layout, Packed)
        caches = tuple(
            Cache(
                cache.own and part(cache.own, self.used),
                cache.source and part(cache.source, cache.source.keys.shape[2]),
            )
            for cache in self.caches
        )
        return replace(
            self,
            caches=caches,
            layout=None if self.layout is None else self.layout.select(sentences),
            ancestry=None if self.ancestry is None else self.ancestry.index_select(0, sentences),
            shift=None if self.shift is None else self.shift.index_select(0, sentences),
        )


@dataclass(frozen=True)
class Seen:
    """What the new tokens of a step may look at: the same for every layer."""

    positions: Tensor  # (1, W·T) where they stand; (B, W·T) where sentences began at different places
    used: int  # slots written before them
    past: Tensor | None  # (B, 1, W, used + W) or (B, 1, T, used + T), None: all
    source: Tensor | None  # (B, 1, 1, S), None: all
    relative: Relative | None = None  # their distances to the slots
    valid: Tensor | None = None  # (B, T), True at real tokens; None: all are


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


def _copied(heads: KeysAndValues) -> KeysAndValues:
    """(B, S, G, K) → (B, G, S, K) in a memory of its own: without projections it would be the source's."""
    keys, values = (part.transpose(1, 2).clone(memory_format=torch.contiguous_format) for part in heads)
    return KeysAndValues(keys, values)


class DecoderLayer(TapModule):
    """Self-attention to the past, attention to the source if there is one, a feed-forward net."""

    def __init__(self, recipe: TransformerBody, width: int, number: int = 0, *, source: bool) -> None:
        super().__init__()
        self.attention = _self_attention(recipe, width, causal=True)
        if source:
            self.cross = _attention(recipe, width)
        self.feedforward = build_feedforward(recipe.feedforward, width, number)
        self.around_attention = Residual(recipe.norm, width, recipe.dropout)
        if source:
            self.around_cross = Residual(recipe.norm, width, recipe.dropout)
        self.around_feedforward = Residual(recipe.norm, width, recipe.dropout)

    def forward(
        self,
        x: Tensor,
        cache: Cache,
        source: Layout | None,
        layout: Packed,
        positions: Tensor,
        relative: Relative | None = None,
    ) -> Tensor:
        """All tokens at once: x (N, D)."""
        heads = self.attention.queries_keys_values(self.around_attention.enter(x), positions)
        past = self.attention(*heads, causal=True, layout=(layout, layout), relative=relative)
        x = self.around_attention.leave(x, past)
        if cache.source is not None and source is not None:
            query = self.cross.queries(self.around_cross.enter(x))
            x = self.around_cross.leave(x, self.cross(query, *cache.source, layout=(layout, source)))
        return self._finish(x, None, layout.real)

    def step(self, x: Tensor, cache: Cache, seen: Seen) -> tuple[Tensor, Cache]:
        """New tokens after cached ones: x (B, W·T, D), W hypotheses or T tokens of one."""
        query, key, value = (
            part.transpose(1, 2)  # (B, H or G, W·T, K)
            for part in self.attention.queries_keys_values(self.around_attention.enter(x, seen.valid), seen.positions)
        )
        if cache.own is None and self.attention.project is None:  # they are views of x, and of one another
            key, value = key.clone(), value.clone()
        own = _append(cache.own, seen.used, KeysAndValues(key, value))
        used = seen.used + key.shape[2]
        past = self.attention(
            query,
            own.keys[:, :, :used],
            own.values[:, :, :used],
            mask=seen.past,
            causal=seen.past is None and key.shape[2] > 1,
            relative=seen.relative,
        )
        x = self.around_attention.leave(x, past, seen.valid)
        if cache.source is not None:
            query = self.cross.queries(self.around_cross.enter(x, seen.valid)).transpose(1, 2)
            x = self.around_cross.leave(x, self.cross(query, *cache.source, mask=seen.source), seen.valid)
        return self._finish(x, seen.valid, seen.valid), Cache(own, cache.source)

    def _finish(self, x: Tensor, valid: Tensor | None, real: Tensor | None) -> Tensor:
        fed = self.feedforward(self.around_feedforward.enter(x, valid), real)
        return self.tap("output", self.around_feedforward.leave(x, fed, valid))


def _step_positions(x: Tensor, state: TransformerState) -> Tensor:
    """(1, W·T): where the new tokens stand; W hypotheses all at one place, T tokens of one at T places."""
    count = x.shape[1]
    if state.width > 1:
        return torch.full((1, count), state.length, device=x.device)
    return torch.arange(state.length, state.length + count, device=x.device)[None, :]


class TransformerDecoder(Stack):
    """Layers of self-attention over the target so far and, if there is a source, of attention to it."""

    def __init__(self, recipe: TransformerBody, width: int, *, source: bool = True) -> None:
        super().__init__(recipe, width, causal=True)
        layers = (DecoderLayer(recipe, width, number, source=source) for number in range(recipe.layers))
        self.layers = nn.ModuleList(layers)
        self.norm = build_last_norm(recipe.norm, width)
        self.looks = tuple(f"layers.{index}.cross" for index in range(recipe.layers)) if source else ()
        self.longest = recipe.positions.longest if recipe.positions.kind == "learned" else None

    def begin(self, memory: Memory) -> TransformerState:
        """Project the memory once for every layer."""
        if isinstance(memory.layout, Packed):
            caches = (Cache(None, layer.cross.keys_values(memory.states)) for layer in self.layers)
        else:
            caches = (Cache(None, _copied(layer.cross.keys_values(memory.states))) for layer in self.layers)
        return TransformerState(tuple(caches), memory.layout)

    def begin_blank(self, batch: int, like: Tensor) -> TransformerState:
        """Where there is no source and nothing has been written."""
        return TransformerState(tuple(Cache(None, None) for _ in self.layers), None)

    def begin_after(self, x: Tensor, layout: Padded) -> TransformerState:
        """After tokens x (B, S, D) of different lengths: all end at the same slot, shorter ones begin later."""
        if layout.mask is None:
            return self._advance_cached(x, self.begin_blank(len(x), x), None)[1]
        places = torch.arange(x.shape[1], device=x.device)[None, :]  # (1, S)
        shift = (x.shape[1] - layout.lengths)[:, None].to(x.device)  # (B, 1)
        visible = places >= shift  # (B, S)
        aligned = x.gather(1, (places - shift).clamp(min=0)[..., None].expand_as(x))
        state = replace(self.begin_blank(len(x), x), shift=shift)
        _, state = self._advance_cached(aligned, state, visible, visible)
        return replace(state, ancestry=visible[:, None, :])

    def advance(
        self, x: Tensor, state: TransformerState, layout: Layout | None = None
    ) -> tuple[Tensor, TransformerState]:
        if isinstance(layout, Packed):
            positions, relative = layout.positions(x.device), self.relative_within(layout.longest, x.device)
            x = self.dropout(self.positions(x, positions, layout.longest))
            for layer, cache in zip(self.layers, state.caches, strict=True):
                x = layer(x, cache, state.layout, layout, positions, relative)
            return self.tap("output", self.norm(x), str(self.norm.formula)), replace(state, length=layout.longest)
        return self._advance_cached(x, state, _valid(layout))

    def _advance_cached(
        self, x: Tensor, state: TransformerState, valid: Tensor | None, visible: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        """`visible` (B, T): which of the first tokens are real, where some sentences begin later."""
        rows, tokens = x.shape[:2]
        sentences = rows // state.width
        if state.width > 1 and tokens > 1:
            raise ValueError(f"{state.width} hypotheses a sentence advance one token at a time, not {tokens}")
        x = x.reshape(sentences, state.width * tokens, -1)  # (B, W·T, D)
        places, ancestry = _step_positions(x, state), _extend(state, tokens, x.device)
        positions, reach = places, state.length + tokens
        if state.shift is not None:
            positions = (places - state.shift).clamp(min=0)
            if self.longest is not None:  # sentences that ended may stand beside those that began later and go on
                positions, reach = positions.clamp(max=self.longest - 1), min(reach, self.longest)
        source = None if state.layout is None else state.layout.key_mask()
        slots = _extend_slots(state, places) if self.by_distance else None
        past = None if ancestry is None else ancestry[:, None]  # (B, 1, W or T, slots)
        if visible is not None:
            past = (visible[:, None, :] & _lower(tokens, x.device))[:, None]
        whole = state.used == 0 and state.width == 1
        seen = Seen(
            positions,
            state.used,
            past=past,
            source=None if source is None else source[:, None, None, :],
            relative=None if slots is None else self.relative(Distances(places[0], slots, whole)),
            valid=valid,
        )
        x = self.dropout(self.positions(x, positions, reach))
        caches = []
        for layer, cache in zip(self.layers, state.caches, strict=True):
            x, cache = layer.step(x, cache, seen)
            caches.append(cache)
        after = replace(
            state,
            caches=tuple(caches),
            length=state.length + tokens,
            used=state.used + state.width * tokens,
            ancestry=None if ancestry is None else ancestry[:, -state.width :],  # of T tokens the last sees all
            slots=slots,
        )
        return self.tap("output", self.norm(x, valid), str(self.norm.formula)).reshape(rows, tokens, -1), after


def _extend_slots(state: TransformerState, positions: Tensor) -> Tensor:
    """(used + W·T,): where all slots stand, the new ones behind the others. Slots are never moved, nor are these."""
    return positions[0] if state.slots is None else torch.cat([state.slots, positions[0]])


def _extend(state: TransformerState, tokens: int, device: torch.device) -> Tensor | None:
    """The ancestry with this step's slots: each hypothesis sees its own new one, T tokens of one those before them."""
    if state.ancestry is None:
        return None
    count = state.width * tokens
    own = torch.eye(count, dtype=torch.bool, device=device) if tokens == 1 else _lower(count, device)
    past = state.ancestry.expand(-1, count, -1)
    return torch.cat([past, own.expand(past.shape[0], -1, -1)], dim=2)


def _lower(count: int, device: torch.device) -> Tensor:
    """(count, count), True on and below the diagonal."""
    return torch.ones(count, count, dtype=torch.bool, device=device).tril()
