"""The command line: one file per command. Heavy modules are imported only when a command runs."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Entry point of the `sightline` command."""
    from sightline.cli.errors import error_boundary
    from sightline.sweeps.parent import watch_parent
    from sightline.training.threads import choose_waiting

    watch_parent()
    choose_waiting(os.environ)
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller ignores it on purpose
        signal.signal(signal.SIGINT, _interrupted)
    sys.argv[1:] = _without_debug(sys.argv[1:])
    with error_boundary():
        from sightline.cli.app import app

        app(prog_name="sightline")
    sys.exit(0)


def _open_closed_streams() -> None:
    """Discard messages if standard error is closed; exit if standard output is."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        print("sightline: standard output is closed; redirect it to a file, or to /dev/null", file=sys.stderr)
        sys.exit(1)


def _without_debug(arguments: list[str]) -> list[str]:
    """Remove `--debug` wherever it is written: it is often appended to a command that failed."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, rest = arguments[:end], arguments[end:]
    if "--debug" in options:
        os.environ["SIGHTLINE_DEBUG"] = "1"  # inherited by the trainings of a sweep
    return [option for option in options if option != "--debug"] + rest


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C. Exit at once while PyTorch is imported, because its C code would swallow the exception."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    if getattr(spec, "_initializing", False):
        os._exit(128 + number)
    signal.default_int_handler(number, frame)
