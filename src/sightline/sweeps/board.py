"""The display of a running sweep: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.files import parse_json
from sightline.recipe import Recipe
from sightline.training.loggers import clock

if TYPE_CHECKING:
    from rich.table import Table

    from sightline.sweeps.sweep import Job


@dataclass
class Follower:
    """Follows a run's metrics.jsonl as it grows."""

    path: Path
    metric: str  # shown if a validation has it, else the loss
    train: dict[str, Any] = field(default_factory=dict)  # newest record
    validation: dict[str, Any] = field(default_factory=dict)
    _read: int = 0

    @classmethod
    def of(cls, run: Path, recipe: Recipe) -> Follower:
        return cls(run / "metrics.jsonl", recipe.evaluation.metrics[0])

    def read(self) -> None:
        """Read the records added since the last call."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read:  # a resumed training truncates its log
                    self._read = 0
                file.seek(self._read)
                text = file.read()
        except OSError:
            return  # not started yet
        lines = text[: text.rfind(b"\n") + 1]
        self._read += len(lines)
        for line in lines.splitlines():
            try:
                record = parse_json(line)
            except ValueError:
                continue  # half a line, after a truncation
            if isinstance(record, dict) and record.get("kind") == "train":
                self.train = record
            elif isinstance(record, dict) and record.get("kind") == "validation":
                self.validation = record

    def newest(self, key: str) -> int | None:
        """`step` or `epoch` of the newest record."""
        return max(self.train, self.validation, key=lambda record: int(record.get("step", -1))).get(key)

    @property
    def score(self) -> str:
        """The latest validation: `exact 93.20`."""
        name = self.metric if self.metric in self.validation else "loss"
        return f"{name} {self.validation[name]:.{3 if name == 'loss' else 2}f}" if name in self.validation else ""

    @property
    def speed(self) -> str:
        """`12,300 tokens/s`."""
        return f"{self.train['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in self.train else ""


_STYLES = {"running": "cyan", "done": "green", "failed": "bold red", "interrupted": "yellow", "waiting": "dim"}
_ORDER = ("done", "failed", "interrupted", "running", "waiting")
_PRIORITY = ("running", "failed", "interrupted", "done", "waiting")  # if not all runs fit the table
_INTERVAL = 0.5  # seconds between readings of the logs


def count_states(jobs: Sequence[Job]) -> str:
    """`3 done, 1 failed, 2 waiting`."""
    states: Counter[str] = Counter(job.state for job in jobs)
    return ", ".join(f"{states[state]} {state}" for state in _ORDER if states[state]) or "no runs"


class PlainBoard:
    """A line on standard error for each start and end of a run."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.width = len(str(len(jobs)))

    def changed(self, job: Job) -> None:
        number = f"[{self.jobs.index(job) + 1:>{self.width}}/{len(self.jobs)}]"
        if job.state == "running":
            self.note(f"{number} {job.run.name}: {'resumed' if job.run.state == 'begun' else 'started'}")
            return
        job.follower.read()
        parts = [f"{number} {job.run.name}: {job.state}"]
        parts += [f"({job.why})"] if job.why else []
        parts += [f"after {clock(job.seconds)}"]
        step = job.follower.newest("step")
        parts += [] if step is None else [f"at step {step:,}"]
        self.note(" ".join(parts) + (f", {job.follower.score}" if job.follower.score else ""))

    def tick(self) -> None:
        pass

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def shown(self) -> Iterator[None]:
        yield


class LiveBoard:
    """A live table of all runs below scrolling notes, for terminals."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        from rich.live import Live

        from sightline.terminal import console

        self.jobs = jobs
        self.console = console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False)
        self.read_at = 0.0

    def changed(self, job: Job) -> None:
        job.follower.read()
        self._show()

    def tick(self) -> None:
        if time.monotonic() - self.read_at >= _INTERVAL:
            for job in self.jobs:
                if job.state == "running":
                    job.follower.read()
            self._show()

    def note(self, text: str) -> None:
        from rich.text import Text

        self.console.print(Text(text))

    def _show(self) -> None:
        self.read_at = time.monotonic()
        self.live.update(table(self.jobs, rows=max(3, self.console.height - 6)), refresh=True)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the table while runs are trained."""
        for job in self.jobs:
            job.follower.read()
        self.live.start()
        self._show()
        try:
            yield
        finally:
            self.live.update(table(self.jobs), refresh=True)  # in full
            self.live.stop()


def table(jobs: Sequence[Job], rows: int | None = None) -> Table:
    """The state of all runs, or of as many as fit."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = list(jobs)
    if rows is not None and len(shown) > rows:
        first = sorted(range(len(jobs)), key=lambda place: _PRIORITY.index(jobs[place].state))[:rows]
        shown = [jobs[place] for place in sorted(first)]
    hidden = [job for job in jobs if job not in shown]
    caption = count_states(jobs) + (f"  (not shown: {count_states(hidden)})" if hidden else "")
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    grid.add_column("run", overflow="fold")
    grid.add_column("")
    for name in ("time", "epoch", "step", "validation", "speed"):
        grid.add_column(name, justify="right")
    for job in shown:
        grid.add_row(*(Text(cell, style=_STYLES[job.state]) for cell in _cells(job)))
    return grid


def _cells(job: Job) -> list[str]:
    limits, follower = job.run.recipe.training.limits, job.follower
    started = job.state != "waiting" or job.run.state == "begun"
    epoch = follower.newest("epoch")
    epoch = None if epoch is None else min(epoch + 1, limits.epochs or epoch + 1)
    seconds = time.monotonic() - job.started if job.state == "running" else job.seconds
    return [
        job.run.name,
        job.state,
        clock(seconds) if seconds else "",
        _of(epoch, limits.epochs) if started else "",
        _of(follower.newest("step"), limits.steps) if started else "",
        follower.score if started else "",
        follower.speed if job.state == "running" else "",
    ]


def _of(value: int | None, limit: int | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if limit is None else f"{value:,}/{limit:,}"
