"""How far something long is (a comparison, an evaluation): a bar in a terminal, an occasional line elsewhere, both on
standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much (0: unknown)

_PATIENCE = 2.0  # seconds between plain lines


def silent(what: str, done: int, total: int) -> None:
    """Shows nothing."""


@contextmanager
def shown() -> Iterator[Progress]:
    """Progress for a person, whatever standard error is."""
    if not sys.stderr.isatty():
        yield occasional()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from sightline.terminal import console

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=32), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield show


def occasional() -> Progress:
    """A line when something has been going on for a while, and then every while."""
    told = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= _PATIENCE:
            told = time.monotonic()
            print(f"{what}: {done:,}" + (f" of {total:,}" if total else ""), file=sys.stderr, flush=True)

    return show
