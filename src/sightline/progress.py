"""The one progress display: a bar in a terminal, an occasional line elsewhere, both on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

Progress = Callable[[str, int, int], None]  # description, count so far, total (0: unknown)

_INTERVAL = 2.0  # seconds between plain lines


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


@contextmanager
def shown(*, interval: float = _INTERVAL) -> Iterator[Progress]:
    """Show progress: a bar if standard error is a terminal, else a line at most every `interval` seconds."""
    if not sys.stderr.isatty():
        yield occasional(interval)
        return
    with progress_bar() as bar:
        task, current = bar.add_task("starting", total=None), ""

        def show(what: str, done: int, total: int) -> None:
            nonlocal current
            if what != current:  # each stage has its own rate and remaining time
                bar.reset(task, description=what, total=total or None)
                current = what
            bar.update(task, completed=done, total=total or None)

        yield show


def progress_bar() -> Bar:
    """A bar on standard error with count, rate, elapsed and remaining time."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar
    from rich.text import Text

    from sightline.terminal import console

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "", style="progress.data.speed")

    return Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        # a redirected standard output carries data, which must not pass through the bar
        redirect_stdout=sys.stdout.isatty(),
    )


def occasional(interval: float = _INTERVAL) -> Progress:
    """Print a line at most every `interval` seconds: `tokenizing: 2,000 of 4,000 in 3 s`."""
    started = printed = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed >= interval:
            printed = now
            count = f"{done:,}" + (f" of {total:,}" if total else "")
            print(f"{what}: {count} in {now - started:,.0f} s", file=sys.stderr, flush=True)

    return show
