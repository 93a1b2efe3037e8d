"""The precision of matrix products in training: bfloat16, float16 with loss scaling, or float32.

Weights, gradients and the optimizer stay in float32 (`torch.autocast`; Micikevicius et al. 2018).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from sightline.layers.kernels import cpu_multiplies_bfloat16

Precision = Literal["float32", "bf16", "fp16"]
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def best_precision(device: torch.device) -> tuple[Precision, str]:
    """The fastest precision that this device supports in hardware, and why it is that one."""
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
    """What `auto` means here, or why a precision asked for by name is not used or is slow; None if it is fine."""
    best, reason = best_precision(device)
    used = resolve_precision(name, device)
    if name == "auto":
        return f"training.precision: auto is {best} here: {reason}"
    if name in ("float32", best):
        return None
    if used != name:
        return f"training.precision: {name} is left undone: this CPU has no products of bfloat16; {used} it is"
    if device.type == "cuda" and best == "bf16":
        return None  # fp16 is as fast
    return f"training.precision: {name} is slow on {device}: {reason}; precision: auto takes {best} here"


def autocast(name: str, device: torch.device) -> AbstractContextManager[Any]:
    """Matrix products in the precision of that name, as far as the device supports it."""
    used = resolve_precision(name, device)
    return nullcontext() if used == "float32" else torch.autocast(device.type, _AUTOCAST[used])
