"""Run contestants in turns on one machine, each in its own process and only one at a time.

Separate processes do not share memory, threads or settings. Turns are short and interleaved (A, B, C, A, B, C, ...), so
that other load affects all contestants equally; turns during which other programs were busy are repeated. Results are
medians over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from measuring import machine, write_json


class Setting(Protocol):
    """The settings of one contestant: a dataclass that can be pickled."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def keep_memory(self) -> bool: ...


class Contestant(Protocol):
    """Repeat steps without end; `after_step`, called with the units of work of each, raises to stop."""

    def run(self, after_step: Callable[[int], None]) -> None: ...


class Finished(Exception):
    """The race is over."""


@dataclass(frozen=True)
class Turn:
    """One turn of one contestant."""

    units: int
    steps: int
    seconds: float
    others: float  # cores used by other programs

    @property
    def rate(self) -> float:
        return self.units / self.seconds


def busy_seconds() -> float:
    """Processor seconds of all programs since the machine started (0 if unknown)."""
    try:
        fields = [int(number) for number in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def keep_memory() -> None:
    """Tell glibc to keep freed memory, which saves page faults."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def work(build: Callable[[Any], Contestant], setting: Setting, threads: int, pipe: Connection) -> None:
    """The process of a contestant: wait for a turn, work for its seconds, report, repeat."""
    torch.set_num_threads(threads)
    if setting.keep_memory:
        keep_memory()
    sync = torch.cuda.synchronize if setting.device == "cuda" else lambda: None
    units, steps, seconds, started, others = 0, 0, 0.0, 0.0, 0.0

    def wait_for_turn() -> None:
        nonlocal units, steps, seconds, started, others
        seconds = pipe.recv()
        if seconds < 0:
            raise Finished
        others = busy_seconds() - time.process_time()
        units, steps, started = 0, 0, time.perf_counter()

    def after_step(count: int) -> None:
        nonlocal units, steps
        units, steps = units + count, steps + 1
        if time.perf_counter() - started < seconds:
            return
        sync()
        took = time.perf_counter() - started
        pipe.send(Turn(units, steps, took, max(0.0, busy_seconds() - time.process_time() - others) / took))
        wait_for_turn()

    try:
        contestant = build(setting)
        wait_for_turn()
        contestant.run(after_step)
    except Finished:
        pass
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        raise


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Add environment variables to the processes started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass
class Worker:
    """A contestant as the parent process sees it."""

    setting: Any
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    turns: list[Turn] = field(default_factory=list)

    @staticmethod
    def start(build: Callable[[Any], Contestant], setting: Setting, threads: int) -> Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=work, args=(build, setting, threads, there), daemon=True)
        with _environment(dict(getattr(setting, "environment", ()))):  # PyTorch reads some of it when it is imported
            process.start()
        there.close()
        return Worker(setting, process, here)

    def begin(self, seconds: float) -> None:
        """Start a turn of this length (at least one step)."""
        self.pipe.send(seconds)

    def end(self) -> Turn:
        """Wait for the result of the turn."""
        try:
            answer = self.pipe.recv()
        except EOFError:
            self.process.join(timeout=5)
            raise RuntimeError(f"{self.setting.name} died (exit code {self.process.exitcode})") from None
        if isinstance(answer, str):
            raise RuntimeError(f"{self.setting.name}: {answer}")
        return answer

    def quiet_turn(self, options: argparse.Namespace) -> Turn:
        """Run turns until other programs are quiet or `options.patience` is used up."""
        while True:
            self.begin(options.seconds)
            turn = self.end()
            if turn.others <= options.quiet or options.patience <= 0:
                return turn
            options.patience -= 1

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self.pipe.send(-1.0)
        self.process.join(timeout=20)
        if self.process.is_alive():
            self.process.terminate()


def race(
    build: Callable[[Any], Contestant],
    settings: Sequence[Setting],
    options: argparse.Namespace,
    after_round: Callable[[Sequence[Worker]], None] = lambda workers: None,
) -> list[Worker]:
    """Run all contestants in turns; the workers hold their turns. Contestants that fail to start are left out."""
    workers = []
    together = all(setting.device == "cuda" for setting in settings)  # compiles on several cores
    starting = [Worker.start(build, setting, options.threads) for setting in settings] if together else []
    for worker in starting:
        worker.begin(options.warmup)
    for number, setting in enumerate(settings):
        worker = starting[number] if together else Worker.start(build, setting, options.threads)
        try:
            if not together:
                worker.begin(options.warmup)
            first = worker.end()
        except (RuntimeError, OSError) as error:
            print(f"  out:   {error}", flush=True)
            worker.stop()
            continue
        print(f"  ready: {setting.name} ({first.steps} steps to warm up, {first.rate:,.0f}/s)", flush=True)
        workers.append(worker)
    if together:  # the warm-up may be a single compiling step, so one more turn is not timed
        for worker in list(workers):
            worker.begin(options.seconds)
            try:
                worker.end()
            except RuntimeError as error:
                print(f"  out:   {error}", flush=True)
                workers.remove(worker)
    for number in range(options.rounds):
        for worker in workers:
            worker.turns.append(worker.quiet_turn(options))
        rates = "  ".join(f"{worker.setting.name} {worker.turns[-1].rate:,.0f}" for worker in workers)
        worst = max(worker.turns[-1].others for worker in workers)
        print(f"  round {number + 1}/{options.rounds}: {rates}  (others: {worst:.1f} cores)", flush=True)
        after_round(workers)
    for worker in workers:
        worker.stop()
    return workers


def summarize(workers: Sequence[Worker]) -> list[dict[str, Any]]:
    """The speed of each contestant, and its ratio to the first one."""
    rows = []
    for worker in workers:
        ratios = sorted(ours.rate / theirs.rate for ours, theirs in zip(workers[0].turns, worker.turns, strict=True))
        rows.append(
            {
                "setting": asdict(worker.setting),
                "rate": statistics.median(turn.rate for turn in worker.turns),
                "best_rate": max(turn.rate for turn in worker.turns),
                "first_is_faster": statistics.median(ratios),
                "quartiles": [ratios[round(share * (len(ratios) - 1))] for share in (0.25, 0.75)],
                "units_a_step": sum(t.units for t in worker.turns) / sum(t.steps for t in worker.turns),
                "turns": [asdict(turn) for turn in worker.turns],
            }
        )
    return rows


def print_table(
    title: str, unit: str, rows: Sequence[dict[str, Any]], more: dict[str, Callable[[dict[str, Any]], str]]
) -> None:
    """Print one row per contestant; `more` are further columns."""
    from rich.console import Console
    from rich.table import Table

    first = rows[0]["setting"]["name"]
    table = Table(title=title)
    table.add_column("contestant")
    for heading in (*more, unit, "best round", f"{first} is", "quartiles"):
        table.add_column(heading, justify="right")
    for row in rows:
        low, high = row["quartiles"]
        table.add_row(
            row["setting"]["name"],
            *(show(row) for show in more.values()),
            f"{row['rate']:,.0f}",
            f"{row['best_rate']:,.0f}",
            f"{row['first_is_faster']:.2f}x",
            f"{low:.2f} - {high:.2f}",
        )
    Console(width=140).print(table)


def add_options(parser: argparse.ArgumentParser, *, rounds: int, seconds: float) -> None:
    """Add the options of every race."""
    parser.add_argument("--only", help="names of contestants, separated by ';'; the others are compared with the first")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, default=seconds, help="length of one turn, at least one step")
    parser.add_argument(
        "--quiet", type=float, default=0.2, help="repeat a turn if other programs used more cores than this"
    )
    parser.add_argument("--patience", type=int, default=40, help="how many turns may be repeated in all")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="where to save the result")


def only(settings: Sequence[Any], names: str | None) -> list[Any]:
    """The settings with these names, in this order."""
    if not names:
        return list(settings)
    known = {setting.name: setting for setting in settings}
    chosen = [name.strip() for name in names.split(";")]
    if unknown := [name for name in chosen if name not in known]:
        raise SystemExit(f"no contestant {unknown[0]!r}; there are: {'; '.join(known)}")
    return [known[name] for name in chosen]


def save(path: Path | None, rows: Sequence[dict[str, Any]], options: argparse.Namespace, **more: Any) -> None:
    """Write the whole result as JSON."""
    write_json(path, {"machine": machine() | {"threads": options.threads}, **more, "rows": rows})
