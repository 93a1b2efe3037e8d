"""Where the sequences in a tensor begin and end.

Layers never see padding conventions: position-wise layers ignore the layout, attention, recurrence and pooling ask it.

- `Padded`: a tensor (B, T, …) whose row b has `lengths[b]` real positions.
- `Packed`: a tensor (N, …) that holds the sequences one after the other, with no padding at all. A batch may be
  filled up to a fixed N with a last dummy sequence, so that a compiled step sees one shape only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Steps(NamedTuple):
    """How a recurrence goes through a padded batch: all first tokens, all second ones …, longer sequences first."""

    sizes: Tensor  # (T,) on the host: how many sequences reach each step
    places: Tensor  # (N,) where the tokens stand in a flattened (B · T) tensor
    ranks: Tensor  # (B,) where each sequence comes among them

    @staticmethod
    def of(lengths: Tensor, longest: int) -> Steps:
        """Through rows of these lengths, each as if it had one token at least; on the host."""
        rows = np.maximum(lengths.numpy(), 1)
        order = np.argsort(-rows, kind="stable")
        step = np.arange(rows.max())[:, None]
        there = step < rows[order]  # (T, B)
        parts = (there.sum(1), (order * longest + step)[there], np.argsort(order))
        with torch.inference_mode(False):  # a layout may be read in that mode first, and learned from later
            return Steps(*map(torch.from_numpy, parts))

    def to(self, device: torch.device) -> Steps:
        """The same for tensors on a device, with nothing waiting for the copy."""
        if device.type == "cpu":
            return self
        pinned = [part.pin_memory() for part in self[1:]] if device.type == "cuda" else self[1:]
        places, ranks = (part.to(device, non_blocking=True) for part in pinned)
        return Steps(self.sizes, places, ranks)


@dataclass(frozen=True)
class Padded:
    """(B, T, …): row b is real up to its length."""

    lengths: Tensor  # (B,) on the host: packing a recurrent batch needs them there
    longest: int
    mask: Tensor | None  # (B, T) on the device, True where real; None when every row is full

    @staticmethod
    def of(lengths: Sequence[int] | Tensor, device: torch.device | str = "cpu", longest: int | None = None) -> Padded:
        """The layout of rows with these lengths."""
        host = torch.as_tensor(lengths, dtype=torch.int64).cpu()
        width = int(host.max()) if longest is None else longest
        full = bool((host == width).all())
        mask = None if full else (torch.arange(width)[None, :] < host[:, None]).to(device)
        return Padded(host, width, mask)

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def full(self) -> bool:
        """Whether every sequence has the longest length, so that there is no padding."""
        return self.mask is None

    @cached_property
    def steps(self) -> Steps:
        """How a recurrence goes through it: on the host, found once for all layers."""
        return Steps.of(self.lengths, self.longest)

    def positions(self, device: torch.device) -> Tensor:
        """(1, T): the index of each position in its sequence."""
        return torch.arange(self.longest, device=device)[None, :]

    def pad(self, x: Tensor) -> Tensor:
        return x

    def pad_heads(self, x: Tensor) -> Tensor:
        """(B, T, H, Dh) → (B, H, T, Dh)."""
        return x.transpose(1, 2)

    def unpad(self, x: Tensor) -> Tensor:
        return x

    def key_mask(self) -> Tensor | None:
        """(B, T), True where a position may be looked at; None when all may."""
        return self.mask

    def select(self, rows: Tensor) -> Padded:
        """The layout of these rows alone."""
        mask = None if self.mask is None else self.mask.index_select(0, rows)
        return Padded(self.lengths[rows.cpu()], self.longest, mask)

    def append(self, other: Padded, device: torch.device) -> Padded:
        """The layout of these rows and those of another one behind them, padded to the longest of both."""
        return Padded.of(torch.cat([self.lengths, other.lengths]), device, max(self.longest, other.longest))


@dataclass(frozen=True)
class Packed:
    """(N, …): sequences end to end."""

    offsets: Tensor  # (B + 1,) int32 on the device: where each sequence begins, and N
    index: Tensor  # (N,) position of each token in its sequence
    slots: Tensor  # (N,) where each token stands in a flattened (B · longest) padded tensor
    batch: int
    longest: int
    real: Tensor | None = None  # (N,) False at what fills a batch up to a fixed N; None: all are real

    @staticmethod
    def of(
        lengths: Sequence[int] | np.ndarray | Tensor,
        device: torch.device | str = "cpu",
        *,
        longest: int | None = None,
    ) -> Packed:
        """The layout of sequences with these lengths, one after the other."""
        counts = np.asarray(lengths, dtype=np.int64)
        offsets = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        index = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        width = int(counts.max()) if longest is None else longest
        slots = np.repeat(np.arange(len(counts)) * width, counts) + index
        return Packed(
            torch.from_numpy(offsets.astype(np.int32)).to(device),
            torch.from_numpy(index).to(device),
            torch.from_numpy(slots).to(device),
            len(counts),
            width,
        )

    def positions(self, device: torch.device) -> Tensor:
        """(N,): the index of each position in its sequence."""
        return self.index

    @property
    def full(self) -> bool:
        """Whether every sequence has the longest length, so that padding is a view."""
        return self.index.shape[0] == self.batch * self.longest

    def pad(self, x: Tensor) -> Tensor:
        """(N, …) → (B, longest, …), zeros where nothing is."""
        if self.full:
            return x.view(self.batch, self.longest, *x.shape[1:])
        if _fetches(x):
            return _fetch(x, self._tokens())
        flat = x.new_zeros(self.batch * self.longest, *x.shape[1:]).index_copy(0, self.slots, x)
        return flat.view(self.batch, self.longest, *x.shape[1:])

    def pad_heads(self, x: Tensor) -> Tensor:
        """(N, H, Dh) → (B, H, longest, Dh), zeros where nothing is.

        Without gradients on the CPU they lie position by position, (longest, B, H, Dh) in memory: there B and H are one
        axis, and a batched product takes them as they are. Sentence by sentence, it would copy them all once more.
        """
        if self.full or not _fetches(x):
            return self.pad(x).transpose(1, 2)
        return _fetch(x, self._tokens().t()).permute(1, 2, 0, 3)

    def _tokens(self) -> Tensor:
        """(B, longest): which of the N stands there, −1 where none does."""
        tokens = self.slots.new_full((self.batch * self.longest,), -1)
        return tokens.index_copy_(0, self.slots, torch.arange(len(self.slots))).view(self.batch, self.longest)

    def unpad(self, x: Tensor) -> Tensor:
        """(B, longest, …) → (N, …)."""
        flat = x.reshape(self.batch * self.longest, *x.shape[2:])
        return flat if self.full else flat.index_select(0, self.slots)

    def spread(self, values: Tensor) -> Tensor:
        """(B, …) → (N, …): what is said of each sequence, at each of its tokens."""
        return values.index_select(0, self.slots // self.longest)

    def within(self, steps: Tensor) -> Tensor:
        """(N, k): whether so many tokens further on (k,), or back where it is less than 0, its sequence still is."""
        there = self.index[:, None] + steps  # (N, k)
        return (there >= 0) & (there < self.spread(self.offsets.diff())[:, None])

    @property
    def lengths(self) -> Tensor:
        """(B,) on the host."""
        return self.offsets.diff().to("cpu", torch.int64)

    @cached_property
    def steps(self) -> Steps:
        """How a recurrence goes through it, padded: on the host, found once for all layers."""
        return Steps.of(self.lengths, self.longest)

    def key_mask(self) -> Tensor | None:
        """(B, longest), True where a padded tensor is real; None when all is."""
        if self.full:
            return None
        lengths = self.offsets.diff()
        return torch.arange(self.longest, device=lengths.device)[None, :] < lengths[:, None]


def _fetches(x: Tensor) -> bool:
    """Whether to fetch rows is possible, and faster than to place them: on the CPU, where no gradient must go back."""
    return len(x) > 0 and x.device.type == "cpu" and not torch.is_grad_enabled()


def _fetch(x: Tensor, tokens: Tensor) -> Tensor:
    """Rows (…, ·) of x (N, ·), zeros where the token is −1."""
    wanted = tokens.flatten()
    rows = x.index_select(0, wanted.clamp(min=0)).index_fill_(0, (wanted < 0).nonzero()[:, 0], 0)
    return rows.view(*tokens.shape, *x.shape[1:])


Layout = Padded | Packed
