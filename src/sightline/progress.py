"""The one progress display of long work: a bar in a terminal, an occasional line elsewhere, both on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]  # description, how much is done, how much there is (0: unknown)

_INTERVAL = 2.0  # seconds between plain lines


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


@contextmanager
def shown(*, interval: float = _INTERVAL) -> Iterator[Progress]:
    """A display for a person: a bar if standard error is a terminal, else a line at most every `interval` seconds."""
    if not sys.stderr.isatty():
        yield occasional(interval)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from sightline.terminal import console

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=32), MofNCompleteColumn(), TimeElapsedColumn())
    to_terminal = sys.stdout.isatty()  # a redirected standard output carries data, which must not pass through the bar
    with Bar(*columns, console=console(stderr=True), transient=True, redirect_stdout=to_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield show


def occasional(interval: float = _INTERVAL) -> Progress:
    """Print a line when `interval` seconds have passed since the last one: `tokenizing: 2,000 of 4,000 in 3 s`."""
    started = printed = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed >= interval:
            printed = now
            count = f"{done:,}" + (f" of {total:,}" if total else "")
            print(f"{what}: {count} in {now - started:,.0f} s", file=sys.stderr, flush=True)

    return show
