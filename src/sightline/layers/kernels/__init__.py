"""Triton kernels, and checks of what this machine supports."""

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
    """True if Triton is installed, with the C compiler and Python headers that it needs to build launchers."""
    compiler = os.environ.get("CC", shutil.which("gcc") or shutil.which("clang"))
    scheme = sysconfig.get_default_scheme().replace(
        "posix_local", "posix_prefix"
    )  # Debian's posix_local has no headers
    headers = Path(sysconfig.get_path("include", scheme), "Python.h").exists()
    include_path = any(os.environ.get(name) for name in ("CPATH", "C_INCLUDE_PATH"))
    return find_spec("triton") is not None and bool(compiler) and (headers or include_path)


TRITON = _triton_runs()
DEVICE = "cuda"  # tests without CUDA interpret the kernels on the CPU
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def supports_triton(x: Tensor) -> bool:
    """True if the Triton kernels, which compute in float32, support this device and dtype."""
    return x.device.type == DEVICE and x.dtype in _TYPES and TRITON


@functools.cache
def cpu_multiplies_bfloat16() -> bool:
    """True if the CPU has matrix instructions for bfloat16; without them its products are slower than float32's."""
    if not torch.backends.mkldnn.is_available():
        return False
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def product_type(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of matrix products in prediction for `--precision`; raises if the device does not support it."""
    if precision not in ("float32", "bf16"):
        raise ValueError(f"precision {precision!r} is not known; use float32 or bf16")
    if precision == "float32":
        return torch.float32
    if device.type != "cpu":
        raise ValueError(
            f"precision bf16 is for the CPU; on {device.type} products are rounded (TF32) already: leave it out"
        )
    if not cpu_multiplies_bfloat16():
        raise ValueError("precision bf16 was requested, but this CPU has no bfloat16 matrix products; leave it out")
    return torch.bfloat16
