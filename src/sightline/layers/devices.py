"""Devices, the precision of matrix products (Micikevicius et al. 2018), and deterministic kernels.

Weights, gradients and the optimizer stay in float32 (`torch.autocast`); products may be in bfloat16 or float16.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from sightline.layers.kernels import cpu_multiplies_bfloat16

DEVICES = ("cpu", "cuda", "mps")
_KNOWN = "auto, cpu, cuda, cuda:N or mps"


def choose_device(name: str) -> torch.device:
    """Parse a device name; `auto` is CUDA if available, else the CPU (never MPS, which is untested)."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"there is no device {name!r}; use {_KNOWN}") from error
    if device.type not in DEVICES:
        raise ValueError(f"device {name} is not supported; use {_KNOWN}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name} was requested, but PyTorch finds no CUDA device; use cpu or auto")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device {name} was requested, but PyTorch finds no Apple GPU; use cpu or auto")
    if device.type != "cuda" and device.index:
        raise ValueError(f"device {name} was requested, but there is only one {device.type}; use {device.type}")
    if device.index is not None and device.type == "cuda":
        if device.index >= (count := torch.cuda.device_count()):
            raise ValueError(
                f"device {name} was requested, but the last one here is cuda:{count - 1}; take one of those"
            )
        torch.cuda.set_device(device)  # Triton launches kernels on the current device, not on that of the tensors
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN's attention builds a new plan for each shape
    return device


def fork_rng(device: torch.device) -> AbstractContextManager[None]:
    """Restore the random states of the CPU and of the device after the block."""
    devices, kind = ([], "cuda") if device.type == "cpu" else ([device], device.type)
    return torch.random.fork_rng(devices, device_type=kind)


def widest(x: Tensor) -> Tensor:
    """x in float64, or in float32 on MPS, which has no float64."""
    return x.float() if x.device.type == "mps" else x.double()


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Inside the block PyTorch uses deterministic kernels only, and raises if an operation has none."""
    if not enabled:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS first runs in this process
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_… in malloc.h
_KEPT = 2**30  # bytes


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for this process instead of returning it to the system; returns True on success.

    Does nothing if the environment configures malloc.
    """
    if os.name != "posix" or any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "gnu_get_libc_version"):
        return False
    return all(libc.mallopt(option, _KEPT) == 1 for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))


Precision = Literal["float32", "bf16", "fp16"]
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def best_precision(device: torch.device) -> tuple[Precision, str]:
    """The fastest precision that this device supports in hardware, and the reason."""
    if device.type == "cpu":
        if cpu_multiplies_bfloat16():
            return "bf16", "this CPU multiplies bfloat16"
        return "float32", "this CPU has no instructions for bfloat16"
    if device.type != "cuda":
        return "float32", f"mixed precision on {device.type} is untested"
    if torch.version.hip is not None:
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", "this GPU multiplies bfloat16") if native else ("fp16", "this GPU only emulates bfloat16")
    major, minor = torch.cuda.get_device_capability(device)
    capability = f"compute capability {major}.{minor}"
    if major >= 8:
        return "bf16", f"{capability} multiplies bfloat16"
    if major == 7:
        return "fp16", f"{capability} has tensor cores for float16 and only emulates bfloat16"
    return "float32", f"{capability} has no tensor cores"


def resolve_precision(name: str, device: torch.device) -> Precision:
    """The precision that training uses on this device: `auto` by capability; bf16 on a CPU without it is float32."""
    if name == "auto" or (name == "bf16" and device.type == "cpu" and not cpu_multiplies_bfloat16()):
        return best_precision(device)[0]
    if name not in ("float32", "bf16", "fp16"):
        raise ValueError(f"precision {name!r} is not known; use auto, float32, bf16 or fp16")
    return name  # type: ignore[return-value]


def precision_note(name: str, device: torch.device) -> str | None:
    """Explain what `auto` means on this device, or why a named precision is not used or is slow; None if it is fine."""
    best, reason = best_precision(device)
    used = resolve_precision(name, device)
    if name == "auto":
        return f"training.precision: auto is {best} here: {reason}"
    if name in ("float32", best):
        return None
    if used != name:
        return f"training.precision: {name} is not used: this CPU has no instructions for bfloat16; using {used}"
    if device.type == "cuda" and best == "bf16":
        return None  # fp16 is as fast
    return f"training.precision: {name} is slow on {device}: {reason}; precision: auto takes {best} here"


def autocast(name: str, device: torch.device) -> AbstractContextManager[Any]:
    """Autocast for a precision name, as far as the device supports it."""
    used = resolve_precision(name, device)
    return nullcontext() if used == "float32" else torch.autocast(device.type, _AUTOCAST[used])
