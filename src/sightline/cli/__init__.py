"""The command line: one thin file per verb. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Entry point of the `sightline` command."""
    from sightline.cli.app import app
    from sightline.cli.errors import told

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it ignored
        signal.signal(signal.SIGINT, _interrupted)
    with told():
        app(prog_name="sightline")
    sys.exit(0)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. While PyTorch is imported nothing is begun yet, and its C code would swallow the exception."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    if getattr(spec, "_initializing", False):
        os._exit(128 + number)
    signal.default_int_handler(number, frame)
