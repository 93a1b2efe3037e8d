"""Read text files: lines of UTF-8, and CSV (RFC 4180, by Python's csv module). Errors name the file and the line.

Files are read block by block, plain or compressed. Lines end at newlines only. Only the size of a line beyond the limit
is kept, so memory is bounded for files without newlines and for compressed files that unpack to gigabytes.
"""

from __future__ import annotations

import csv
import difflib
import warnings
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.files import READ_ERRORS, compression_suffix, open_decompressed
from sightline.terminal import plural

LONGEST = 2**28  # default limit of bytes in a line: some corpora (text8) are one line
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_UTF16 = (BOM_UTF16_LE, BOM_UTF16_BE)
_ICONV = "`iconv -f {} -t utf-8`"
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
    try:
        file = open_decompressed(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the name") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DataError(f"{path} cannot be opened ({error}); check what it is and who may read it") from error

    def read(size: int) -> bytes:
        try:
            content: bytes = file.read(size)
            return content
        except READ_ERRORS as error:
            raise DataError(f"{path} is damaged or cut off ({error}); get the file again") from error

    empty = True
    with file:
        for line in lines_of_stream(read, str(path), most):
            yield line
            empty = False
    if empty:
        raise DataError(f"{path} is empty; give a file with one example a line, or leave the source out")


def lines_of_stream(read: Callable[[int], bytes], name: str, most: int = LONGEST) -> Iterator[str]:
    """The lines of a stream with this `read` method; a `LongLine` for each line of more than `most` bytes."""
    number = 1
    for block in _blocks(read, name, most):
        if isinstance(block, LongLine):
            yield block
            number += 1
            continue
        try:
            lines = block.decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            line = number + block.count(b"\n", 0, error.start)
            column = error.start - block.rfind(b"\n", 0, error.start)
            raise DataError(
                f"{name}, line {line}: byte {column} (0x{block[error.start]:02x}) is not UTF-8; "
                f"{encoding_remedy(block, beginning=number == 1)}"
            ) from error
        number += len(lines)
        bounded = len(block) <= most or 4 * max(map(len, lines)) <= most
        for text in lines:
            if not bounded and (size := len(text.encode("utf-8"))) > most:
                yield LongLine.of(size)
            else:
                yield text.removesuffix("\r")


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
    if nuls > len(block) // 4 and not compression_suffix(block) and not block.startswith(_UTF16):
        encoding = "utf-16be" if block[:1] == b"\0" else "utf-16le"
        raise DataError(f"{name} is not UTF-8 ({nuls:,} NUL bytes); convert it, e.g. with {_ICONV.format(encoding)}")
    return block.removeprefix(_BOM)


def encoding_remedy(block: bytes, *, beginning: bool) -> str:
    """The remedy for text that is not UTF-8.

    It suggests cp1252, not latin1: they differ only in bytes 0x80 to 0x9f, which are quotes, dashes and the euro sign
    in cp1252 but control characters in latin1, to which iconv would silently convert them.
    """
    if beginning and (suffix := compression_suffix(block)) is not None:
        return f"it looks compressed: give its name the suffix {suffix}"
    encoding = "utf-16" if beginning and block.startswith(_UTF16) else "cp1252"
    if encoding == "cp1252" and not _NOT_CP1252.isdisjoint(block):
        return "nor is it cp1252; find out its encoding, and convert the file with iconv"
    return f"convert the file, e.g. with {_ICONV.format(encoding)}"


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
            row = next(rows, None)
        except csv.Error as error:
            raise DataError(
                f'{path}, line {start}: not CSV ({error}); a cell with a quote is written "a ""quoted"" cell"'
            ) from error
        if row is None:
            return
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
    """The index of a column, which is named by the header or counted from 1."""
    names = [name.strip() for name in row]
    if isinstance(column, int):
        if 1 <= column <= len(row):
            return column - 1
        raise DataError(f"{path}: there is no column {column}, only {len(row)}; columns are counted from 1")
    if not header:
        raise DataError(
            f"{path}: column {column!r} is a name, and header: false says there are none; give a number from 1"
        )
    if names.count(column) > 1:
        raise DataError(f"{path}: {names.count(column)} columns are named {column!r}; give a number from 1")
    if column in names:
        return names.index(column)
    near = difflib.get_close_matches(column, names, n=1)
    guess = f"did you mean {near[0]!r}?" if near else f"its columns are {', '.join(map(repr, names))}"
    raise DataError(f"{path}: there is no column {column!r}; {guess}")
