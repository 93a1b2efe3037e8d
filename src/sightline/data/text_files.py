"""Read text files: UTF-8 lines, TSV and CSV (RFC 4180, by Python's csv module).

Files are read block by block, plain or compressed. Lines end at newlines only. Of a line beyond the limit only the size
is kept, so neither a file without newlines nor a compressed one that unpacks to gigabytes takes more memory than a line
may have.
"""

from __future__ import annotations

import csv
import difflib
import warnings
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal

from sightline.files import READ_ERRORS, compression_suffix, open_decompressed
from sightline.terminal import plural, short

LONGEST = 2**28  # default limit of bytes in a line: some corpora (text8) are one line
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_NOT_CP1252 = frozenset(b"\x81\x8d\x8f\x90\x9d")
_REPORTED = 5  # too long lines of a file that are reported one by one


class DataError(ValueError):
    """A corpus differs from what the recipe says."""


class LongLine(str):
    """An empty text in the place of a line that is too long."""

    size: int  # bytes

    @classmethod
    def of(cls, size: int) -> LongLine:
        """For a line of `size` bytes."""
        line = cls()
        line.size = size
        return line


@dataclass(frozen=True)
class LineLimit:
    """The most bytes of a line; a longer line is an error, or with `drop` a warning, and the line is dropped."""

    most: int = LONGEST
    drop: bool = False
    remedy: str = "cut the line into shorter ones"

    def report(self, name: str, number: int, size: int, earlier: int) -> None:
        """Refuse a line, or warn that it is dropped; after a few warnings about a file, the rest is not reported."""
        what = f"{name}, line {number}: {size:,} bytes, more than the {self.most:,} a line may have"
        if not self.drop:
            raise DataError(f"{what}; {self.remedy}")
        if earlier < _REPORTED:
            warnings.warn(f"{what}; dropped", stacklevel=2)
        elif earlier == _REPORTED:
            warnings.warn(f"{what}; dropped, as are more of this file that are not named", stacklevel=2)


NO_LIMIT = LineLimit()


def read_lines(path: Path, limit: LineLimit = NO_LIMIT) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or compressed, without line ends and byte-order mark.

    A line beyond the limit is an error or, with `drop`, a `LongLine`. An empty file is an error.
    """
    long = 0
    for number, line in enumerate(open_lines(path, limit.most), 1):
        if isinstance(line, LongLine):
            limit.report(str(path), number, line.size, long)
            long += 1
        yield line


def open_lines(path: Path, most: int = LONGEST) -> Iterator[str]:
    """The lines of a file, with a `LongLine` for each line of more than `most` bytes."""
    empty = True
    with _open(path) as file:
        for line in lines_of_stream(_reader(path, file), str(path), most):
            yield line
            empty = False
    if empty:
        raise DataError(f"{path} is empty; give a file with one example a line, or leave the source out")


def lines_of_stream(read: Callable[[int], bytes], name: str, most: int = LONGEST) -> Iterator[str]:
    """The lines of a stream, given its `read`; a `LongLine` for each line of more than `most` bytes."""
    number = 1
    for block in _blocks(read, name, most):
        if isinstance(block, LongLine):
            yield block
            number += 1
            continue
        try:
            lines = block.decode("utf-8").split("\n")
        except UnicodeDecodeError:
            lines = list(_decode_each(name, block, number))
        number += len(lines)
        bounded = len(block) <= most or 4 * max(map(len, lines)) <= most
        for line in lines:
            if not bounded and (size := len(line.encode("utf-8"))) > most:
                yield LongLine.of(size)
            else:
                yield line[:-1] if line.endswith("\r") else line


def _blocks(read: Callable[[int], bytes], name: str, most: int) -> Iterator[bytes | LongLine]:
    """The content in blocks of whole lines, without the last newline of each block; too long lines separately."""
    rest = bytearray()
    skipped = returns = 0  # bytes of a too long line; carriage returns before the first newline
    first = single = True
    while block := read(_BLOCK):
        if first:
            while len(block) < len(_BOM) and _BOM.startswith(block) and (more := read(_BLOCK)):
                block += more
            block, first = _beginning(block, name), False
        if skipped:
            head, newline, block = block.partition(b"\n")
            skipped += len(head)
            returns += head.count(b"\r") if single else 0
            if not newline:
                continue
            yield LongLine.of(skipped)
            skipped, single = 0, False
        body, newline, tail = block.rpartition(b"\n")
        if newline:
            yield bytes(rest) + body
            rest, single = bytearray(tail), False
        else:
            rest += tail
        if len(rest) > most:
            returns += rest.count(b"\r") if single else 0
            skipped, rest = len(rest), bytearray()
    returns += rest.rstrip(b"\r").count(b"\r")
    if single and returns:
        raise DataError(
            f"{name} has no newline but {returns:,} carriage returns (line ends of old Macs), so it would be one line; "
            f"convert it, e.g. with: tr '\\r' '\\n'"
        )
    if skipped:
        yield LongLine.of(skipped)
    elif rest:
        yield bytes(rest)


def _beginning(block: bytes, name: str) -> bytes:
    """The first block without its byte-order mark; UTF-16 without one, which may be valid UTF-8, is refused."""
    nuls = block.count(b"\0")
    if nuls > len(block) // 4 and not compression_suffix(block) and not _utf16(block):
        encoding = "utf-16be" if block[:1] == b"\0" else "utf-16le"
        raise DataError(f"{name} is not UTF-8 ({nuls:,} NUL bytes); convert it, e.g. with {_iconv(encoding)}")
    return block.removeprefix(_BOM)


def _utf16(beginning: bytes) -> str | None:
    return "utf-16" if beginning.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else None


def _iconv(encoding: str) -> str:
    return f"`iconv -f {encoding} -t utf-8`"


def _reader(path: Path, file: IO[bytes]) -> Callable[[int], bytes]:
    """`file.read`, with errors that name the file."""

    def read(size: int) -> bytes:
        try:
            return file.read(size)
        except READ_ERRORS as error:
            raise DataError(f"{path} is damaged or cut off ({error}); get the file again") from error

    return read


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = open_decompressed(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the name") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DataError(f"{path} cannot be opened ({error}); check what it is and who may read it") from error
    with file:
        yield file


def _decode_each(name: str, block: bytes, number: int) -> Iterator[str]:
    """Decode line by line, to report the line that is not UTF-8."""
    for at, line in enumerate(block.split(b"\n"), number):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {at}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; "
                f"{encoding_remedy(block, beginning=number == 1)}"
            ) from error


def encoding_remedy(block: bytes, *, beginning: bool) -> str:
    """The remedy for text that is not UTF-8.

    It suggests cp1252, not latin1: they differ only in bytes 0x80 to 0x9f, which are quotes, dashes and the euro sign
    in cp1252 but control characters in latin1, to which iconv would silently convert them.
    """
    if beginning and (suffix := compression_suffix(block)) is not None:
        return f"it looks compressed: give its name the suffix {suffix}"
    encoding = (_utf16(block) if beginning else None) or "cp1252"
    if encoding == "cp1252" and not _NOT_CP1252.isdisjoint(block):
        return "nor is it cp1252; find out its encoding, and convert the file with iconv"
    return f"convert the file, e.g. with {_iconv(encoding)}"


Header = bool | Literal["auto"]
Row = tuple[int, str, str]  # line number, and two cells

_SAMPLE = 200  # lines that are compared with the first
_COLUMN_NAMES = {  # in lower case
    *(
        "source",
        "target",
        "src",
        "tgt",
        "trg",
        "input",
        "output",
        "text",
        "texts",
        "sentence",
        "sentence1",
        "sentence2",
    ),
    *("label", "labels", "class", "category", "tag", "tags", "translation", "question", "answer", "query", "reference"),
    *("summary", "document", "article", "review", "title", "sentiment", "word", "words"),
}


class SkippedHeader(UserWarning):
    """The first line of a table is a header and was skipped."""


def is_header(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first line is a header: all cells are usual column names, and none occurs again in its column."""
    plain = [cell.strip().strip("\"'#").lower() for cell in cells]
    if not rows or not all(name in _COLUMN_NAMES for name in plain):
        return False
    below = ({row[place].strip().lower() for row in rows if place < len(row)} for place in range(len(plain)))
    return not any(name in seen for name, seen in zip(plain, below, strict=False))


def read_tsv(path: Path, columns: tuple[int, int], header: Header, limit: LineLimit = NO_LIMIT) -> Iterator[Row]:
    """Two columns of tab-separated lines, without the header; `auto` skips an evident header, with a warning."""
    needed = max(columns)
    lines = read_lines(path, limit)
    first = list(islice(lines, 1 + _SAMPLE)) if header == "auto" else []
    if header == "auto":
        cut = [line.split("\t") for line in first if not isinstance(line, LongLine)]
        chosen = [[row[number - 1] for number in columns] for row in cut if len(row) >= needed]
        header = len(chosen) > 1 and len(cut[0]) >= needed and is_header(chosen[0], chosen[1:])
        if header:
            warnings.warn(
                SkippedHeader(
                    f"{path}, line 1 names the columns ({short(first[0])}) and is skipped; set header of the source to "
                    f"true, or to false if it is an example"
                ),
                stacklevel=2,
            )
    for number, line in enumerate(chain(first, lines), 1):
        if number == 1 and header:
            continue
        if isinstance(line, LongLine):
            yield number, line, line
            continue
        cells = line.split("\t")
        if len(cells) < needed:
            raise DataError(
                f"{path}, line {number}: {plural(len(cells), 'column')}, and columns: {list(columns)} needs {needed} "
                f"with tabs between them; correct the line ({short(line)}) or set columns"
            )
        yield number, cells[columns[0] - 1], cells[columns[1] - 1]


def read_csv(
    path: Path, columns: Sequence[str | int], *, delimiter: str = ",", header: bool = True
) -> Iterator[tuple[Any, ...]]:
    """The line number and some cells of each row; columns are named by the header, or counted from 1.

    A quoted cell may hold delimiters and newlines, and `""` for a quote. A row has as many cells as the first line.
    """
    rows = csv.reader((line + "\n" for line in read_lines(path)), delimiter=delimiter, strict=True)
    width, places = 0, list[int]()
    while True:
        start = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f'{path}, line {start}: not CSV ({error}); a cell with a quote is written "a ""quoted"" cell"'
            ) from error
        if not row:  # an empty line
            continue
        if not width:
            width, places = len(row), [_column_index(path, row, each, header) for each in columns]
            if header:
                continue
        if len(row) != width:
            raise DataError(
                f"{path}, line {start}: {plural(len(row), 'cell')}, and the first line has {width}; put cells that "
                f"contain {delimiter!r} in quotes, or set delimiter"
            )
        yield start, *(row[place] for place in places)


def csv_columns(path: Path, delimiter: str = ",") -> list[str]:
    """The column names in the first line."""
    first = next(csv.reader((line + "\n" for line in read_lines(path)), delimiter=delimiter), [])
    return [name.strip() for name in first]


def _column_index(path: Path, row: Sequence[str], column: str | int, header: bool) -> int:
    """The index of a column."""
    names = [name.strip() for name in row]
    if isinstance(column, str) and header:
        if column in names:
            if names.count(column) > 1:
                raise DataError(f"{path}: {names.count(column)} columns are named {column!r}; give a number from 1")
            return names.index(column)
        near = difflib.get_close_matches(column, names, n=1)
        guess = f"did you mean {near[0]!r}?" if near else f"its columns are {', '.join(map(repr, names))}"
        raise DataError(f"{path}: there is no column {column!r}; {guess}")
    if isinstance(column, str):
        raise DataError(
            f"{path}: column {column!r} is a name, and header: false says there are none; give a number from 1"
        )
    if not 1 <= column <= len(row):
        raise DataError(f"{path}: there is no column {column}, only {len(row)}; columns are counted from 1")
    return column - 1
