"""Commands in separate processes that can be killed at an exact moment.

Processes are forked from a server that has PyTorch loaded, and run the command line's entry point. An audit hook, which
Python calls for every file that is opened, renamed or removed, sends the signal, so each run ends at the same point.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Moment:
    """When to send a signal: an event of Python's audit hooks and a text in its arguments."""

    event: str
    holds: str
    signal: int = signal.SIGKILL

    def install(self) -> None:
        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            if event == self.event and any(self.holds in str(argument) for argument in arguments):
                os.kill(os.getpid(), self.signal)

        sys.addaudithook(watch)


@dataclass(frozen=True)
class Order:
    """One command in its own process."""

    arguments: tuple[str, ...]
    folder: Path
    environment: dict[str, str]
    moment: Moment | None = None
    largest_file: int | None = None
    lines_in: bytes = b""

    def run(self) -> None:
        """In the child: run the command with its streams in files."""
        (self.folder / "in").write_bytes(self.lines_in)
        for number, name, flags in ((0, "in", os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "err", os.O_WRONLY)):
            os.dup2(os.open(self.folder / name, flags | os.O_CREAT), number)
        sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        os.environ.update(self.environment)
        torch.set_num_threads(1)  # two threads that wait for each other are 100 times slower on a busy machine
        sys.argv = ["sightline", *self.arguments]
        if self.largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.largest_file, self.largest_file))
        if self.moment is not None:
            _audit_steps()
            self.moment.install()
        from sightline.cli import main

        try:
            main()
        finally:
            sys.stdout.flush()


def _audit_steps() -> None:
    """Raise audit events for steps and validations, so that a process can be killed between two steps."""
    from sightline.training.loggers import PlainDisplay

    for name in ("step", "validation"):

        def emit(self: Any, progress: Any, record: Any, name: str = name) -> None:
            sys.audit(f"sightline.{name}", f"<{progress.step}>")

        setattr(PlainDisplay, name, emit)


def run(order: Order) -> None:
    order.run()


@dataclass
class Result:
    code: int | None
    out: str
    err: str


@dataclass
class Server:
    """Starts commands in forked processes."""

    folder: Path
    environment: dict[str, str]
    context: Any = field(default_factory=lambda: multiprocessing.get_context("forkserver"))
    count: int = 0

    def start(self, *arguments: Any, **how: Any) -> tuple[Any, Path]:
        self.count += 1
        folder = self.folder / f"process-{self.count}"
        folder.mkdir()
        order = Order(tuple(map(str, arguments)), folder, self.environment, **how)
        process = self.context.Process(target=run, args=(order,))
        process.start()
        return process, folder

    def __call__(self, *arguments: Any, **how: Any) -> Result:
        process, folder = self.start(*arguments, **how)
        process.join(300)
        if process.exitcode is None:
            process.kill()
        return Result(process.exitcode, (folder / "out").read_text(), (folder / "err").read_text())
