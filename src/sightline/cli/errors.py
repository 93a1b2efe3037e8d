"""Errors a person can act on are one line, not a stack trace; so are warnings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def told() -> Iterator[None]:
    """Print what went wrong in one line and leave with 1; with SIGHTLINE_DEBUG set, show where it happened too."""
    try:
        with _warnings_told():
            yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away; nothing more to say
        sys.exit(1)
    except (ValueError, ArithmeticError, OSError, ModuleNotFoundError) as error:
        if os.environ.get("SIGHTLINE_DEBUG"):
            raise
        print(f"sightline: {_text(error)}", file=sys.stderr)
        sys.exit(1)


@contextmanager
def _warnings_told() -> Iterator[None]:
    """What Sightline warns of (by a class or in a file of its own) is told in one line; others look as ever."""
    house = str(Path(__file__).parents[1]) + os.sep
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **more: Any) -> None:
            if category.__module__.startswith("sightline.") or filename.startswith(house):
                print(f"sightline: {message}", file=sys.stderr)
            else:
                before(message, category, filename, *rest, **more)

        warnings.showwarning = show
        yield


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        place = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{place}"
    if isinstance(error, ModuleNotFoundError):
        return f"{error}; see `sightline doctor` for what to install"
    if type(error).__name__ == "ValidationError":  # pydantic's, of an option that no recipe could have
        return _invalid(error)
    return str(error) or type(error).__name__


def _invalid(error: BaseException) -> str:
    """`beam is 0: Input should be greater than or equal to 1`, of every value that is wrong."""
    from pydantic import ValidationError

    assert isinstance(error, ValidationError)
    every = error.errors()
    parts = {each["loc"][:size] for each in every for size in range(1, len(each["loc"]))}
    return "; ".join(
        # without a place it is said of values together, and names them itself
        f"{'.'.join(map(str, each['loc']))} is {each['input']!r}: {each['msg']}"
        if each["loc"]
        else each["msg"].removeprefix("Value error, ")
        for each in every
        if each["loc"] not in parts  # what is wrong with a part of it is told already
    )
