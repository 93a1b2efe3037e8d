"""Train the runs of a sweep in processes, then compare them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.files import open_growing
from sightline.run_folder import RunError, lock_run
from sightline.sweeps.board import Follower, LiveBoard, PlainBoard, count_states
from sightline.sweeps.grid import Axes, SweepError
from sightline.sweeps.parent import watched
from sightline.sweeps.plan import COMPARISON, SweepPlan, SweepRun, plan_sweep
from sightline.terminal import plural
from sightline.training.world import Interrupted, stop_signals

if TYPE_CHECKING:
    from sightline.comparison import ComparisonResult


HEADER = "--- "  # begins the line of a log with start time and command
_PAUSE = 0.1  # seconds between polls of the processes
_PATIENCE = 30.0  # seconds to save when the sweep ends
State = Literal["waiting", "running", "done", "failed", "interrupted"]
Command = Callable[[SweepRun], list[str]]


@dataclass
class Job:
    """A run and its process."""

    run: SweepRun
    state: State = "waiting"
    started: float = 0.0  # by the monotonic clock
    seconds: float = 0.0
    why: str = ""  # of a failure
    process: subprocess.Popen[bytes] | None = None
    follower: Follower = field(init=False)

    def __post_init__(self) -> None:
        self.follower = Follower.of(self.run.folder, self.run.recipe)
        if self.run.state == "finished":
            self.state = "done"


def train_command(run: SweepRun) -> list[str]:
    """The command that trains or resumes a run."""
    resume = ["--resume"] if (run.folder / "recipe.yaml").exists() else []
    train = [sys.executable, "-m", "sightline", "train", run.recipe_name, *run.overrides]
    return [*train, "--out", str(run.folder), *resume]


@dataclass
class Pool:
    """Runs jobs in at most `at_once` processes."""

    at_once: int
    command: Command
    board: PlainBoard | LiveBoard

    def work(self, jobs: Sequence[Job], stop: threading.Event) -> None:
        """Run all waiting jobs; once `stop` is set, start no more and interrupt running ones, which then save."""
        waiting = [job for job in jobs if job.state == "waiting"]
        share = thread_share(min(self.at_once, len(waiting)), os.environ)
        running: list[Job] = []
        stopping = False
        try:
            while running or (waiting and not stop.is_set()):
                if stop.is_set() and not stopping:
                    stopping = True
                    self.board.note(f"stopping: waiting for {len(running)} to save (Ctrl-C again to stop at once)")
                    _send(running, signal.SIGINT)
                while waiting and len(running) < self.at_once and not stop.is_set():
                    running.append(waiting.pop(0))
                    self._start(running[-1], share)
                time.sleep(_PAUSE)
                for job in [job for job in running if _over(job, stopping)]:
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
                    stdin=subprocess.PIPE,  # never written to; see parent.py
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=watched({**os.environ, **share}),
                    process_group=0,  # so that a Ctrl-C in the terminal does not reach it twice
                )
        except OSError as error:  # no memory or disk space; later jobs may succeed
            job.why = f"could not be started: {error}"
        self.board.changed(job)


def thread_share(at_once: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that share the cores among processes; those that are set already stay.

    OMP_NUM_THREADS is used by PyTorch if training.threads is not set, RAYON_NUM_THREADS by tokenizers.
    """
    if at_once < 2:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = str(max(1, cores // at_once))
    return {name: share for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS") if name not in environment}


def _over(job: Job, stopping: bool) -> bool:
    """Return True if a job has ended; updates its state."""
    job.seconds = time.monotonic() - job.started
    code = None if job.process is None else job.process.poll()
    if job.process is not None and code is None:
        return False
    if code == 0:
        job.state = "done"
    elif stopping:
        job.state = "interrupted"
    else:
        job.state, job.why = "failed", job.why or _reason(code or 0)
    return True


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"killed by {name}" + (", perhaps out of memory" if -code == signal.SIGKILL else "")


def _send(jobs: Sequence[Job], number: signal.Signals) -> None:
    for job in jobs:
        if job.process is not None and job.process.poll() is None:
            job.process.send_signal(number)


def _end(running: Sequence[Job]) -> None:
    """End all processes; a further Ctrl-C kills them at once."""
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


_TAIL = 8  # lines of a failed run's log that are shown
# finished runs, folder of the comparison, names of failed runs
Compare = Callable[[Sequence[Path], Path, Sequence[str]], "ComparisonResult"]


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep."""

    folder: Path
    finished: tuple[Path, ...]  # run folders, including those of earlier commands
    failed: tuple[Path, ...]
    comparison: ComparisonResult | None = None  # of at least two finished runs


def compare_runs(runs: Sequence[Path], folder: Path, missing: Sequence[str] = ()) -> ComparisonResult:
    """Compare finished runs and write tables and figures, with a note on failed runs."""
    from sightline.comparison import compare, write_comparison
    from sightline.progress import shown

    with shown() as progress:
        comparison = compare(runs, progress=progress)
    if missing:
        notes = [*comparison.notes, f"Failed in training, so not compared: {', '.join(missing)}."]
        comparison = replace(comparison, notes=notes)
    write_comparison(comparison, folder)
    return comparison


def sweep(
    recipe: str | Path,
    overrides: Axes = (),
    *,
    variants: str | Path | Sequence[Mapping[str, Any]] | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    compare: bool = True,
) -> Sweep:
    """Train a recipe with every combination of some overrides, then compare the runs.

    `overrides` are as on the command line (`["seed=1,2", "model.width=128,256"]`) or a mapping of keys to lists of
    values (`{"seed": [1, 2]}`). `variants` is a list of override sets, or a YAML file of one, each combined with the
    grid; its entries may have a `recipe` of their own. The same call again skips finished runs, resumes interrupted
    ones and repeats failed ones. `jobs` is the number of runs trained at once.
    """
    plan = plan_sweep(recipe, overrides, variants=variants, out=out)
    return run_sweep(plan, jobs=jobs, compare=compare_runs if compare else None)


def run_sweep(
    plan: SweepPlan, *, jobs: int = 1, compare: Compare | None = compare_runs, command: Command = train_command
) -> Sweep:
    """Train the unfinished runs of a plan, then compare finished ones; raise `Interrupted` on an interruption."""
    if jobs < 1:
        raise SweepError(f"jobs ({jobs}) must be at least 1: it says how many runs train at once")
    with _locked(plan.folder):
        plan.record()
        _train(plan, todo := [Job(run) for run in plan.runs], jobs, command)
        if any(job.state in ("waiting", "interrupted") for job in todo):
            raise Interrupted(f"{plan.folder}: {count_states(todo)}")
        earlier = [run.folder for run in plan.others if run.state == "finished"]
        finished = [*earlier, *(job.run.folder for job in todo if job.state == "done")]
        failed = tuple(job.run.folder for job in todo if job.state == "failed")
        comparison = None if compare is None else _compared(compare, finished, failed, plan.folder)
    return Sweep(plan.folder, tuple(finished), failed, comparison)


def _compared(compare: Compare, runs: Sequence[Path], failed: Sequence[Path], folder: Path) -> ComparisonResult | None:
    if len(runs) < 2:
        print(f"nothing to compare: {len(runs)} of the runs of {folder} is finished, and it takes two", file=sys.stderr)
        return None
    try:
        return compare(runs, folder / COMPARISON, [run.name for run in failed])
    except ValueError as error:
        raise SweepError(f"the runs of {folder} are trained, but they cannot be compared: {error}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder of the sweep."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_run(folder))
        except RunError as error:
            raise SweepError(
                f"another sweep is running in {folder}; wait for it, stop it, or give another folder with --out"
            ) from error
        yield


def _train(plan: SweepPlan, todo: Sequence[Job], jobs: int, command: Command) -> None:
    board = LiveBoard(todo) if sys.stderr.isatty() else PlainBoard(todo)
    with board.shown():
        for line in opening(plan):
            board.note(line)
        # a second Ctrl-C ends the processes, but the sweep still reports
        with suppress(KeyboardInterrupt), stop_signals() as stop:
            Pool(jobs, command, board).work(todo, stop)
    for line in closing(plan, todo):
        board.note(line)


def opening(plan: SweepPlan) -> list[str]:
    """The lines printed before training."""
    lines = [f"{plural(len(plan.runs), 'run')} in {plan.folder}"]
    finished = sum(run.state == "finished" for run in plan.runs)
    started = sum(run.state == "begun" for run in plan.runs)
    if finished or started:
        lines[0] += f": {finished} finished before, {started} to resume, {len(plan.runs) - finished - started} new"
    if plan.merged:
        such_as = ", such as this one" if len(plan.merged) > 1 else ""
        lines.append(f"left out {plural(len(plan.merged), 'duplicate')}{such_as}: {plan.merged[0]}")
    left = [run.name for run in plan.others if run.state != "finished"]
    if left:
        lines.append(f"unfinished runs of this sweep that this command does not name: {', '.join(left)}")
    return lines


def closing(plan: SweepPlan, todo: Sequence[Job]) -> list[str]:
    """The lines printed after training, with the end of the log of each failed run."""
    lines = []
    for job in (job for job in todo if job.state == "failed"):
        lines += [f"{job.run.name} failed ({job.why}); the end of {job.run.log}:"]
        lines += [f"    {line}" for line in _tail(job.run.log)]
    return [*lines, f"{plan.folder}: {count_states(todo)}"]


def _tail(log: Path) -> list[str]:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return [f"(it cannot be read: {error.strerror})"]
    _, _, newest = f"\n{text}".rpartition(f"\n{HEADER}")  # of the last attempt
    return newest.splitlines()[1:][-_TAIL:] or ["(no output)"]
