"""Run cases one after another under a time limit, and collect failures with the command that repeats each."""

from __future__ import annotations

import io
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import typer

from sightline.cli.app import app
from sightline.cli.errors import INTERNAL_ERROR, error_boundary

SECONDS = 60  # a case that takes longer hangs
GROUP: Any = typer.main.get_command(app)


class Hang(BaseException):
    """A case took too long."""


class Wrong(AssertionError):
    """A case failed in a way that no input justifies."""


@dataclass(frozen=True)
class Called:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    def check(self, *named: str) -> None:
        """Refuse internal errors, tracebacks, raw control characters, and failures without a reason or place."""
        if self.code == INTERNAL_ERROR or "Traceback" in self.err or "internal error" in self.err:
            raise Wrong(f"internal error: {self.err[-600:]}")
        if self.code not in (0, 1, 2):
            raise Wrong(f"exit code {self.code}: {self.err[-600:]}")
        if "\x1b" in self.err or "\u202e" in self.err:
            raise Wrong(f"raw control characters: {self.err[-300:]!r}")
        if self.code and not self.err.strip():
            raise Wrong(f"exit code {self.code} without a message")
        if self.code and named and not any(name in self.err for name in named):
            raise Wrong(f"the error names none of {named}: {self.err[-600:]}")


def call(arguments: list[str], stdin_text: str = "") -> Called:
    """A command in this process, with the error boundary of the program."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin_text.encode()), "utf-8")
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("default")
            try:
                with error_boundary():
                    GROUP.main(arguments, prog_name="sightline")
            except SystemExit as left:
                code = left.code or 0
    finally:
        sys.stdin = stdin
    out.flush()
    err.flush()
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]  # type: ignore[attr-defined]
    return Called(int(code), *texts)


@contextmanager
def watchdog(seconds: int = SECONDS) -> Iterator[None]:
    """Raise `Hang` in a block that takes too long."""

    def late(number: int, frame: Any) -> None:
        raise Hang(f"no end after {seconds} s, at:\n{''.join(traceback.format_stack(frame)[-4:])}")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(family: str, default: int, case: Callable[[random.Random], str]) -> None:
    """Run cases of a family, each with its own seed; `case` returns its outcome or raises.

    SIGHTLINE_FUZZ is the number of cases, SIGHTLINE_FUZZ_SEED the first seed (one case repeats a failure).
    """
    count, first = int(os.environ.get("SIGHTLINE_FUZZ", default)), int(os.environ.get("SIGHTLINE_FUZZ_SEED", 0))
    failures, outcomes = [], dict[str, int]()
    for seed in range(first, first + count):
        if seed > first and (seed - first) % 100 == 0:
            print(f"{family}: {seed - first} of {count} cases, {len(failures)} failures", flush=True)
        try:
            with watchdog():
                outcome = case(random.Random(f"{family}:{seed}"))
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        except (Exception, Hang) as error:
            what = str(error) if isinstance(error, Wrong | Hang) else traceback.format_exc(limit=-4)
            note = " ".join(getattr(error, "__notes__", []))
            failures.append(
                f"SIGHTLINE_FUZZ=1 SIGHTLINE_FUZZ_SEED={seed} pytest -m fuzz -k {family}\n    {note}\n    {what}"
            )
            print(failures[-1], flush=True)
    print(f"{family}: {count} cases, {outcomes}, {len(failures)} failures")
    assert not failures, f"{len(failures)} of {count}:\n" + "\n".join(failures[:25])
