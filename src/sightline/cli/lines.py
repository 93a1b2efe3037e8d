"""What comes in line by line, from a file or a person, and goes out so that every line stays one."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from sightline.terminal import plural

Item = TypeVar("Item")
WINDOW = 2048  # most lines (or sentences of a tagged file) predicted together
LETTERS = 2**22  # most characters of them, but for the last line
MOST = 2**24  # bytes of a line, where no run says less
BOM = "\ufeff"


def named(file: Path | None) -> Path | None:
    """The file of an input; None, where nothing or `-` is given, is standard input."""
    return None if str(file) == "-" else file


def lines_of(file: Path | None, most: int | None = None) -> Iterator[str]:
    """The lines of a file or of standard input, split at newlines alone, without their ends.

    A byte-order mark is passed over. An empty file is an error, most likely one that went wrong before; from a pipe,
    nothing is nothing. A line of more than `most` bytes comes as a `LongLine`; without `most`, it is an error.
    """
    from sightline.data.text_lines import Bound, LongLine, lines_of_stream, open_lines

    if (path := named(file)) is None:
        stream = standard_input()
        name, read = "standard input", getattr(stream, "read1", stream.read)
        lines = lines_of_stream(read, name, most or MOST)
    else:
        name, lines = str(path), open_lines(path, most or MOST)
    for number, line in enumerate(lines, 1):
        if most is None and isinstance(line, LongLine):
            Bound(MOST).report(name, number, line.size, 0)
        yield line


def standard_input() -> Any:
    """The bytes of standard input; where it is closed (`<&-`) that is an error."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; name a file, or pipe lines into the command")
    return sys.stdin.buffer


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
    from sightline.data.text_lines import DataError
    from sightline.files import BROKEN, open_bytes

    if (path := named(file)) is None:
        yield from _marked(_decoded(standard_input(), "standard input"))
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


def _decoded(file: IO[bytes], name: str) -> Iterator[str]:
    from sightline.data.text_lines import Bound, encoding_remedy

    for number, line in enumerate(iter(lambda: file.readline(MOST + 1), b""), 1):
        if len(line) > MOST:
            Bound(MOST).report(name, number, len(line), 0)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: byte {error.start + 1} is not UTF-8; "
                f"{encoding_remedy(line, beginning=number == 1)}"
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
        letters = 0  # since the queue was last empty: long lines are not read far ahead
        try:
            for item in items:
                letters += len(item) if isinstance(item, str) else 0
                while letters > 2 * LETTERS and not ready.empty():
                    time.sleep(0.01)
                if ready.empty():
                    letters = 0
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
        letters = 0
        while not isinstance(item, _End):
            window.append(item)
            letters += len(item) if isinstance(item, str) else 0
            if len(window) == WINDOW or letters > LETTERS:
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
