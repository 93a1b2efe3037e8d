"""Contestants take turns on one machine: each in a process of its own, only one running at a time.

A process of its own, so that none inherits another's memory, threads or settings. Turns are short and go round
(A, B, C, A, B, C, ...), so that whatever else the machine is doing hits all alike; a turn during which other programs
were busy is taken again. What is reported is medians over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch


class Setting(Protocol):
    """How one contestant runs; a dataclass that can be sent to its process."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def keep_memory(self) -> bool: ...


class Contestant(Protocol):
    """Works for ever in steps; `after_step` hears of the units of work of each and ends it all by raising."""

    def run(self, after_step: Callable[[int], None]) -> None: ...


class Finished(Exception):
    """The race is over."""


@dataclass(frozen=True)
class Turn:
    """What one contestant did in one turn."""

    units: int
    steps: int
    seconds: float
    others: float  # cores that other programs kept busy meanwhile

    @property
    def rate(self) -> float:
        return self.units / self.seconds


def busy_seconds() -> float:
    """Processor seconds all programs have used since the machine started (0 where that cannot be known)."""
    try:
        fields = [int(number) for number in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def keep_memory() -> None:
    """glibc: serve large tensors from the heap and never give it back, so that a step does not fault its pages anew."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def work(build: Callable[[Any], Contestant], setting: Setting, threads: int, pipe: Connection) -> None:
    """A contestant's process: waits for its turn, works for so many seconds, reports, waits again."""
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
    """Processes started inside have these variables too."""
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
    """The parent's end of a contestant."""

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
        """Let it work for so long (at least one step)."""
        self.pipe.send(seconds)

    def end(self) -> Turn:
        """What it did."""
        try:
            answer = self.pipe.recv()
        except EOFError:
            self.process.join(timeout=5)
            raise RuntimeError(f"{self.setting.name} died (exit code {self.process.exitcode})") from None
        if isinstance(answer, str):
            raise RuntimeError(f"{self.setting.name}: {answer}")
        return answer

    def quiet_turn(self, options: argparse.Namespace) -> Turn:
        """The same, again while others disturb it, and while there is patience left."""
        while True:
            self.begin(options.seconds)
            turn = self.end()
            if turn.others <= options.quiet or options.patience <= 0:
                return turn
            options.patience -= 1

    def stop(self) -> None:
        """Let it go home."""
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
    """All contestants in turns; their workers hold what they did. Those that fail are out."""
    workers = []
    together = all(setting.device == "cuda" for setting in settings)  # compiling there is work for the many other cores
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
    if together:  # the warm-up was one step, compiling; what the next do for the first time is not timed either
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
    """For each contestant its speed, and how many times faster the first one is."""
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
    """A row for each contestant; `more` are further columns."""
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
    """The options every race has."""
    parser.add_argument("--only", help="names of contestants, separated by ';'; the first is what others are held to")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, default=seconds, help="length of one turn, at least one step")
    parser.add_argument(
        "--quiet", type=float, default=0.2, help="take a turn again if others used more cores than this"
    )
    parser.add_argument("--patience", type=int, default=40, help="how many turns may be taken again in all")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="where to save the result")


def only(settings: Sequence[Any], names: str | None) -> list[Any]:
    """Those of the settings that were asked for, in the order asked for."""
    if not names:
        return list(settings)
    known = {setting.name: setting for setting in settings}
    wanted = [name.strip() for name in names.split(";")]
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"no contestant {unknown[0]!r}; there are: {'; '.join(known)}")
    return [known[name] for name in wanted]


def save(path: Path | None, rows: Sequence[dict[str, Any]], options: argparse.Namespace, **more: Any) -> None:
    """The whole result as JSON."""
    if path is None:
        return
    machine: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": options.threads,
        "processor": _processor(),
    }
    if torch.cuda.is_available():
        machine["cuda"] = torch.cuda.get_device_name()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, **more, "rows": rows}, indent=1) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
