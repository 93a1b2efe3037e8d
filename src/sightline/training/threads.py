"""The number of CPU threads of a training, by the load of other programs when it starts.

Two trainings that each use all cores spend most of their time waiting for each other: an operation ends when its
slowest thread ends, and that thread waits for a core. Half of the cores for each is several times faster.
benchmarks/busy_machine.py measures this.

The number of threads changes the order of sums and so the last bits of the weights. It is therefore chosen once, when a
training starts, and saved in the recipe of the run: a resumed training uses the same number.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_SHORTEST = 0.4  # seconds; shorter measurements of the load are mostly noise
_CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # the user, or a sweep, has chosen a number


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds on the cores that this process may use, by everybody and by this process, at one time."""

    at: float
    everybody: float
    this: float

    @classmethod
    def now(cls) -> CpuTimes | None:
        """The current times; None where the system does not report them."""
        try:
            cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
            rows = [line.split() for line in _STAT.read_text(encoding="ascii").splitlines()]
            ticks = os.sysconf("SC_CLK_TCK")
        except (AttributeError, OSError, ValueError):
            return None
        # user, nice, system, idle, iowait, irq, softirq
        busy = [sum(int(row[field]) for field in (1, 2, 3, 6, 7)) / ticks for row in rows if row[0] in cores]
        if len(busy) != len(cores):
            return None
        times = os.times()
        return cls(time.monotonic(), sum(busy), times.user + times.system + times.children_user + times.children_system)


def busy_cores(since: CpuTimes | None) -> float:
    """How many cores other programs kept busy, on average, since then; 0 where the system does not report it."""
    if since is None:
        return 0.0
    time.sleep(max(0.0, _SHORTEST - (time.monotonic() - since.at)))
    now = CpuTimes.now()
    if now is None:
        return 0.0
    return max(0.0, (now.everybody - since.everybody) - (now.this - since.this)) / (now.at - since.at)


def share_of_threads(default: int, load: float) -> int:
    """Half of the default number of threads where other programs compute, else all of them.

    Programs compute where they keep an eighth of the cores busy, and at least half a core: a second training that
    starts at the same time is still reading its text, on one core.
    """
    return max(1, default // 2) if load >= max(0.5, default / 8) else default


def threads_by_load(
    default: int,
    since: CpuTimes | None,
    environment: Mapping[str, str],
    measure: Callable[[CpuTimes | None], float] = busy_cores,
) -> tuple[int, str] | None:
    """A smaller number of threads than the default and the note for the user; None if the default fits."""
    if default == 1 or any(name in environment for name in _CHOSEN):
        return None
    load = measure(since)
    threads = share_of_threads(default, load)
    if threads == default:
        return None
    return threads, (
        f"other programs keep {load:.1f} cores busy, so this training uses {threads} of {default} CPU threads; "
        f"training.threads={default} uses all of them"
    )


FREE, BUSY = "5000", "0"  # iterations of the waiting loop
# set by a user, or by the process that started this one
_CHOSEN_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY", "SIGHTLINE_SPINCOUNT")
_READINGS, _PAUSE = 5, 0.005  # of the load, and seconds between them
_LOAD = Path("/proc/loadavg")


def choose_waiting(environment: MutableMapping[str, str], busy: Callable[[], bool] | None = None) -> str | None:
    """Set GOMP_SPINCOUNT by the load of the machine unless the user has set one; returns what was set.

    The library reads it when PyTorch is imported, and never again. Other OpenMP libraries ignore it.
    """
    if "torch" in sys.modules or any(name in environment for name in _CHOSEN_WAITING):
        return None
    environment["GOMP_SPINCOUNT"] = BUSY if (busy or machine_is_busy)() else FREE
    return environment["GOMP_SPINCOUNT"]


def machine_is_busy() -> bool:
    """True if other runnable threads need half of the cores or more; False if the system does not report it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loads = []
    for number in range(_READINGS):
        if number:
            time.sleep(_PAUSE)
        if (running := _running()) is None:
            return False
        loads.append(running)
    return sum(loads) / len(loads) >= cores / 2


def _running() -> int | None:
    """How many other threads run or wait for a core now: the fourth field of /proc/loadavg, without this one."""
    try:
        return max(0, int(_LOAD.read_text(encoding="ascii").split()[3].split("/")[0]) - 1)
    except (OSError, ValueError, IndexError):
        return None
