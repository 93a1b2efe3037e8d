"""What passes from an encoder to a decoder, the protocol every decoder follows, and what bodies say of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from sightline.layers.embedding import Output
from sightline.layers.layout import Layout, Packed
from sightline.layers.tap import TapModule


@dataclass(frozen=True)
class Memory:
    """What the encoder made of the source."""

    states: Tensor  # (B, S, D) or (N, D), as the layout says
    layout: Layout
    finals: Tensor | None = None  # (B, L, D): the last state of each recurrent layer
    embeddings: Tensor | None = None  # as the states: what entered the first layer, where the encoder hands it on

    def summary(self) -> Tensor:
        """(B, L, D): what a recurrent decoder starts from: the final states, or the mean state where there are none."""
        return self.mean()[:, None] if self.finals is None else self.finals

    def mean(self) -> Tensor:
        """(B, D): the mean state of each sequence."""
        padded, mask = self.layout.pad(self.states), self.layout.key_mask()
        if mask is None:
            return padded.mean(1)
        weights = mask.to(padded.dtype)[..., None]
        return (padded * weights).sum(1) / weights.sum(1).clamp(min=1)

    def lengths(self) -> Tensor:
        """(B,): how many states each sequence has, where the states are."""
        if isinstance(self.layout, Packed):
            return self.layout.offsets.diff().long()
        mask, device = self.layout.key_mask(), self.states.device
        if mask is None:
            return torch.full((self.layout.batch,), self.layout.longest, device=device)
        return mask.sum(1)


class State(Protocol):
    """Where a decoder stands: B sentences with W hypotheses each.

    A state is an argument and a result, never an attribute of a module. `advance` may reuse the buffers of the state
    it was given: go on with the one it returns.
    """

    def select(self, parents: Tensor) -> Self:
        """Continue other hypotheses: parents (B, W') says, for each new one, which old one it continues."""
        ...

    def keep(self, sentences: Tensor) -> Self:
        """Go on with these sentences alone: indices (B',). Like `advance`, it may reuse the buffers of this state.

        Cheapest when most stay in their places: [0, 5, 2, 3, 4] moves one of six sentences and copies nothing else.
        """
        ...

    def append(self, other: Self) -> Self:
        """Add the sentences of another state behind these, so that all advance together.

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


def join_shifts(
    first: tuple[int, Tensor | None], second: tuple[int, Tensor | None], rows: tuple[int, int], device: torch.device
) -> tuple[int, Tensor | None]:
    """Lengths and shifts of two states → those of all their rows.

    `length` counts the steps of the row that has most tokens; `shift` (B, 1) says how many fewer the others have.
    """
    parts = [(length - (0 if shift is None else int(shift.min())), length, shift) for length, shift in (first, second)]
    longest = max(most for most, _, _ in parts)
    shifts = [
        (torch.zeros(count, 1, dtype=torch.int64, device=device) if shift is None else shift) + longest - length
        for count, (_, length, shift) in zip(rows, parts, strict=True)
    ]
    if all(shift is None and length == longest for _, length, shift in parts):
        return longest, None
    return longest, torch.cat(shifts)


class Decoder(Protocol):
    """A conditional language model over the memory.

    `cross_attention_paths`: the modules whose tap `weights` is the attention to the source, lowest layer first:
    (B, H, T, S) over all tokens of one hypothesis, (B, H, W, S) at one step of a search. `sees_source` are the paths
    of what a decoder without a source has not (`*`: a number), said by its class. `longest` is how many tokens it can
    be given, where there is a limit.
    """

    sees_source: tuple[str, ...]
    cross_attention_paths: tuple[str, ...]
    longest: int | None

    def begin(self, memory: Memory) -> Any: ...

    def advance(self, x: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]:
        """Vectors of the next tokens → features that predict what follows them, and the state after them.

        Search: x (B·W, 1, D), one token for each hypothesis. Training and scoring: x (B, T, D), or (N, D) with a
        packed layout, all tokens of one hypothesis a sentence at once.
        """
        ...


@runtime_checkable
class Layered(Protocol):
    """A body that says what its layers are made of, so that they can be frozen and slowed one by one.

    `by_layer` are the paths of its lists of parts, each under the number of the layer it belongs to, 0 the lowest;
    `below` are the paths of what stands below all of them. The rest (a norm at the end) stands above.
    """

    by_layer: tuple[str, ...]
    below: tuple[str, ...]


@runtime_checkable
class FitsLengths(Protocol):
    """A part of a model that wants to know how long sources and targets are, before it is trained."""

    def fit_lengths(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Tokens of each training pair, without marks."""
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
