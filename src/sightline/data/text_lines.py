"""Lines of text files and streams: UTF-8, cut at newlines only, and never longer than a bound.

Content is read block by block. Of a line beyond the bound only the size is kept, so that neither a file without
newlines nor a compressed one that unpacks to gigabytes takes more memory than a long line may.
"""

from __future__ import annotations

import warnings
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sightline.files import BROKEN, looks_packed, open_bytes

LONGEST = 2**28  # bytes of a line, where nothing says less: some corpora (text8) are one line
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_NOT_CP1252 = frozenset(b"\x81\x8d\x8f\x90\x9d")
_NAMED = 5  # lines of a file that are named one by one


class DataError(ValueError):
    """A corpus is not what the recipe says it is."""


class LongLine(str):
    """Stands, as an empty text, for a line that is too long to be read."""

    size: int  # bytes

    @classmethod
    def of(cls, size: int) -> LongLine:
        """For a line of so many bytes."""
        line = cls()
        line.size = size
        return line


@dataclass(frozen=True)
class Bound:
    """The most bytes of a line; a longer one is an error with its line number, or (`drop`) reported and dropped."""

    most: int = LONGEST
    drop: bool = False
    remedy: str = "cut the line into shorter ones"

    def report(self, name: str, number: int, size: int, earlier: int) -> None:
        """Refuse a line, or warn that it is dropped; after a few of a file, those that follow are not named."""
        what = f"{name}, line {number}: {size:,} bytes, more than the {self.most:,} a line may have"
        if not self.drop:
            raise DataError(f"{what}; {self.remedy}")
        if earlier < _NAMED:
            warnings.warn(f"{what}; dropped", stacklevel=2)
        elif earlier == _NAMED:
            warnings.warn(f"{what}; dropped, as are more of this file that are not named", stacklevel=2)


UNBOUNDED = Bound()


def read_lines(path: Path, bound: Bound = UNBOUNDED) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or compressed, without their ends; a byte-order mark is skipped.

    A line beyond the bound is an error or, where the bound says so, a `LongLine`. An empty file is an error.
    """
    long = 0
    for number, line in enumerate(open_lines(path, bound.most), 1):
        if isinstance(line, LongLine):
            bound.report(str(path), number, line.size, long)
            long += 1
        yield line


def open_lines(path: Path, most: int = LONGEST) -> Iterator[str]:
    """The same with a `LongLine`, and no report, for each line of more than `most` bytes."""
    empty = True
    with _open(path) as file:
        for line in lines_of_stream(_reader(path, file), str(path), most):
            yield line
            empty = False
    if empty:
        raise DataError(f"{path} is empty; give a file with one example a line, or leave the source out")


def lines_of_stream(read: Callable[[int], bytes], name: str, most: int = LONGEST) -> Iterator[str]:
    """The lines of what `read` gives, block by block; `LongLine` for one of more than `most` bytes."""
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
    """The content in blocks of whole lines, without the newline at the end of each block; too long lines apart."""
    rest = bytearray()
    skipped = returns = 0  # bytes of a line that is too long; carriage returns before the first newline
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
    """The first block without its byte-order mark; UTF-16 without one, whose ASCII is valid UTF-8, is refused."""
    nuls = block.count(b"\0")
    if nuls > len(block) // 4 and not looks_packed(block) and not _utf16(block):
        encoding = "utf-16be" if block[:1] == b"\0" else "utf-16le"
        raise DataError(f"{name} is not UTF-8 ({nuls:,} NUL bytes); convert it, e.g. with {_iconv(encoding)}")
    return block.removeprefix(_BOM)


def _utf16(beginning: bytes) -> str | None:
    return "utf-16" if beginning.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else None


def _iconv(encoding: str) -> str:
    return f"`iconv -f {encoding} -t utf-8`"


def _reader(path: Path, file: IO[bytes]) -> Callable[[int], bytes]:
    """`file.read` with errors that name the file."""

    def read(size: int) -> bytes:
        try:
            return file.read(size)
        except BROKEN as error:
            raise DataError(f"{path} is damaged or cut off ({error}); get the file again") from error

    return read


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = open_bytes(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the name") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DataError(f"{path} cannot be opened ({error}); check what it is and who may read it") from error
    with file:
        yield file


def _decode_each(name: str, block: bytes, number: int) -> Iterator[str]:
    """Decode line by line, to name the one that cannot be."""
    for at, line in enumerate(block.split(b"\n"), number):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {at}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; "
                f"{encoding_remedy(block, beginning=number == 1)}"
            ) from error


def encoding_remedy(block: bytes, *, beginning: bool) -> str:
    """What to do with text that is not UTF-8.

    cp1252 is advised, not latin1: they differ in the bytes 0x80 to 0x9f alone, which are quotes, dashes and the euro
    sign in cp1252, and in latin1 control characters, to which iconv would convert them without a word.
    """
    if beginning and (suffix := looks_packed(block)) is not None:
        return f"it looks compressed: give its name the suffix {suffix}"
    encoding = (_utf16(block) if beginning else None) or "cp1252"
    if encoding == "cp1252" and not _NOT_CP1252.isdisjoint(block):
        return "nor is it cp1252; find out its encoding, and convert the file with iconv"
    return f"convert the file, e.g. with {_iconv(encoding)}"
