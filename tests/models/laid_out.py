"""Sequences of tokens as a batch: padded, or packed end to end."""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.layers.layout import Packed, Padded


def padded(sequences: list[list[int]]) -> tuple[Tensor, Padded]:
    longest = max(map(len, sequences))
    rows = [sequence + [0] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(rows), Padded.of([len(sequence) for sequence in sequences])


def packed(sequences: list[list[int]]) -> tuple[Tensor, Packed]:
    joined = [token for sequence in sequences for token in sequence]
    return torch.tensor(joined), Packed.of([len(sequence) for sequence in sequences])
