"""How a training is asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(Exception):
    """Training was asked to stop; everything is saved."""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM ask the loop to stop after the step at hand; a second Ctrl-C stops at once."""
    stop = threading.Event()

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
