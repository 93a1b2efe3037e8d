"""Time and memory of one call, and what every result records: the machine, as JSON."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def seconds_of(
    step: Callable[[], Any], device: torch.device, cpu_clock: Callable[[], float] = time.process_time
) -> float:
    """Seconds of one step; on a CPU processor time, which other programs hardly change."""
    cuda = device.type == "cuda"
    clock = time.perf_counter if cuda else cpu_clock
    if cuda:
        torch.cuda.synchronize(device)
    start = clock()
    step()
    if cuda:
        torch.cuda.synchronize(device)
    return clock() - start


def peak_bytes(step: Callable[[], Any], device: torch.device) -> int:
    """The most bytes allocated at once during a step, beyond those allocated before it."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    assert recorded.profiler is not None
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def machine() -> dict[str, Any]:
    """Versions, the processor and the CUDA device."""
    about = {"torch": torch.__version__, "python": platform.python_version(), "processor": _processor()}
    return about | ({"cuda": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def write_json(path: Path | None, content: Any) -> None:
    """Write a result, if a path was given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
