"""Which kernels this machine can run: ours, written in Triton, and the CPU's products of bfloat16."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor


def _triton_runs() -> bool:
    """Whether Triton is installed and can launch kernels: for that it builds modules in C, against Python's headers."""
    compiler = os.environ.get("CC", shutil.which("gcc") or shutil.which("clang"))
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # Debian has no headers in the first
    headers = Path(sysconfig.get_path("include", scheme), "Python.h").exists()
    elsewhere = any(os.environ.get(name) for name in ("CPATH", "C_INCLUDE_PATH"))
    return find_spec("triton") is not None and bool(compiler) and (headers or elsewhere)


TRITON = _triton_runs()  # PyTorch's CUDA builds bring it along, minimal systems no compiler
DEVICE = "cuda"  # the kind they run on; tests without one have Triton interpret them on the CPU
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def triton_takes(x: Tensor) -> bool:
    """Whether a kernel of ours, which computes in float32, can stand in for operations on this."""
    return x.device.type == DEVICE and x.dtype in _TYPES and TRITON


@functools.cache
def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for products of bfloat16; without them these are slower than float32's."""
    if not torch.backends.mkldnn.is_available():
        return False
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def product_type(precision: str, device: torch.device) -> torch.dtype:
    """Of the products of a model that predicts, by its name; what this machine cannot have is refused."""
    if precision not in ("float32", "bf16"):
        raise ValueError(f"precision {precision!r} is not known; use float32 or bf16")
    if precision == "float32":
        return torch.float32
    if device.type != "cpu":
        raise ValueError(
            f"precision bf16 is for the CPU; on {device.type} products are rounded (TF32) already: leave it out"
        )
    if not cpu_multiplies_bfloat16():
        raise ValueError("precision bf16 was asked for, and this CPU has no products of bfloat16; leave it out")
    return torch.bfloat16
