"""The files that word vectors come in, read entry by entry; plain or compressed (.gz, .xz, .bz2, .zst).

word2vec text    "N D\\n", then N lines "word x₁ … x_D"
word2vec binary  "N D\\n", then N times: word, space, D float32 (little-endian), with or without a newline
GloVe text       lines "word x₁ … x_D" alone; some words have spaces in them, so values are counted from the right
"""

from __future__ import annotations

import io
import re
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from sightline.files import BROKEN, open_bytes
from sightline.terminal import plural
from sightline.text.shown import short

Format = Literal["word2vec", "word2vec-binary", "glove"]
Matrix = NDArray[np.float32]
_Entries = Iterator[tuple[bytes, Matrix]]

_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_LINE_END = b" \r\n"  # word2vec and fastText leave a space at the end of each line
_HEADER = re.compile(rb"(\d{1,18})[ \t]+([1-9]\d{0,5})\s*")  # bounded, or a wrong file could ask for any memory
_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_DECIMAL = re.compile(rb"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")
AGAIN = "get the file again"


class WordVectorError(ValueError):
    """A file of word vectors is not what it should be."""


@contextmanager
def vector_entries(
    path: Path, format: Format | None, width: int | None, wanted: Container[bytes]
) -> Iterator[tuple[int, _Entries]]:
    """D, and the wanted words with their vectors (D,) as they come; without a format, the file is looked into."""
    kind = format or _guess(path)
    with _open(path) as file:
        read = _read_binary if kind == "word2vec-binary" else _read_text
        yield read(path, file, kind, width, wanted)


def _read_text(
    path: Path, file: IO[bytes], kind: Format, width: int | None, wanted: Container[bytes]
) -> tuple[int, _Entries]:
    """D, and the wanted words of a text file with their vectors."""
    first = file.readline().removeprefix(_BOM)
    if kind == "word2vec":
        total, found = _header(path, first)
        return _agreed(path, found, width), _text_entries(path, file, 2, found, total, wanted)
    found = _trailing_values(first)
    if not found:
        raise WordVectorError(f"{path}, line 1: {_short(first)} is not a word and its values; is it a GloVe file?")
    lines = _again(first, file)
    return _agreed(path, found, width), _text_entries(path, lines, 1, found, None, wanted)


def _text_entries(
    path: Path, lines: Iterator[bytes] | IO[bytes], start: int, width: int, total: int | None, wanted: Container[bytes]
) -> _Entries:
    number = start - 1
    for number, line in enumerate(lines, start):
        parts = line.rstrip(_LINE_END).rsplit(b" ", width)
        word = parts[0]
        if len(parts) <= width or has_surplus(word):
            raise WordVectorError(
                f"{path}, line {number:,}: {_short(line)} has {_trailing_values(line)} values, not {width}; "
                f"mend or remove the line, or {AGAIN}"
            )
        if word in wanted:
            yield word, _vector(parts[1:], f"{path}, line {number:,}")
    if total is not None and number + 1 - start != total:
        raise WordVectorError(
            f"{path} has {plural(number + 1 - start, 'word')}, and its first line says {total:,}; {AGAIN}, "
            f"or mend the first line"
        )


def _vector(values: Sequence[bytes], where: str) -> Matrix:
    try:
        vector = np.array([float(value) for value in values], np.float32)
    except ValueError as error:
        raise WordVectorError(f"{where}: {error}; mend or remove the line, or {AGAIN}") from error
    return _finite(vector, where)


def _read_binary(
    path: Path, file: IO[bytes], kind: Format, width: int | None, wanted: Container[bytes]
) -> tuple[int, _Entries]:
    """D, and the wanted words of a binary file with their vectors."""
    first = file.readline(_BLOCK)
    total, found = _header(path, first)
    return _agreed(path, found, width), _binary_entries(path, file, len(first), found, total, wanted)


def _binary_entries(
    path: Path, file: IO[bytes], start: int, width: int, total: int, wanted: Container[bytes]
) -> _Entries:
    buffer, at, offset = b"", 0, start  # `offset` is where the buffer begins in the file
    for number in range(total):
        while (space := buffer.find(b" ", at)) < 0 or space + 1 + 4 * width > len(buffer):
            block = file.read(max(_BLOCK, 4 * width))
            if not block or (space < 0 and len(buffer) - at > _BLOCK):
                raise WordVectorError(
                    f"{path}, byte {offset + at:,}: no whole word with {width} values, and {number:,} of {total:,} "
                    f"words are read; the file is cut off or not binary: {_mended(width)}"
                )
            buffer, at, offset = buffer[at:] + block, 0, offset + at
        word = buffer[at:space].lstrip(b"\n")
        end = space + 1 + 4 * width
        if word in wanted:
            vector = np.frombuffer(buffer, "<f4", width, space + 1).astype(np.float32)
            yield word, _finite(vector, f"{path}, byte {offset + space + 1:,}")
        at = end
    if (buffer[at:] + file.read(2)).strip(b"\n"):
        raise WordVectorError(
            f"{path}, byte {offset + at:,}: there is more after the {plural(total, 'word')} that the first line says; "
            f"{_mended(width)}"
        )


def _mended(width: int) -> str:
    """What can be done for a file that was taken for a binary one, as text is whose first entry is not as it should."""
    return f"{AGAIN}, or, if it is text, mend its second line, which is no word with {width} numbers"


def _finite(vector: Matrix, where: str) -> Matrix:
    if not np.isfinite(vector).all():  # NaN is how a word without a vector is marked
        raise WordVectorError(f"{where}: a value is not finite; remove the word, or {AGAIN}")
    return vector


def _header(path: Path, line: bytes) -> tuple[int, int]:
    """N and D from the first line of word2vec."""
    match = _HEADER.fullmatch(line)
    if match is None:
        raise WordVectorError(
            f"{path}, line 1: {_short(line)} is not the number of words and the number of values of each; "
            f"word2vec files begin so, GloVe files do not: leave the format out, and the file is looked into"
        )
    return int(match[1]), int(match[2])


def _agreed(path: Path, found: int, width: int | None) -> int:
    if width is not None and found != width:
        raise WordVectorError(
            f"{path} has vectors of {found} values, and {width} are needed; set the width of the embedding to {found} "
            f"(model.width={found}), or take vectors of {width} values, as `sightline vectors --dim {width}` learns"
        )
    return found


def _guess(path: Path) -> Format:
    """The format that the beginning of a file looks like."""
    with _open(path) as file:
        first = file.readline(_BLOCK).removeprefix(_BOM)
        second = file.readline(_BLOCK)
    if not first:
        raise WordVectorError(f"{path} is empty; {AGAIN}")
    match = _HEADER.fullmatch(first)
    if match is None:
        return "glove"
    # A line of text with too few values is still text, and then an error that names it.
    expected = min(int(match[2]), second.rstrip(_LINE_END).count(b" "))
    return "word2vec" if not second or 0 < expected <= _trailing_values(second) else "word2vec-binary"


def _trailing_values(line: bytes) -> int:
    """How many numbers a line ends with, the first part (a word, be it a number) not counted."""
    parts = line.rstrip(_LINE_END).split(b" ")[1:]
    count = 0
    while count < len(parts) and _NUMBER.fullmatch(parts[-1 - count]):
        count += 1
    return count


def has_surplus(word: bytes) -> bool:
    """Whether what stands before the D values ends with one more: "route 66" is a word, "route 0.66" is not."""
    return b" " in word and _DECIMAL.fullmatch(word.rpartition(b" ")[2]) is not None


def _again(first: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _short(line: bytes) -> str:
    return short(line.rstrip(b"\r\n").decode("utf-8", "replace"))


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    try:
        with io.BufferedReader(open_bytes(path), _BLOCK) as file:
            yield cast("IO[bytes]", file)
    except FileNotFoundError as error:
        raise WordVectorError(f"{path} does not exist; check the name") from error
    except BROKEN as error:
        raise WordVectorError(
            f"{path} cannot be read to its end ({error}); check that it is whole and may be read"
        ) from error
