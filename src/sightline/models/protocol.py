"""The protocol of encoders and decoders.

A new encoder or decoder is a config (a `BodyConfig`), a class and a line in `registry.py` or a plug-in. An encoder maps
embeddings and a layout to a `Memory`; a decoder is a `Decoder`. Both declare their layers (`Layered`) for freezing,
layer-wise learning rates and `init_from`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from sightline.layers.embedding import Output
from sightline.layers.layout import Layout, Packed
from sightline.layers.tap import TapModule
from sightline.recipe.model import ModelConfig
from sightline.registry import Implementations


@dataclass(frozen=True)
class Memory:
    """The output of an encoder."""

    states: Tensor  # (B, S, D) or (N, D)
    layout: Layout
    finals: Tensor | None = None  # (B, L, D): final state h of each recurrent layer
    final_cells: Tensor | None = None  # (B, L, D): final c of each LSTM layer
    embeddings: Tensor | None = None  # (B, S, D) or (N, D): input of the first layer (convs2s.py)

    def summary(self) -> Tensor:
        """(B, L, D): the final states, or (B, 1, D), the mean state: initializes recurrent decoders."""
        return self.mean()[:, None] if self.finals is None else self.finals

    def mean(self) -> Tensor:
        """(B, D): mean state of each sequence."""
        padded, mask = self.layout.pad(self.states), self.layout.key_mask()
        if mask is None:
            return padded.mean(1)
        weights = mask.to(padded.dtype)[..., None]
        return (padded * weights).sum(1) / weights.sum(1).clamp(min=1)

    def lengths(self) -> Tensor:
        """(B,): number of states of each sequence, on their device."""
        if isinstance(self.layout, Packed):
            return self.layout.offsets.diff().long()
        mask, device = self.layout.key_mask(), self.states.device
        if mask is None:
            return torch.full((self.layout.batch,), self.layout.longest, device=device)
        return mask.sum(1)


class State(Protocol):
    """The state of a decoder: B sentences with W hypotheses each.

    A state is an argument and a result, never an attribute of a module. `advance` and `keep` may reuse the buffers of
    their argument: continue with the state that they return.
    """

    def select(self, parents: Tensor) -> Self:
        """Reorder hypotheses by the index (B, W') of their parents."""
        ...

    def keep(self, sentences: Tensor) -> Self:
        """Keep the sentences with these indices (B',). Cheapest if most keep their rows: [0, 5, 2, 3, 4] moves one.

        Steps before the first token of all remaining sentences may be dropped.
        """
        ...

    def append(self, other: Self) -> Self:
        """Add the sentences of another state with the same W; lengths of targets and sources may differ."""
        ...


def select_hypotheses(part: Tensor, parents: Tensor) -> Tensor:
    """(B, W, …) → (B, W', …): the rows of the parents (B, W')."""
    index = parents.view(*parents.shape, *[1] * (part.dim() - 2))
    return part.gather(1, index.expand(-1, -1, *part.shape[2:]))


def keep_rows(part: Tensor | None, rows: Tensor) -> Tensor | None:
    """Rows (B',) of an optional tensor (B, …)."""
    return None if part is None else part.index_select(0, rows)


def check_step(width: int, tokens: int) -> None:
    """Raise a ValueError for a step over several tokens of several hypotheses; `tokens` is per row."""
    if width > 1 and tokens > 1:
        raise ValueError(f"{width} hypotheses a sentence advance one token at a time, not {tokens}")


def join_rows(first: Tensor, second: Tensor, *, dim: int | None = None, fill: float | bool = 0) -> Tensor:
    """Rows (B, …) and (B', …) → (B + B', …); with `dim`, the shorter one is padded at the end of this dimension."""
    if dim is not None and first.shape[dim] != second.shape[dim]:
        longest = max(first.shape[dim], second.shape[dim])

        def pad(part: Tensor) -> Tensor:
            shape = list(part.shape)
            shape[dim] = longest - part.shape[dim]
            return torch.cat([part, part.new_full(shape, fill)], dim=dim)

        first, second = pad(first), pad(second)
    return torch.cat([first, second])


def join_optional(first: Tensor | None, second: Tensor | None, *, dim: int | None = None) -> Tensor | None:
    """`join_rows` of optional tensors; None if one of them is."""
    return None if first is None or second is None else join_rows(first, second, dim=dim)


def join_masks(first: Tensor | None, second: Tensor | None, like: tuple[Tensor, Tensor]) -> Tensor | None:
    """Masks (B, S) and (B', S') of sources `like` (B, …, S, D) → (B + B', longest); None: every position is real."""
    if first is None and second is None and like[0].shape[-2] == like[1].shape[-2]:
        return None
    masks = (
        part.new_ones(len(part), part.shape[-2], dtype=torch.bool) if mask is None else mask
        for mask, part in zip((first, second), like, strict=True)
    )
    return join_rows(*masks, dim=1, fill=False)


class Decoder(Protocol):
    """A conditional language model over the memory.

    `cross_attention_paths`: modules whose tap `weights` is the attention to the source, lowest first, (B, H, T, S)
    in training and (B, H, W, S) in a decoding step. `sees_source`: paths of parameters that a decoder without a source
    lacks (`*`: a number). `longest`: maximum number of tokens; None: unlimited.
    """

    sees_source: tuple[str, ...]
    cross_attention_paths: tuple[str, ...]
    longest: int | None

    def begin(self, memory: Memory) -> Any: ...

    def advance(self, x: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]:
        """Embeddings of the next tokens → features that predict the tokens after them, and the new state.

        Decoding: x (B·W, 1, D), one token per hypothesis. Training (teacher forcing) and scoring: x (B, T, D), or
        (N, D) with a packed layout, all tokens of one hypothesis per sentence.
        """
        ...


@runtime_checkable
class Layered(Protocol):
    """An encoder or decoder that declares its layers, for freezing and layer-wise learning rates.

    `by_layer`: paths of module lists, indexed by layer from the bottom. `below`: paths of modules below all layers.
    Everything else (such as the last norm) is above.
    """

    by_layer: tuple[str, ...]
    below: tuple[str, ...]


@runtime_checkable
class FitsLengths(Protocol):
    """A module that is fitted to the lengths of the training data before training."""

    def fit_lengths(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """`sources`, `targets`: number of tokens of each training pair, without start and end tokens."""
        ...


def entry_points(module: nn.Module) -> tuple[str, ...]:
    """The methods through which other modules use the parameters of this one: `forward` and those its class declares.

    DDP and FSDP2 hook into these alone (`register_fsdp_forward_method(module, name)`), so every use of a weight must
    enter all modules above it through one of them.
    """
    return ("forward", *getattr(type(module), "entry_points", ()))


class ScoringModel(TapModule):
    """A model with an output layer over tokens or labels."""

    entry_points: ClassVar[tuple[str, ...]] = ("logits",)
    output: Output

    def logits(self, features: Tensor) -> Tensor:
        """(…, D) → (…, V)."""
        return self.tap("logits", self.output(features), "f Wᵀ" if self.output.bias is None else "f Wᵀ + b")


class EncoderModel(ScoringModel):
    """A scoring model with an encoder."""

    entry_points: ClassVar[tuple[str, ...]] = ("encode", "logits")
    source_embedding: nn.Module
    encoder: nn.Module

    def encode(self, source: Tensor, layout: Layout) -> Memory:
        """Tokens (B, S) or (N,) → memory."""
        return self.encoder(self.source_embedding(source), layout)


ENCODERS = Implementations("encoder")
DECODERS = Implementations("decoder")


def body_classes(recipe: ModelConfig) -> dict[str, Any]:
    """The classes of a model's encoder and decoder."""
    classes = {"encoder": ENCODERS, "decoder": DECODERS}
    return {side: classes[side][body.kind] for side, body in recipe.bodies.items()}
