"""How far a long translation is: a bar in a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sightline.plural import plural

_EVERY = 10.0  # seconds between two lines, at least


@contextmanager
def watching() -> Iterator[Callable[[int, int], None]]:
    """Something to tell how many lines are done, and how many there are."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("translating", total=None)
        yield lambda done, lines: bar.update(task, completed=done, total=lines)


class _Lines:
    """A line at the end, and before that no more often than every ten seconds."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()

    def __call__(self, done: int, lines: int) -> None:
        now = time.monotonic()
        if done < lines and now - self.last < _EVERY:
            return
        self.last = now
        print(
            f"translated {done:,} of {plural(lines, 'line')} in {now - self.started:,.0f} s",
            file=sys.stderr,
            flush=True,
        )
