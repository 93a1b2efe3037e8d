"""How a training is asked to stop."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none


class Interrupted(Exception):
    """Training was asked to stop; everything is saved."""


def _leave_terminal() -> None:
    """Write no more to a terminal that went away: an error there would come before what is to be saved."""
    for handle in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(handle).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), handle)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Ctrl-C, SIGTERM and SIGHUP (the terminal went away) ask the loop to stop after the step at hand.

    A second Ctrl-C or SIGTERM stops at once. SIGHUP stays ignored where it was (nohup).
    """
    stop = threading.Event()

    def ask(number: int, frame: Any) -> None:
        if stop.is_set() and number != _HANGUP:  # which the shell and the terminal both may send
            raise KeyboardInterrupt
        if number == _HANGUP:
            _leave_terminal()
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if _HANGUP is not None and signal.getsignal(_HANGUP) is not signal.SIG_IGN:
        numbers.append(_HANGUP)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
