"""The processes of a training, and the signals that stop it.

The trainer asks a `World` wherever a second process would matter: which part of a batch is its own, the seed of its
dropout, how many labels the whole step has, when to stop, who writes files. This one is a single process; a subclass
answers the same questions through torch.distributed.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sightline.recipe.training import step_seed

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Value = TypeVar("Value")
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none


class Interrupted(Exception):
    """Training was stopped by a signal; everything is saved."""


@dataclass(frozen=True)
class World:
    """`size` processes that train one model, of which this is number `rank`; by default one alone."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """True if this process writes files and prints."""
        return self.rank == 0

    def reduce(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return values

    def total(self, count: int) -> int:
        """The sum of a count over all processes, e.g. of the labels of a step, by which its loss is divided."""
        return count

    def broadcast(self, value: Value) -> Value:
        """The value that rank 0 has: what depends on the clock or on a file is decided there."""
        return value

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set in any process."""
        return flag

    def barrier(self) -> None:
        """Wait until every process is here."""

    def batch_slice(self, examples: np.ndarray) -> np.ndarray:
        """The examples of a batch that this process trains on. The same rows in every batch of the same size, so that
        each row of a language model continues its own text."""
        size, extra = divmod(len(examples), self.size)
        start = self.rank * size + min(self.rank, extra)
        return examples[start : start + size + (self.rank < extra)]

    def seed(self, seed: int, step: int) -> int:
        """The seed of everything random in a step of this process."""
        return step_seed(seed, step, self.rank)


def _leave_terminal() -> None:
    """Redirect output from a closed terminal to os.devnull, so that writing to it cannot fail before all is saved."""
    for handle in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(handle).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), handle)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Ctrl-C, SIGTERM and SIGHUP (the terminal is gone) set the event; the trainer stops after the current step.

    A second Ctrl-C or SIGTERM stops at once. SIGHUP stays ignored where it was (nohup).
    """
    stop = threading.Event()

    def handle(number: int, frame: Any) -> None:
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
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
