"""Sources of several lengths, made by chance, always the same."""

from __future__ import annotations

import torch


def many_sources(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [torch.randint(4, 13, (length,), generator=generator).tolist() for length in lengths]
