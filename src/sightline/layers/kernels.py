"""Whether kernels written in Triton can run."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

TRITON = find_spec("triton") is not None  # PyTorch's CUDA builds bring it along
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def triton_takes(x: Tensor) -> bool:
    """Whether a kernel of ours, which computes in float32, can stand in for operations on this."""
    return x.device.type == "cuda" and x.dtype in _TYPES and TRITON
