"""State of convolutional decoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sightline.models.protocol import check_step, keep_rows, select_hypotheses


@dataclass(frozen=True)
class ConvolutionalState:
    """Last inputs of each causal convolution for B sentences with W hypotheses each, and the source."""

    recent: tuple[Tensor, ...]  # (B, W, reach, I) each; () for packed targets, which are processed at once
    source: Any = None  # what the decoder reads of the source, with methods `keep` and `append`; None without a source
    length: int = 0  # tokens of the longest row so far
    left_padding: Tensor | None = None  # (B, 1) by how many tokens each row is shorter; None: 0

    @staticmethod
    def empty(reaches: Sequence[int], batch: int, inputs: int, like: Tensor) -> ConvolutionalState:
        """The state before the first token: zeros."""
        return ConvolutionalState(tuple(like.new_zeros(batch, 1, reach, inputs) for reach in reaches))

    @property
    def shape(self) -> tuple[int, int]:
        """(B, W)."""
        sentences, width = self.recent[0].shape[:2]
        return sentences, width

    def rows(self, tokens: int) -> list[Tensor]:
        """The last inputs (B·W, reach, I) of each convolution, for a step over this number of tokens per row."""
        check_step(self.shape[1], tokens)
        return [part.flatten(0, 1) for part in self.recent]

    def advanced(self, rows: Sequence[Tensor], tokens: int) -> ConvolutionalState:
        """The state after a step, with new last inputs (B·W, reach, I) of each convolution."""
        recent = tuple(part.unflatten(0, self.shape) for part in rows)
        return replace(self, recent=recent, length=self.length + tokens)

    def positions(self, tokens: int) -> Tensor:
        """(1 or B, T): positions of the next tokens."""
        positions = torch.arange(self.length, self.length + tokens, device=self.recent[0].device)[None, :]
        return positions if self.left_padding is None else positions - self.left_padding

    def select(self, parents: Tensor) -> ConvolutionalState:
        return replace(self, recent=tuple(select_hypotheses(part, parents) for part in self.recent))

    def keep(self, sentences: Tensor) -> ConvolutionalState:
        return ConvolutionalState(
            tuple(part.index_select(0, sentences) for part in self.recent),
            None if self.source is None else self.source.keep(sentences),
            self.length,
            keep_rows(self.left_padding, sentences),
        )

    def append(self, other: ConvolutionalState) -> ConvolutionalState:
        recent = tuple(torch.cat(parts) for parts in zip(self.recent, other.recent, strict=True))
        source = None if self.source is None or other.source is None else self.source.append(other.source)
        return ConvolutionalState(recent, source, *_join_lengths(self, other))


def _join_lengths(*states: ConvolutionalState) -> tuple[int, Tensor | None]:
    """`length` and `left_padding` of joined states, with last tokens aligned."""
    unused = [0 if state.left_padding is None else int(state.left_padding.min()) for state in states]
    longest = max(state.length - drop for state, drop in zip(states, unused, strict=True))
    if all(state.left_padding is None and state.length == longest for state in states):
        return longest, None
    device = states[0].recent[0].device
    paddings = [
        torch.zeros(state.shape[0], 1, dtype=torch.int64, device=device)
        if state.left_padding is None
        else state.left_padding
        for state in states
    ]
    return longest, torch.cat([part + (longest - state.length) for part, state in zip(paddings, states, strict=True)])
