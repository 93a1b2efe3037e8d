"""Runs as processes of their own, a few at a time: one that fails, is killed or fills the memory fails alone."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sightline.files import open_growing
from sightline.sweeps.parent import watched
from sightline.sweeps.plan import SweepRun
from sightline.sweeps.progress import Follower

HEADER = "--- "  # begins the line of a log that tells the command and when it was started

_PAUSE = 0.1  # seconds between looks at the processes
_PATIENCE = 30.0  # seconds for a process to save and go when the sweep itself must end

State = Literal["waiting", "running", "done", "failed", "interrupted"]
Command = Callable[[SweepRun], list[str]]


@dataclass
class Job:
    """A run of the sweep on its way."""

    run: SweepRun
    state: State = "waiting"
    started: float = 0.0  # by the monotonic clock
    seconds: float = 0.0
    why: str = ""  # it failed
    process: subprocess.Popen[bytes] | None = None
    follower: Follower = field(init=False)

    def __post_init__(self) -> None:
        self.follower = Follower.of(self.run.folder, self.run.recipe)
        if self.run.state == "finished":
            self.state = "done"


class Board(Protocol):
    """Shows a sweep to a person."""

    def changed(self, job: Job) -> None: ...
    def tick(self) -> None: ...
    def note(self, text: str) -> None: ...


def train_command(run: SweepRun) -> list[str]:
    """The run as anybody would start it by hand."""
    resume = ["--resume"] if (run.folder / "recipe.yaml").exists() else []
    return [sys.executable, "-m", "sightline", "train", run.given, *run.overrides, "--out", str(run.folder), *resume]


@dataclass
class Pool:
    """At most `at_once` processes, until all jobs are through or somebody asks to stop."""

    at_once: int
    command: Command
    board: Board

    def work(self, jobs: Sequence[Job], stop: threading.Event) -> None:
        """Run what is waiting. Once `stop` is set nothing more is started, and what runs is asked to save and stop."""
        waiting = [job for job in jobs if job.state == "waiting"]
        share = thread_share(min(self.at_once, len(waiting)), os.environ)
        running: list[Job] = []
        asked = False
        try:
            while running or (waiting and not stop.is_set()):
                if stop.is_set() and not asked:
                    asked = True
                    self.board.note(f"stopping: waiting for {len(running)} to save (Ctrl-C again to stop at once)")
                    _send(running, signal.SIGINT)
                while waiting and len(running) < self.at_once and not stop.is_set():
                    running.append(waiting.pop(0))
                    self._start(running[-1], share)
                time.sleep(_PAUSE)
                for job in [job for job in running if _over(job, asked)]:
                    running.remove(job)
                    self.board.changed(job)
                self.board.tick()
        finally:
            _end(running)

    def _start(self, job: Job, share: Mapping[str, str]) -> None:
        run = job.run
        command = self.command(run)
        if run.recipe.training.threads is not None:
            share = {}
        job.state, job.started = "running", time.monotonic()
        try:
            run.log.parent.mkdir(parents=True, exist_ok=True)
            with open_growing(run.log) as log:
                log.write(f"{HEADER}{time.strftime('%Y-%m-%d %H:%M:%S')}: {shlex.join(command)}\n".encode())
                log.flush()
                job.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,  # never written to: its end tells the child that this process ended
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=watched({**os.environ, **share}),
                    process_group=0,  # a Ctrl-C in the terminal reaches it once, from us, and not twice
                )
        except OSError as error:  # no memory for a process, no room for a log: the others may have more luck
            job.why = f"could not be started: {error}"
        self.board.changed(job)


def thread_share(at_once: int, environment: Mapping[str, str]) -> dict[str, str]:
    """What each of several processes must know so that together they use every core once.

    OMP_NUM_THREADS is what PyTorch goes by when training.threads says nothing, RAYON_NUM_THREADS the tokenizers. What
    the user has set stays.
    """
    if at_once < 2:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = str(max(1, cores // at_once))
    return {name: share for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS") if name not in environment}


def _over(job: Job, asked: bool) -> bool:
    """Whether a job has ended; then it says how."""
    job.seconds = time.monotonic() - job.started
    code = None if job.process is None else job.process.poll()
    if job.process is not None and code is None:
        return False
    if code == 0:
        job.state = "done"
    elif asked:
        job.state = "interrupted"
    else:
        job.state, job.why = "failed", job.why or _reason(code or 0)
    return True


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"killed by {name}" + (", perhaps for want of memory" if -code == signal.SIGKILL else "")


def _send(jobs: Sequence[Job], number: signal.Signals) -> None:
    for job in jobs:
        if job.process is not None and job.process.poll() is None:
            job.process.send_signal(number)


def _end(running: Sequence[Job]) -> None:
    """Leave no process behind, whatever ended the sweep; a further Ctrl-C ends the waiting too."""
    try:
        _send(running, signal.SIGINT)
        deadline = time.monotonic() + _PATIENCE
        for job in running:
            if job.process is not None:
                job.process.wait(max(0.0, deadline - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        _send(running, signal.SIGKILL)
    for job in running:
        if job.process is not None:
            job.process.wait()
        job.state, job.seconds = "interrupted", time.monotonic() - job.started
