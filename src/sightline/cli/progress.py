"""How far something long is that goes line by line: a bar in a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sightline.cli.lines import named
from sightline.terminal import plural

_EVERY = 10.0  # seconds between two lines, at least


@contextmanager
def watching() -> Iterator[Callable[[int, int], None]]:
    """Something to tell how many lines are done, and how many there are."""
    if not sys.stderr.isatty():
        yield _Lines("translated")
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from sightline.terminal import console

    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True)) as bar:
        task = bar.add_task("translating", total=None)
        yield lambda done, lines: bar.update(task, completed=done, total=lines)


@contextmanager
def counting(file: Path | None) -> Iterator[Callable[[int], None]]:
    """Something to tell how many lines of the input are answered; nobody knows how many there are.

    A person who types the lines (no file), or sees the answers come, needs no such thing and gets none.
    """
    typed = named(file) is None and sys.stdin is not None and sys.stdin.isatty()
    if typed or sys.stdout.isatty():
        yield lambda done: None
        return
    if not sys.stderr.isatty():
        lines = _Lines("predicted")
        yield lambda done: lines(done, None)
        return
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from sightline.terminal import console

    columns = (TextColumn("predicted {task.description} in"), TimeElapsedColumn())
    # standard output is the answers' own: it must not pass through the display
    with Progress(*columns, console=console(stderr=True), transient=True, redirect_stdout=False) as display:
        task = display.add_task(plural(0, "line"), total=None)
        yield lambda done: display.update(task, description=plural(done, "line"))


class _Lines:
    """A line at the end, where that is known, and before it no more often than every ten seconds."""

    def __init__(self, did: str) -> None:
        self.did = did
        self.started = self.last = time.monotonic()

    def __call__(self, done: int, lines: int | None) -> None:
        now = time.monotonic()
        if done != lines and now - self.last < _EVERY:
            return
        self.last = now
        count = plural(done, "line") if lines is None else f"{done:,} of {plural(lines, 'line')}"
        print(f"{self.did} {count} in {now - self.started:,.0f} s", file=sys.stderr, flush=True)
