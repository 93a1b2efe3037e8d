"""Memory that was freed is kept for the next step (glibc).

A step of training or decoding makes tensors of megabytes and frees them. By default glibc gives such memory back to
the system and has it back a moment later, page by page, each page faulted in and cleared anew: a tenth of the time of
decoding on the CPU. Up to a gigabyte is kept instead.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_… in malloc.h
_KEPT = 2**30  # bytes


def keep_freed_memory() -> bool:
    """Ask for it, unless the user has set malloc in the environment; whether it was granted. For the whole process."""
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    if os.name != "posix":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "gnu_get_libc_version"):
        return False
    return all(libc.mallopt(option, _KEPT) == 1 for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
