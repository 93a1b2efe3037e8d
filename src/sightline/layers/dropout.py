"""Dropout, with cheaper randomness on the CPU.

PyTorch draws one float for each element on the CPU, on one thread: 6% of a Transformer's training step. Here sixteen
bits decide each element, four elements from one 64-bit draw of the same generator. The probability is rounded to a
multiple of 2⁻¹⁶ and the scale is that of the rounded one, so the mean is kept exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_STEPS = 1 << 16


def keep_mask(shape: torch.Size, probability: float) -> Tensor:
    """Float32 on the CPU: 0 with (about) that probability, else what keeps the mean at one."""
    count = shape.numel()
    dropped = min(round(probability * _STEPS), _STEPS - 1)
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    kept = bits >= dropped - _STEPS // 2
    return kept.to(torch.float32).mul_(_STEPS / (_STEPS - dropped)).view(shape)


def _cheap(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()


class Dropout(nn.Module):
    """Zeros some elements while training (Srivastava et al. 2014)."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.probability:
            return x
        if _cheap(x):
            return x * keep_mask(x.shape, self.probability)
        return nn.functional.dropout(x, self.probability)

    def add(self, x: Tensor, addition: Tensor) -> Tensor:
        """x + dropout(addition), in one pass where that is possible."""
        if self.training and self.probability and _cheap(addition) and x.dtype == torch.float32:
            return torch.addcmul(x, addition, keep_mask(addition.shape, self.probability))
        return x + self(addition)
