"""Freed memory is kept, where glibc can be asked for it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from sightline.layers.devices import keep_freed_memory
torch.set_num_threads(1)
granted = keep_freed_memory()
def step():
    for _ in range(3):
        torch.ones(2_000_000).add_(1)  # 8 MB
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(granted, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**more: str) -> tuple[str, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | more
    done = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True)
    granted, count = done.stdout.split()
    return granted, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked to keep freed memory")
def test_a_step_finds_the_memory_of_the_one_before() -> None:
    granted, kept = faults()
    theirs, given_back = faults(MALLOC_MMAP_THRESHOLD_="65536")  # the user's word stands
    assert (granted, theirs) == ("True", "False")
    assert given_back > 10_000  # 15 times 8 MB in pages of 4 kB
    assert kept < given_back / 4  # the heap may still grow once or twice
