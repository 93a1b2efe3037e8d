"""Input lines: reading them as they come, limits on their length, and notes on what the model could not handle."""

from __future__ import annotations

import queue
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.decoding.request import Phrases
    from sightline.recipe import Decoding
    from sightline.run import Run
    from sightline.tasks.base import Prediction, Task
    from sightline.text.vocabulary import Vocabulary


Item = TypeVar("Item")
WINDOW = 2048  # most lines (or sentences of a tagged file) predicted together
CHARACTERS = 2**22  # most characters of them, without the last line
MOST = 2**24  # bytes of a line, unless the run sets a lower limit
BOM = "\ufeff"


def named(file: Path | None) -> Path | None:
    """The input file; None (no file, or `-`) is standard input."""
    return None if str(file) == "-" else file


def lines_of(file: Path | None, most: int | None = None) -> Iterator[str]:
    """The lines of a file or of standard input, split at newlines only, without line ends and byte-order mark.

    An empty file is an error; empty standard input has no lines. A line of more than `most` bytes becomes a `LongLine`;
    without `most`, a line of more than `MOST` bytes is an error.
    """
    from sightline.data.text_files import LineLimit, LongLine, lines_of_stream, open_lines

    if (path := named(file)) is None:
        name, stream = "standard input", standard_input()
        lines = lines_of_stream(getattr(stream, "read1", stream.read), name, most or MOST)
    else:
        name, lines = str(path), open_lines(path, most or MOST)
    for number, line in enumerate(lines, 1):
        if most is None and isinstance(line, LongLine):
            LineLimit(MOST).report(name, number, line.size, 0)
        yield line


def standard_input() -> Any:
    """The bytes of standard input; an error if it is closed (`<&-`)."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; name a file, or pipe lines into the command")
    return sys.stdin.buffer


class Companion:
    """A file with exactly one line for each input line."""

    def __init__(self, path: Path, remedy: str) -> None:
        self.path, self.remedy = path, remedy
        self.lines = iter(lines_of(path))

    def next(self, count: int, done: int) -> list[str]:
        """The next `count` lines; `done` lines have been read."""
        lines = list(islice(self.lines, count))
        if len(lines) < count:
            raise ValueError(
                f"{self.path} has {plural(done + len(lines), 'line')}, fewer than the input; {self.remedy}"
            )
        return lines

    def check_spent(self, done: int) -> None:
        """Refuse lines that are left after the `done` lines of the input."""
        if next(self.lines, None) is not None:
            raise ValueError(
                f"{self.path} has more lines than the input, which has {plural(done, 'line')}; {self.remedy}"
            )


class PhraseFiles:
    """Files of required and forbidden phrases: one line for each line of the input, tabs between phrases."""

    def __init__(self, require: Path | None, forbid: Path | None) -> None:
        remedy = "give one line of phrases for each, empty where there are none"
        paths = {"require": require, "forbid": forbid}
        self.files = {name: Companion(path, remedy) for name, path in paths.items() if path is not None}

    @staticmethod
    def of(require: Path | None, forbid: Path | None) -> PhraseFiles | None:
        return None if require is None and forbid is None else PhraseFiles(require, forbid)

    @property
    def option(self) -> str:
        """The name of the first file."""
        return next(iter(self.files))

    def next(self, count: int, done: int) -> list[Phrases]:
        """The phrases of the next `count` lines."""
        from sightline.decoding.request import Phrases

        columns = []
        for name in ("require", "forbid"):
            lines = self.files[name].next(count, done) if name in self.files else [""] * count
            columns.append([tuple(phrase for phrase in line.split("\t") if phrase.strip()) for line in lines])
        return [Phrases(*pair) for pair in zip(*columns, strict=True)]

    def check_spent(self, done: int) -> None:
        """Refuse phrases beyond the end of the input."""
        for file in self.files.values():
            file.check_spent(done)


@contextmanager
def phrase_warnings() -> Iterator[None]:
    """Show every warning about required and forbidden phrases, not only the first (cli/errors.py prints them)."""
    from sightline.decoding.phrases import PhraseWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", PhraseWarning)
        yield


def whole_lines(file: Path | None) -> Iterator[str]:
    """The lines with their line ends, and a byte-order mark as a separate line, so that joined they are the file.

    An empty file is an error, as in `lines_of`.
    """
    from sightline.data.text_files import DataError
    from sightline.files import READ_ERRORS, open_decompressed

    if (path := named(file)) is None:
        yield from _decoded(standard_input(), "standard input")
        return
    empty = True
    try:
        with open_decompressed(path) as content:
            for line in _decoded(content, str(file)):
                empty = empty and line in ("", BOM)
                yield line
    except FileNotFoundError as error:
        raise DataError(f"{file} does not exist; check the name") from error
    except READ_ERRORS as error:
        raise DataError(f"{file} cannot be read or is damaged ({error}); get the file again") from error
    if empty:
        raise DataError(f"{file} is empty; give a file with at least one line")


def _decoded(file: IO[bytes], name: str) -> Iterator[str]:
    from sightline.data.text_files import LineLimit, encoding_remedy

    for number, line in enumerate(iter(lambda: file.readline(MOST + 1), b""), 1):
        if len(line) > MOST:
            LineLimit(MOST).report(name, number, len(line), 0)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: byte {error.start + 1} is not UTF-8; "
                f"{encoding_remedy(line, beginning=number == 1)}"
            ) from error
        if number == 1 and text.startswith(BOM):
            yield BOM
            text = text.removeprefix(BOM)
        yield text


@dataclass
class _End:
    """The end of the items, or the error that ended them."""

    error: BaseException | None = None


def _read_ahead(items: Iterator[Item]) -> queue.Queue[Item | _End]:
    """Items read by a thread, so that the consumer can see whether more are ready."""
    ready: queue.Queue[Item | _End] = queue.Queue(2 * WINDOW)

    def read() -> None:
        characters = 0  # since the queue was last empty: long lines are not read far ahead
        try:
            for item in items:
                characters += len(item) if isinstance(item, str) else 0
                while characters > 2 * CHARACTERS and not ready.empty():
                    time.sleep(0.01)
                if ready.empty():
                    characters = 0
                ready.put(item)
            ready.put(_End())
        except BaseException as error:  # raised by the consumer
            ready.put(_End(error))

    threading.Thread(target=read, daemon=True, name="lines").start()
    return ready


def windows(items: Iterator[Item]) -> Iterator[list[Item]]:
    """The items that are ready, up to a window: one by one from a keyboard, many at once from a file."""
    ready = _read_ahead(items)
    while True:
        window: list[Item] = []
        item = ready.get()
        characters = 0
        while not isinstance(item, _End):
            window.append(item)
            characters += len(item) if isinstance(item, str) else 0
            if len(window) == WINDOW or characters > CHARACTERS:
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
    r"""A text on one line: a newline becomes \n, a carriage return \r, a backslash \\."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


MaxInputLength = Annotated[
    int | None, typer.Option(min=1, max=2**24, metavar="N", help="Most tokens of an input line.", hidden=True)
]
_NAMED = 20  # lines


@dataclass
class InputLength:
    """The limit on the length of input lines, and the numbers of the lines that exceed it."""

    run: Run
    tokens: int
    refused: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, run: Run, tokens: int | None) -> InputLength:
        """The requested limit, or that of the run's recipe."""
        return cls(run, tokens or run.recipe.longest_input())

    @property
    def bytes(self) -> int:
        """The most bytes of a line; a longer one is not read."""
        from sightline.recipe.data import longest_line

        return longest_line(self.tokens)

    def bounded(self, lines: Sequence[str], done: int) -> list[str]:
        """The lines, with empty `LongLine`s for those that are too long; `done` lines came before."""
        bounded = [self._bounded(line) for line in lines]
        self.refused += [number for number, line in enumerate(bounded, done + 1) if is_long(line)]
        return bounded

    def _bounded(self, line: str) -> str:
        from sightline.data.text_files import LongLine

        # A text has no more tokens than characters, except that BPE splits characters of several bytes.
        if self.run.recipe.data.clean.truncate_source is not None or 4 * len(line) <= self.tokens or is_long(line):
            return line
        tokens = len(self.run.vocabulary.source.encode(line))
        return line if tokens <= self.tokens else LongLine.of(len(line.encode("utf-8")))

    def check(self, lines: Sequence[str], what: str, done: int = 0) -> None:
        """Refuse lines that are too long; `done` lines came before."""
        self.bounded(lines, done)
        if self.refused:
            raise ValueError(
                f"{what}, {self.run.task.unit} {self.refused[0]:,}: more than {self._bound}, the most this run "
                f"reads in one; cut it into shorter ones"
            )

    def notes(self) -> list[str]:
        """A note on the lines that were too long."""
        if not self.refused:
            return []
        named = ", ".join(f"{number:,}" for number in self.refused[:_NAMED])
        rest = len(self.refused) - _NAMED
        return [
            f"{plural(len(self.refused), 'line')} too long (more than {self._bound}): {named}"
            f"{f' and {rest:,} more' if rest > 0 else ''}; the output is empty there. Cut the text into shorter "
            f"lines, or raise --max-input-length"
        ]

    @property
    def _bound(self) -> str:
        return f"{plural(self.tokens, 'token')} or {plural(self.bytes, 'byte')}"


def is_long(line: str) -> bool:
    """Return True if this is the placeholder of a line that is too long."""
    from sightline.data.text_files import LongLine

    return isinstance(line, LongLine)


_SHOWN = 8  # pieces named, at most
_LONGEST = 40  # characters of each


class UnknownPieces:
    """Pieces of texts that are not in the vocabulary."""

    def __init__(self, what: str, *, unit: str = "line") -> None:
        self.what, self.unit = what, unit
        self.count, self.texts, self.examples = 0, 0, dict[str, None]()

    def add(self, pieces: Sequence[str]) -> None:
        """Count the unknown pieces of one text."""
        self.count += len(pieces)
        self.texts += bool(pieces)
        for piece in pieces:
            if len(self.examples) < _SHOWN:
                self.examples[piece] = None

    def notes(self) -> list[str]:
        """A note, if there are any."""
        if not self.count:
            return []
        where = f"{'on' if self.unit == 'line' else 'in'} {plural(self.texts, self.unit)}"
        short = (piece if len(piece) <= _LONGEST else piece[: _LONGEST - 1] + "…" for piece in self.examples)
        return [
            f"{self.what}, for they are not in the vocabulary: {plural(self.count, 'piece')} {where}, "
            f"{', '.join(map(repr, short))}"
        ]


class Shortfalls:
    """Unknown pieces of inputs, inputs that are truncated, and outputs that are incomplete."""

    def __init__(self, task: Task, options: Decoding, *, unit: str = "line") -> None:
        from sightline.tasks.incomplete import Incomplete

        self.task, self.options, self.unit = task, options, unit
        self.unknown, self.cut, self.ended = UnknownPieces("read as unknown", unit=unit), 0, 0
        self.incomplete = Incomplete()

    def add_inputs(self, texts: Sequence[str]) -> None:
        """Count inputs."""
        self.cut += self.task.cut_short(texts)
        for text in texts:
            self.unknown.add(self.task.unknown(text))

    def add_outputs(self, answers: Sequence[Sequence[Prediction]]) -> None:
        """Count outputs."""
        self.ended += self.task.ended_short(answers)
        self.incomplete.add(answers)

    def notes(self) -> list[str]:
        """Notes on what was counted."""
        ended = f"{plural(self.ended, self.unit)} ended where the learned positions of this model do"
        cut = f"{plural(self.cut, self.unit)} cut short (data.clean.truncate_source)"
        notes = [*([ended] if self.ended else []), *([cut] if self.cut else []), *self.unknown.notes()]
        return [*notes, *self.incomplete.notes(self.task, self.options)]


def print_notes(notes: Sequence[str]) -> None:
    """Print notes on standard error, one per line."""
    for note in notes:
        print(f"sightline: {note}", file=sys.stderr)


def report_unknown_target(vocabulary: Vocabulary, target: str | None) -> None:
    """Report pieces of a forced output that are not in the vocabulary; unknown labels are refused elsewhere."""
    if target is not None and vocabulary.labels == "none":
        unknown = UnknownPieces("written as unknown (--target)", unit="text")
        unknown.add(vocabulary.target.unknown(target))
        print_notes(unknown.notes())
