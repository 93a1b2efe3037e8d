"""The protocol of encoders and decoders.

A new encoder or decoder is a config (a `BodyConfig`), a class and a line in `registry.py` or a plug-in. An encoder is
called with vectors and a layout and returns a `Memory`; a decoder is a `Decoder`. Both say what their layers are
(`Layered`), a decoder also which of its parts attend to a source. Search, training, freezing, layer-wise learning rates
and `init_from` need no more.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    states: Tensor  # (B, S, D) or (N, D), as the layout says
    layout: Layout
    finals: Tensor | None = None  # (B, L, D): the final state of each recurrent layer
    embeddings: Tensor | None = None  # as the states: input of the first layer (see convs2s.py)

    def summary(self) -> Tensor:
        """(B, L, D): the final states, or without any the mean state: what a recurrent decoder starts from."""
        return self.mean()[:, None] if self.finals is None else self.finals

    def mean(self) -> Tensor:
        """(B, D): the mean state of each sequence."""
        padded, mask = self.layout.pad(self.states), self.layout.key_mask()
        if mask is None:
            return padded.mean(1)
        weights = mask.to(padded.dtype)[..., None]
        return (padded * weights).sum(1) / weights.sum(1).clamp(min=1)

    def lengths(self) -> Tensor:
        """(B,): the number of states of each sequence, on their device."""
        if isinstance(self.layout, Packed):
            return self.layout.offsets.diff().long()
        mask, device = self.layout.key_mask(), self.states.device
        if mask is None:
            return torch.full((self.layout.batch,), self.layout.longest, device=device)
        return mask.sum(1)


class State(Protocol):
    """The state of a decoder: B sentences with W hypotheses each.

    A state is an argument and a result, never an attribute of a module. `advance` may reuse the buffers of its
    argument: continue with the state it returns.
    """

    def select(self, parents: Tensor) -> Self:
        """Reorder hypotheses: parents (B, W') is, for each new one, the old one that it continues."""
        ...

    def keep(self, sentences: Tensor) -> Self:
        """Keep some sentences only: indices (B',). Like `advance`, it may reuse the buffers of this state.

        A state that holds the past of its sentences drops steps before the first token of all that remain.
        Cheapest when most keep their rows: [0, 5, 2, 3, 4] moves one of six sentences and copies nothing else.
        """
        ...

    def append(self, other: Self) -> Self:
        """Add the sentences of another state after these, so that all advance together.

        Both have the same number W of hypotheses a sentence; lengths of targets and sources may differ.
        """
        ...


def join_rows(first: Tensor, second: Tensor, *, dim: int | None = None, fill: float | bool = 0) -> Tensor:
    """Rows (B, …) and (B', …) → (B + B', …); with `dim`, the shorter of the two is padded at its end in that dim."""
    if dim is not None and first.shape[dim] != second.shape[dim]:
        longest = max(first.shape[dim], second.shape[dim])
        first, second = (_padded(part, dim, longest, fill) for part in (first, second))
    return torch.cat([first, second])


def _padded(part: Tensor, dim: int, longest: int, fill: float | bool) -> Tensor:
    shape = list(part.shape)
    shape[dim] = longest - part.shape[dim]
    return torch.cat([part, part.new_full(shape, fill)], dim=dim)


def join_optional(first: Tensor | None, second: Tensor | None, *, dim: int | None = None) -> Tensor | None:
    """`join_rows` of tensors that both states have, or neither."""
    return None if first is None or second is None else join_rows(first, second, dim=dim)


def join_masks(first: Tensor | None, second: Tensor | None, like: tuple[Tensor, Tensor]) -> Tensor | None:
    """Key masks (B, S) and (B', S') → (B + B', longest); None: every position is real, of sources (B, …, S, D)."""
    if first is None and second is None and like[0].shape[-2] == like[1].shape[-2]:
        return None
    masks = (
        part.new_ones(len(part), part.shape[-2], dtype=torch.bool) if mask is None else mask
        for mask, part in zip((first, second), like, strict=True)
    )
    return join_rows(*masks, dim=1, fill=False)


def join_left_padding(states: Sequence[Any], rows: Sequence[int], device: torch.device) -> tuple[int, Tensor | None]:
    """`length` and `left_padding` of two states of so many rows, joined so that their last tokens are aligned.

    `length` counts the tokens of the longest row, `left_padding` (B, 1) how many fewer the others have (None: 0).
    """
    unused = [0 if state.left_padding is None else int(state.left_padding.min()) for state in states]
    longest = max(state.length - drop for state, drop in zip(states, unused, strict=True))
    if all(state.left_padding is None and state.length == longest for state in states):
        return longest, None
    paddings = [
        (torch.zeros(count, 1, dtype=torch.int64, device=device) if state.left_padding is None else state.left_padding)
        + (longest - state.length)
        for count, state in zip(rows, states, strict=True)
    ]
    return longest, torch.cat(paddings)


class Decoder(Protocol):
    """A conditional language model over the memory.

    `cross_attention_paths`: the modules whose tap `weights` is the attention to the source, lowest layer first:
    (B, H, T, S) over all tokens of one hypothesis, (B, H, W, S) at one decoding step. `sees_source`: the paths of
    parameters that a decoder without a source does not have (`*`: a number). `longest`: the most tokens it accepts,
    None without a limit.
    """

    sees_source: tuple[str, ...]
    cross_attention_paths: tuple[str, ...]
    longest: int | None

    def begin(self, memory: Memory) -> Any: ...

    def advance(self, x: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]:
        """Embeddings of the next tokens → features that predict the tokens after them, and the state after them.

        Decoding: x (B·W, 1, D), one token of each hypothesis. Training (teacher forcing) and scoring: x (B, T, D), or
        (N, D) with a packed layout, all tokens of one hypothesis a sentence at once.
        """
        ...


@runtime_checkable
class Layered(Protocol):
    """An encoder or decoder that declares its layers, for freezing and layer-wise learning rates.

    `by_layer`: paths of its module lists, indexed by layer from the bottom. `below`: paths of the modules below all
    layers. Everything else (a last norm) is above.
    """

    by_layer: tuple[str, ...]
    below: tuple[str, ...]


@runtime_checkable
class FitsLengths(Protocol):
    """A module that is fitted to the lengths of the training data before training."""

    def fit_lengths(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Numbers of tokens of each training pair, without start and end marks."""
        ...


def entry_points(module: nn.Module) -> tuple[str, ...]:
    """The methods through which other modules use the parameters of this one: `forward` and those its class declares.

    Wrappers (DDP, FSDP2) hook into these alone: `for name in entry_points(layer): register_fsdp_forward_method(layer,
    name)`. So whoever uses a weight enters every module from the root down to it by one of them.
    """
    return ("forward", *getattr(type(module), "entry_points", ()))


class ScoringModel(TapModule):
    """A model with an output layer over tokens or labels."""

    entry_points: ClassVar[tuple[str, ...]] = ("logits",)
    output: Output

    def logits(self, features: Tensor) -> Tensor:
        """(…, D) → (…, V)."""
        scores: Tensor = self.output(features)
        return self.tap("logits", scores, "f Wᵀ + b")


class EncoderModel(ScoringModel):
    """A scoring model with an encoder."""

    entry_points: ClassVar[tuple[str, ...]] = ("encode", "logits")
    source_embedding: nn.Module
    encoder: nn.Module

    def encode(self, source: Tensor, layout: Layout) -> Memory:
        """Tokens (B, S) or (N,) → memory."""
        memory: Memory = self.encoder(self.source_embedding(source), layout)
        return memory


ENCODERS = Implementations("encoder")
DECODERS = Implementations("decoder")


def body_classes(recipe: ModelConfig) -> dict[str, Any]:
    """The classes of the encoder and the decoder of a recipe's model."""
    classes = {"encoder": ENCODERS, "decoder": DECODERS}
    return {side: classes[side][body.kind] for side, body in recipe.bodies.items()}
