"""What comes in line by line, from a file or a person, and goes out so that every line stays one."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from sightline.plural import plural

Item = TypeVar("Item")
WINDOW = 2048  # most lines (or sentences of a tagged file) predicted together
BOM = "\ufeff"


def named(file: Path | None) -> Path | None:
    """The file of an input; None, where nothing or `-` is given, is standard input."""
    return None if str(file) == "-" else file


def lines_of(file: Path | None) -> Iterator[str]:
    """The lines of a file or of standard input, split at newlines alone, without their ends.

    A byte-order mark is passed over. An empty file is an error, most likely one that went wrong before; from a pipe,
    nothing is nothing.
    """
    from sightline.data.sources import read_lines

    if (path := named(file)) is not None:
        yield from read_lines(path)
        return
    for number, line in enumerate(_decoded(sys.stdin.buffer, "standard input")):
        yield (line.removeprefix(BOM) if number == 0 else line).rstrip("\n").rstrip("\r")


class Companion:
    """A file that goes with the input, a line for each of its lines: no fewer, and no more."""

    def __init__(self, path: Path, remedy: str) -> None:
        self.path, self.remedy = path, remedy
        self.lines = iter(lines_of(path))

    def next(self, count: int, done: int) -> list[str]:
        """Those of the next lines; `done` went before."""
        taken = [text for _, text in zip(range(count), self.lines, strict=False)]
        if len(taken) < count:
            raise ValueError(
                f"{self.path} has {plural(done + len(taken), 'line')}, fewer than the input; {self.remedy}"
            )
        return taken

    def check_spent(self, done: int) -> None:
        """Refuse lines that are left when the input, of `done` lines, has ended."""
        if next(self.lines, None) is not None:
            raise ValueError(
                f"{self.path} has more lines than the input, which has {plural(done, 'line')}; {self.remedy}"
            )


def whole_lines(file: Path | None) -> Iterator[str]:
    """The lines with their ends, and a byte-order mark as a line of its own: joined, they are the file.

    An empty file is an error, as in `lines_of`.
    """
    from sightline.compression import BROKEN, open_bytes
    from sightline.data.sources import DataError

    if (path := named(file)) is None:
        yield from _marked(_decoded(sys.stdin.buffer, "standard input"))
        return
    empty = True
    try:
        with open_bytes(path) as content:
            for line in _marked(_decoded(content, str(file))):
                empty = empty and line in ("", BOM)
                yield line
    except FileNotFoundError as error:
        raise DataError(f"{file} does not exist; check the name") from error
    except BROKEN as error:
        raise DataError(f"{file} cannot be read or is damaged ({error}); get the file again") from error
    if empty:
        raise DataError(f"{file} is empty; give a file with at least one line")


def _decoded(lines: Iterable[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: byte {error.start + 1} is not UTF-8; convert the text, "
                f"e.g. with: iconv -f LATIN1 -t UTF-8"
            ) from error


def _marked(lines: Iterator[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == 0 and line.startswith(BOM):
            yield BOM
            line = line[len(BOM) :]
        yield line


class _End:
    """What a reader puts behind the last item: nothing more, or why."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def _read_ahead(items: Iterator[Item]) -> queue.Queue[Item | _End]:
    """Items read by a thread of their own, so that whoever takes them knows whether there are more already."""
    ready: queue.Queue[Item | _End] = queue.Queue(2 * WINDOW)

    def read() -> None:
        try:
            for item in items:
                ready.put(item)
            ready.put(_End())
        except BaseException as error:  # handed on, to be raised where it is seen
            ready.put(_End(error))

    threading.Thread(target=read, daemon=True, name="lines").start()
    return ready


def windows(items: Iterator[Item]) -> Iterator[list[Item]]:
    """Whatever items are there, up to a window: one by one from a person, many at once from a file."""
    ready = _read_ahead(items)
    while True:
        window: list[Item] = []
        item = ready.get()
        while not isinstance(item, _End):
            window.append(item)
            if len(window) == WINDOW:
                break
            try:
                item = ready.get(timeout=0.02)
            except queue.Empty:
                break
        if window:
            yield window
        if isinstance(item, _End):
            if item.error is not None:
                raise item.error
            return


def escaped(text: str) -> str:
    r"""A text of several lines in one: a newline is written \n, a carriage return \r, a backslash \\."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
