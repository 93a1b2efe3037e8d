"""Stop a child process when its parent ends, even if the parent is killed (SIGKILL).

The child's standard input is a pipe from the parent. When the parent ends, the child reads the end of its input and
sends itself SIGTERM, so that a training saves and can be resumed. Unlike PR_SET_PDEATHSIG this works on every system.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping

_VARIABLE = "SIGHTLINE_WATCH_PARENT"


def watched(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child that watches its standard input, a pipe its parent never writes to."""
    return {**environment, _VARIABLE: "1"}


def watch_parent() -> None:
    """Stop this process (SIGTERM) when its parent ends, if `watched` was set; its own children do not inherit that."""
    if os.environ.pop(_VARIABLE, None) != "1":
        return
    threading.Thread(target=_wait_for_end, args=(os.getpid(),), name="watch-parent", daemon=True).start()


def _wait_for_end(process: int) -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:  # closed: nothing to watch
        return
    os.kill(process, signal.SIGTERM)
