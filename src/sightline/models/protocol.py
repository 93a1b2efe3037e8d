"""What passes from an encoder to a decoder, the protocol every decoder follows, and what bodies say of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from sightline.layers.layout import Layout, Packed


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


class Decoder(Protocol):
    """A conditional language model over the memory.

    `looks` are the paths of the modules whose tap `weights` is the attention to the source, lowest layer first:
    (B, H, T, S) over all tokens of one hypothesis, (B, H, W, S) at one step of a search. `sees_source` are the paths
    of what a decoder without a source has not (`*`: a number), said by its class. `longest` is how many tokens it can
    be given, where there is a limit.
    """

    sees_source: tuple[str, ...]
    looks: tuple[str, ...]
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
