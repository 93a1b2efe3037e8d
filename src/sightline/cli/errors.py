"""Messages and exit codes of errors.

Expected errors (bad input, missing files, no memory) print one line and exit with code 1. Any other exception is a bug
in Sightline: one line that says so, and exit code 70. `--debug` or SIGHTLINE_DEBUG=1 adds the traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sightline.terminal import printable

FAILURE, USAGE, INTERNAL_ERROR, INTERRUPTED = 1, 2, 70, 130  # typer exits with USAGE; 70 is EX_SOFTWARE

_PACKAGE = Path(__file__).parents[1]
_LONGEST = 500  # characters of an unexpected error's message
_EXPECTED = (ValueError, ArithmeticError, OSError, ImportError, EOFError)  # caused by input


@contextmanager
def error_boundary() -> Iterator[None]:
    """Turn every exception into one line on standard error and an exit code, and each of our warnings into one line."""
    try:
        with _warnings_in_one_line():
            yield
    except BrokenPipeError:  # the reader of standard output has gone
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILURE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if debugging():
            print(printable(traceback.format_exc()), file=sys.stderr, end="")
        message, code = describe(error)
        print(f"sightline: {printable(message)}", file=sys.stderr)
        sys.exit(code)


def debugging() -> bool:
    """True if tracebacks are shown."""
    return bool(os.environ.get("SIGHTLINE_DEBUG"))


def describe(error: Exception) -> tuple[str, int]:
    """The message and exit code of an exception."""
    if _out_of_memory(error):
        return (
            f"out of memory ({_cause(error)}); lower training.batches.tokens, decoding.batch_tokens or the sizes of "
            f"the model, or shorten the input"
        ), FAILURE
    if isinstance(error, _EXPECTED):
        return _text(error), FAILURE
    again = "" if debugging() else "; run again with --debug for the traceback"
    return f"internal error: {_cause(error)} ({_place(error)}). This is a bug in Sightline{again}", INTERNAL_ERROR


def _out_of_memory(error: Exception) -> bool:
    """True if Python, NumPy or PyTorch ran out of memory (PyTorch has no exception class for it on a CPU)."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _cause(error: Exception) -> str:
    """The class of an exception and its message, in one line."""
    message = " ".join(str(error).split())
    message = message if len(message) <= _LONGEST else message[:_LONGEST] + "…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _place(error: Exception) -> str:
    """The innermost line of this package in the traceback: `run.py, line 12`."""
    place = "unknown place"
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            place = f"{path.relative_to(_PACKAGE).as_posix()}, line {line}"
    return place


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print warnings of Sightline on one line; show others as usual."""
    package = str(_PACKAGE) + os.sep
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **more: Any) -> None:
            if category.__module__.startswith("sightline.") or filename.startswith(package):
                print(f"sightline: {printable(str(message))}", file=sys.stderr)
            else:
                before(message, category, filename, *rest, **more)

        warnings.showwarning = show
        yield


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        place = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{place}"
    if isinstance(error, ModuleNotFoundError):
        return f"{error}; see `sightline doctor` for what to install"
    if type(error).__name__ == "ValidationError":  # pydantic's
        return _invalid(error)
    return str(error) or type(error).__name__


def _invalid(error: Exception) -> str:
    """All invalid values: `beam is 0: Input should be greater than or equal to 1`."""
    from pydantic import ValidationError

    assert isinstance(error, ValidationError)
    errors = error.errors()
    parents = {each["loc"][:size] for each in errors for size in range(1, len(each["loc"]))}
    return "; ".join(
        # a message about several values names them itself
        f"{'.'.join(map(str, each['loc']))} is {each['input']!r}: {each['msg']}"
        if each["loc"]
        else each["msg"].removeprefix("Value error, ")
        for each in errors
        if each["loc"] not in parents  # its parts are reported
    )
