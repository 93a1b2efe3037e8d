"""Dropout, with cheaper randomness on the CPU.

PyTorch draws one float for each element on the CPU, on one thread: 6% of a Transformer's training step in float32. Here
sixteen bits decide each element, four elements from one 64-bit draw of the same generator: a third of the time, in
bfloat16 a sixth (two cores, Zen 5). The probability is rounded to a multiple of 2⁻¹⁶ and the scale is that of the
rounded one, so the mean is kept exactly (in bfloat16 up to the rounding of the scale, as PyTorch's).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_STEPS = 1 << 16


def keep_mask(shape: torch.Size, probability: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Float32 or bfloat16 on the CPU: 0 with (about) that probability, else the scale that keeps the mean at one."""
    count = shape.numel()
    dropped = min(round(probability * _STEPS), _STEPS - 1)
    if not dropped:
        return torch.ones(shape, dtype=dtype)
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    last = dropped - 1 - _STEPS // 2  # the highest number that means "dropped"
    kept = bits.clamp_(last, last + 1).sub_(last)  # 1 or 0, by operations that are vectorized (comparisons are not)
    scale = torch.tensor(_STEPS / (_STEPS - dropped), dtype=dtype)
    if dtype == torch.bfloat16:
        return kept.mul_(scale.view(torch.int16)).view(dtype).view(shape)  # the bits of the scale, or zero
    return kept.to(dtype).mul_(scale).view(shape)


def _cheap(x: Tensor) -> bool:
    known = x.dtype in (torch.float32, torch.bfloat16)
    return x.device.type == "cpu" and known and not torch.compiler.is_compiling()


class Dropout(nn.Module):
    """Zeros some elements while training (Srivastava et al. 2014)."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.probability:
            return x
        if _cheap(x):
            return x * keep_mask(x.shape, self.probability, x.dtype)
        return nn.functional.dropout(x, self.probability)

    def add(self, x: Tensor, addition: Tensor) -> Tensor:
        """x + dropout(addition), in one pass where that is possible."""
        if self.training and self.probability and _cheap(addition) and x.dtype == addition.dtype:
            return torch.addcmul(x, addition, keep_mask(addition.shape, self.probability, addition.dtype))
        return x + self(addition)
