"""A process that must not outlive the one that started it, even where that is killed and can tell nobody (SIGKILL).

The parent keeps one end of a pipe open, the child's standard input is the other. When the parent ends, however it ends,
the system closes its end, the child reads the end of its input and asks itself to stop, as SIGTERM would: a training
saves and can be resumed. This works on every system; PR_SET_PDEATHSIG is Linux alone, and follows the thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping

_VARIABLE = "SIGHTLINE_WATCH_PARENT"


def watched(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child that is to watch its standard input, a pipe that its parent never writes to."""
    return {**environment, _VARIABLE: "1"}


def watch_parent() -> None:
    """Stop this process (SIGTERM) when its parent ends, if the parent asked for it; children of its own do not inherit
    the wish."""
    if os.environ.pop(_VARIABLE, None) != "1":
        return
    threading.Thread(target=_wait_for_end, args=(os.getpid(),), name="watch-parent", daemon=True).start()


def _wait_for_end(process: int) -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:  # closed on purpose: there is nothing to watch
        return
    os.kill(process, signal.SIGTERM)
