"""Layouts of batches: where the sequences in a tensor begin and end.

Position-wise layers ignore the layout; attention, convolution, recurrence and pooling use it.

- `Padded`: a tensor (B, T, …) whose row b has `lengths[b]` real positions.
- `Packed`: a tensor (N, …) of all sequences end to end, without padding. A last dummy sequence may fill the batch up to
  a fixed N, so that compiled steps have static shapes.
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
    """Token order of torch's PackedSequence: all first tokens, all second tokens, …, longer sequences first."""

    sizes: Tensor  # (T,) on the host: number of sequences at each step
    places: Tensor  # (N,) index of each token in a flattened (B · T) tensor
    ranks: Tensor  # (B,) rank of each sequence by length

    @staticmethod
    def of(lengths: Tensor, longest: int) -> Steps:
        """The order for rows of these lengths, on the host; an empty row counts as one token."""
        rows = np.maximum(lengths.numpy(), 1)
        order = np.argsort(-rows, kind="stable")
        step = np.arange(rows.max())[:, None]
        real = step < rows[order]  # (T, B)
        parts = (real.sum(1), (order * longest + step)[real], np.argsort(order))
        with torch.inference_mode(False):  # layouts cached in inference mode may be used in training
            return Steps(*map(torch.from_numpy, parts))

    def to(self, device: torch.device) -> Steps:
        """Copy to a device without blocking."""
        if device.type == "cpu":
            return self
        pinned = [part.pin_memory() for part in self[1:]] if device.type == "cuda" else self[1:]
        places, ranks = (part.to(device, non_blocking=True) for part in pinned)
        return Steps(self.sizes, places, ranks)


@dataclass(frozen=True)
class Padded:
    """(B, T, …): row b is real up to its length."""

    lengths: Tensor  # (B,) on the host
    longest: int
    mask: Tensor | None  # (B, T) on the device, True where real; None when every row is full

    @staticmethod
    def of(lengths: Sequence[int] | Tensor, device: torch.device | str = "cpu", longest: int | None = None) -> Padded:
        """The layout of rows of these lengths."""
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
        """True if there is no padding."""
        return self.mask is None

    @cached_property
    def steps(self) -> Steps:
        """Token order of recurrent layers, cached, on the host."""
        return Steps.of(self.lengths, self.longest)

    def positions(self, device: torch.device) -> Tensor:
        """(1, T): position of each token in its sequence."""
        return torch.arange(self.longest, device=device)[None, :]

    def pad(self, x: Tensor) -> Tensor:
        return x

    def pad_heads(self, x: Tensor) -> Tensor:
        """(B, T, H, Dh) → (B, H, T, Dh)."""
        return x.transpose(1, 2)

    def unpad(self, x: Tensor) -> Tensor:
        return x

    def key_mask(self) -> Tensor | None:
        """(B, T), True at real positions; None if all are real."""
        return self.mask

    def select(self, rows: Tensor) -> Padded:
        """The layout of these rows."""
        mask = None if self.mask is None else self.mask.index_select(0, rows)
        return Padded(self.lengths[rows.cpu()], self.longest, mask)

    def append(self, other: Padded, device: torch.device) -> Padded:
        """The layout of the rows of both, padded to the longer one."""
        return Padded.of(torch.cat([self.lengths, other.lengths]), device, max(self.longest, other.longest))


@dataclass(frozen=True)
class Packed:
    """(N, …): sequences end to end."""

    offsets: Tensor  # (B + 1,) int32 on the device: first token of each sequence, and N
    index: Tensor  # (N,) position of each token in its sequence
    slots: Tensor  # (N,) index of each token in a flattened padded tensor (B · longest)
    batch: int
    longest: int
    real: Tensor | None = None  # (N,) False at the dummy tokens of a fixed N; None: all are real

    @staticmethod
    def of(
        lengths: Sequence[int] | np.ndarray | Tensor,
        device: torch.device | str = "cpu",
        *,
        longest: int | None = None,
    ) -> Packed:
        """The layout of sequences of these lengths."""
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
        """(N,): position of each token in its sequence."""
        return self.index

    @property
    def full(self) -> bool:
        """True if all sequences have the maximum length, so that `pad` is a view."""
        return self.index.shape[0] == self.batch * self.longest

    def pad(self, x: Tensor) -> Tensor:
        """(N, …) → (B, longest, …), zeros at padding."""
        if self.full:
            return x.view(self.batch, self.longest, *x.shape[1:])
        if _can_gather(x):
            return _gather(x, self._tokens())
        flat = x.new_zeros(self.batch * self.longest, *x.shape[1:]).index_copy(0, self.slots, x)
        return flat.view(self.batch, self.longest, *x.shape[1:])

    def pad_heads(self, x: Tensor) -> Tensor:
        """(N, H, Dh) → (B, H, longest, Dh), zeros at padding.

        Without gradients on the CPU the memory order is (longest, B, H, Dh), so that a batched product can merge B and
        H without a copy.
        """
        if self.full or not _can_gather(x):
            return self.pad(x).transpose(1, 2)
        return _gather(x, self._tokens().t()).permute(1, 2, 0, 3)

    def _tokens(self) -> Tensor:
        """(B, longest): index of each token among N, −1 at padding."""
        tokens = self.slots.new_full((self.batch * self.longest,), -1)
        return tokens.index_copy_(0, self.slots, torch.arange(len(self.slots))).view(self.batch, self.longest)

    def unpad(self, x: Tensor) -> Tensor:
        """(B, longest, …) → (N, …)."""
        flat = x.reshape(self.batch * self.longest, *x.shape[2:])
        return flat if self.full else flat.index_select(0, self.slots)

    def spread(self, values: Tensor) -> Tensor:
        """(B, …) → (N, …): repeat the value of each sequence for its tokens."""
        return values.index_select(0, self.slots // self.longest)

    def within(self, steps: Tensor) -> Tensor:
        """(N, k): True if the token at a relative position `steps` (k,) is in the same sequence."""
        index = self.index[:, None] + steps  # (N, k)
        return (index >= 0) & (index < self.spread(self.offsets.diff())[:, None])

    @property
    def lengths(self) -> Tensor:
        """(B,) on the host."""
        return self.offsets.diff().to("cpu", torch.int64)

    @cached_property
    def steps(self) -> Steps:
        """Token order of recurrent layers over the padded batch, cached, on the host."""
        return Steps.of(self.lengths, self.longest)

    def key_mask(self) -> Tensor | None:
        """(B, longest), True at real positions of the padded tensor; None if all are real."""
        if self.full:
            return None
        lengths = self.offsets.diff()
        return torch.arange(self.longest, device=lengths.device)[None, :] < lengths[:, None]


def _can_gather(x: Tensor) -> bool:
    """True on the CPU without gradients, where gathering rows is faster than scattering."""
    return len(x) > 0 and x.device.type == "cpu" and not torch.is_grad_enabled()


def _gather(x: Tensor, tokens: Tensor) -> Tensor:
    """Rows `tokens` (…) of x (N, ·) → (…, ·), zeros where the token is −1."""
    index = tokens.flatten()
    rows = x.index_select(0, index.clamp(min=0)).index_fill_(0, (index < 0).nonzero()[:, 0], 0)
    return rows.view(*tokens.shape, *x.shape[1:])


Layout = Padded | Packed
