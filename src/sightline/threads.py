"""How the threads of PyTorch wait for their next operation, so that two trainings can share a machine.

An operation on the CPU runs on all threads of an OpenMP pool, then they wait for the next one. By default GNU OpenMP
(in the wheels for Linux) has them spin before they sleep: 300,000 turns of a loop, 11 ms on an AMD EPYC. Beside another
training they keep working threads from their cores, and those are what the spinning ones of the other pool wait for.
Sleeping at once (OMP_WAIT_POLICY=passive) is good for two, but slows one down by 15 to 20%: an operation of a small
model takes microseconds, and so does waking a thread.

So on a free machine they spin for a fifth of a millisecond, to cover the gaps between the operations of a step, and
where other programs compute when the command starts they sleep at once. How threads wait changes no result. Their
number does (sums are taken in another order), so it does not follow the load: it is PyTorch's choice, OMP_NUM_THREADS
or `training.threads`. benchmarks/busy_machine.py measures trainings alone and side by side.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path

FREE, BUSY = "5000", "0"  # turns of the loop
# what a user, or the process that started this one, may have chosen
_CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY", "SIGHTLINE_SPINCOUNT")
_LOOKS, _PAUSE = 5, 0.005  # looks at the load, and seconds between them
_LOAD = Path("/proc/loadavg")


def choose_waiting(environment: MutableMapping[str, str], busy: Callable[[], bool] | None = None) -> str | None:
    """Set GOMP_SPINCOUNT by the load found, unless somebody has chosen; what was set.

    The library reads it when PyTorch is imported, and never again. Other OpenMP libraries ignore it.
    """
    if "torch" in sys.modules or any(name in environment for name in _CHOSEN):
        return None
    environment["GOMP_SPINCOUNT"] = BUSY if (busy or machine_is_busy)() else FREE
    return environment["GOMP_SPINCOUNT"]


def machine_is_busy() -> bool:
    """Whether other threads that want to run take half of this machine's cores or more; False where nobody knows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = []
    for number in range(_LOOKS):
        if number:
            time.sleep(_PAUSE)
        if (running := _running()) is None:
            return False
        found.append(running)
    return sum(found) / len(found) >= cores / 2


def _running() -> int | None:
    """How many other threads run or wait for a core now: the fourth field of /proc/loadavg, without this one."""
    try:
        return max(0, int(_LOAD.read_text(encoding="ascii").split()[3].split("/")[0]) - 1)
    except (OSError, ValueError, IndexError):
        return None
