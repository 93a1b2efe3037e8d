"""Sentences side by side: which of them go together, and padding behind the shorter ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.text.tokenizer import PAD


def pad_tokens(sequences: Sequence[Sequence[int]], device: torch.device | str) -> Tensor:
    """(B, longest), PAD behind shorter ones."""
    longest = max(len(sequence) for sequence in sequences)
    rows = [list(sequence) + [PAD] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64).to(device)


def length_batches(lengths: Sequence[int], tokens: int, threads: int = 1) -> list[list[int]]:
    """Indices in batches of at most so many padded tokens, longest sentences first.

    Several batches are made a multiple of `threads`, as even as can be.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches = _cut(order, lengths, tokens)
    wanted = -(-len(batches) // threads) * threads
    if len(batches) > 1:
        low, high = 0, tokens  # the smallest budget that gives no more batches
        while high - low > max(1, tokens // 64):
            middle = (low + high) // 2
            if len(_cut(order, lengths, middle)) <= wanted:
                high = middle
            else:
                low = middle
        batches = _cut(order, lengths, high)
    return batches


def _cut(order: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for index in order:
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
