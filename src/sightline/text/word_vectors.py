"""Word vectors from files: reading, lookup, embedding initialization and writing.

word2vec text    "N D\\n", then N lines "word x₁ … x_D"
word2vec binary  "N D\\n", then N times: word, space, D float32 (little-endian), with or without a newline
GloVe text       lines "word x₁ … x_D"; some words contain spaces, so values are counted from the right

Files may be compressed (.gz, .xz, .bz2, .zst). They are streamed, and only the words of a vocabulary are kept. Words
are compared as UTF-8 bytes, so invalid UTF-8 in well-known files does no harm.
"""

from __future__ import annotations

import io
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sightline.files import READ_ERRORS, compressed, open_decompressed, write_atomically
from sightline.terminal import plural, short
from sightline.text.tokenizer import SPACE, SPECIALS, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


Table = TypeVar("Table", "Tensor", NDArray[np.float32])


@dataclass(frozen=True)
class Coverage:
    """The number of words of a vocabulary that have a vector in a file."""

    found: int  # exact matches
    lowercased: int  # matches of the lowercased word
    missing: tuple[str, ...]
    file: str

    @property
    def known(self) -> int:
        """Words with a vector."""
        return self.found + self.lowercased

    @property
    def size(self) -> int:
        """All words."""
        return self.known + len(self.missing)

    def describe(self) -> str:
        """One line for a log: "word vectors: 14,210 of 16,000 words (88.8%) found in vectors.txt"."""
        share = self.known / max(self.size, 1)
        return f"word vectors: {self.known:,} of {self.size:,} words ({share:.1%}) found in {self.file}"


@dataclass(frozen=True)
class WordVectors:
    """The vectors of a vocabulary, where known."""

    matrix: Matrix  # (V, D), NaN in the rows of words without a vector
    known: NDArray[np.bool_]  # (V)
    coverage: Coverage


def read_word_vectors(
    path: Path,
    vocabulary: Sequence[str],
    *,
    format: Format | None = None,
    lowercase: bool = False,
    width: int | None = None,
) -> WordVectors:
    """The vectors of the words of a vocabulary, written without "▁".

    Without a format, it is detected. With `lowercase`, a word without an exact match gets the vector of its lowercased
    form. `width` is the expected D. If a word occurs twice in the file, its first vector is used.
    """
    exact = _rows(vocabulary)
    lowered = _rows([word.lower() for word in vocabulary]) if lowercase else {}
    with vector_entries(path, format, width, exact.keys() | lowered.keys()) as (width, entries):
        matrix = np.full((len(vocabulary), width), np.nan, np.float32)  # (V, D)
        source = np.zeros(len(vocabulary), np.int8)  # 0 for no vector, 1 for one of the lowercased word, 2 for its own
        for word, vector in entries:
            for level, rows in ((1, lowered.get(word, ())), (2, exact.get(word, ()))):
                for row in rows:
                    if source[row] < level:
                        matrix[row], source[row] = vector, level
    missing = tuple(vocabulary[row] for row in np.flatnonzero(source == 0).tolist())
    coverage = Coverage(int((source == 2).sum()), int((source == 1).sum()), missing, path.name)
    return WordVectors(matrix, source > 0, coverage)


def read_all_word_vectors(path: Path) -> tuple[list[str], Matrix]:
    """All words of a file and their vectors (V, D), in file order, in memory."""
    with vector_entries(path, None, None, None) as (width, entries):
        pairs = [(word.decode("utf-8", "replace"), vector) for word, vector in entries]
    return [word for word, _ in pairs], np.array([vector for _, vector in pairs], np.float32).reshape(-1, width)


def initial_embeddings(path: Path, tokenizer: Tokenizer, width: int, table: Table) -> tuple[Table, Coverage]:
    """A copy of an embedding table (V, D) in which the words of a file have its vectors.

    A piece is looked up without its "▁", then lowercased. Vectors are multiplied by the one number that makes their
    root mean square that of the rows they replace: the scale suits the initialization of the network, and cosines stay
    the same. Special tokens and words without a vector keep their random rows.
    """
    if tuple(table.shape) != (tokenizer.size, width):
        raise WordVectorError(
            f"the table has shape {tuple(table.shape)}, and {tokenizer.size:,} pieces of width {width} need "
            f"({tokenizer.size}, {width}); build it from the same tokenizer and model.width"
        )
    first = len(SPECIALS)
    pieces = tokenizer.pieces(range(first, tokenizer.size))
    words = [piece.removeprefix(SPACE) or SPACE for piece in pieces]
    vectors = read_word_vectors(path, words, lowercase=True, width=width)
    if not vectors.coverage.known:
        raise WordVectorError(
            f"{path} has a vector for none of the {len(words):,} pieces of the vocabulary; take vectors of the "
            f"language of the text, and a tokenizer of kind word"
        )
    old = table if isinstance(table, np.ndarray) else table.detach().cpu().numpy()
    new = old.copy()
    rows = first + np.flatnonzero(vectors.known)
    known = vectors.matrix[vectors.known].astype(np.float64)
    size = np.sqrt(np.square(known).mean())
    if not size > 0:
        raise WordVectorError(f"{path}: all vectors are zero; {AGAIN}")
    new[rows] = known * (np.sqrt(np.square(old[rows], dtype=np.float64).mean()) / size)
    if isinstance(table, np.ndarray):
        return new, vectors.coverage
    import torch  # only callers with tensors need it

    return torch.from_numpy(new).to(table), vectors.coverage


def write_word_vectors(
    path: Path,
    words: Sequence[str],
    matrix: NDArray[np.floating],
    *,
    format: Literal["word2vec", "word2vec-binary"] = "word2vec",
) -> None:
    """Write word2vec text or binary, compressed if the name ends so; float32 values come back to the last bit."""
    if matrix.ndim != 2 or len(words) != len(matrix) or not matrix.shape[1]:
        raise WordVectorError(
            f"{plural(len(words), 'word')} and a matrix of shape {matrix.shape}; give one row for each word"
        )
    binary = format == "word2vec-binary"
    lines = [f"{len(words)} {matrix.shape[1]}".encode()]
    for word, row in zip(words, matrix, strict=True):
        name = word.encode()
        if not word or "\n" in word or (b" " in name if binary else has_surplus(name)):
            raise WordVectorError(f"{word!r} could not be read back from {format}; leave it out or change it")
        if not np.isfinite(row).all():
            raise WordVectorError(f"the vector of {word!r} is not finite; leave the word out, or give it numbers")
        values = row.astype("<f4").tobytes() if binary else " ".join(f"{x:.9g}" for x in row.tolist()).encode()
        lines.append(name + b" " + values)
    write_atomically(path, compressed(path, b"\n".join(lines) + b"\n"))


def _rows(words: Sequence[str]) -> dict[bytes, list[int]]:
    """The rows of each word of a vocabulary."""
    rows: dict[bytes, list[int]] = {}
    for row, word in enumerate(words):
        rows.setdefault(word.encode("utf-8", "surrogatepass"), []).append(row)
    return rows


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
    """A file of word vectors is invalid."""


@contextmanager
def vector_entries(
    path: Path, format: Format | None, width: int | None, words: Container[bytes] | None
) -> Iterator[tuple[int, _Entries]]:
    """D, and the words with their vectors (D,) in file order; None: all words of the file.

    Without a format, it is detected.
    """
    kind = format or _guess(path)
    with _open(path) as file:
        first = file.readline(_BLOCK if kind == "word2vec-binary" else -1)
        start = first.removeprefix(_BOM)
        if kind == "glove":
            total, values = None, _trailing_values(start)
            if not values:
                raise WordVectorError(
                    f"{path}, line 1: {_short(start)} is not a word and its values; is it a GloVe file?"
                )
        else:
            total, values = _header(path, start)
        if width is not None and values != width:
            raise WordVectorError(
                f"{path} has vectors of {values} values, and {width} are needed; set the width of the embedding to "
                f"{values} (model.width={values}), or use vectors of {width} values"
            )
        if kind == "word2vec-binary":
            assert total is not None
            yield values, _binary_entries(path, file, len(first), values, total, words)
        else:
            lines = chain([start], file) if kind == "glove" else file
            yield values, _text_entries(path, lines, values, total, words)


def _text_entries(
    path: Path, lines: Iterable[bytes], width: int, total: int | None, words: Container[bytes] | None
) -> _Entries:
    start = 1 if total is None else 2  # the number of the first line
    number = start - 1
    for number, line in enumerate(lines, start):
        parts = line.rstrip(_LINE_END).rsplit(b" ", width)
        word = parts[0]
        if len(parts) <= width or has_surplus(word):
            raise WordVectorError(
                f"{path}, line {number:,}: {_short(line)} has {_trailing_values(line)} values, not {width}; "
                f"correct or remove the line, or {AGAIN}"
            )
        if words is None or word in words:
            try:
                vector = np.array([float(value) for value in parts[1:]], np.float32)
            except ValueError as error:
                raise WordVectorError(
                    f"{path}, line {number:,}: {error}; correct or remove the line, or {AGAIN}"
                ) from error
            yield word, _finite(vector, f"{path}, line {number:,}")
    if total is not None and number + 1 - start != total:
        raise WordVectorError(
            f"{path} has {plural(number + 1 - start, 'word')}, and its first line says {total:,}; {AGAIN}, "
            f"or correct the first line"
        )


def _binary_entries(
    path: Path, file: IO[bytes], start: int, width: int, total: int, words: Container[bytes] | None
) -> _Entries:
    remedy = f"{AGAIN}, or, if it is text, correct its second line, which is not a word with {width} numbers"
    buffer, at, offset = b"", 0, start  # `offset` is where the buffer begins in the file
    for number in range(total):
        while (space := buffer.find(b" ", at)) < 0 or space + 1 + 4 * width > len(buffer):
            block = file.read(max(_BLOCK, 4 * width))
            if not block or (space < 0 and len(buffer) - at > _BLOCK):
                raise WordVectorError(
                    f"{path}, byte {offset + at:,}: no whole word with {width} values, and {number:,} of {total:,} "
                    f"words are read; the file is cut off or not binary: {remedy}"
                )
            buffer, at, offset = buffer[at:] + block, 0, offset + at
        word = buffer[at:space].lstrip(b"\n")
        if words is None or word in words:
            vector = np.frombuffer(buffer, "<f4", width, space + 1).astype(np.float32)
            yield word, _finite(vector, f"{path}, byte {offset + space + 1:,}")
        at = space + 1 + 4 * width
    if (buffer[at:] + file.read(2)).strip(b"\n"):
        raise WordVectorError(
            f"{path}, byte {offset + at:,}: there is more after the {plural(total, 'word')} that the first line says; "
            f"{remedy}"
        )


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
            f"word2vec files begin with them, GloVe files do not: leave the format out to detect it"
        )
    return int(match[1]), int(match[2])


def _guess(path: Path) -> Format:
    """The format of a file, from its beginning."""
    with _open(path) as file:
        first = file.readline(_BLOCK).removeprefix(_BOM)
        second = file.readline(_BLOCK)
    if not first:
        raise WordVectorError(f"{path} is empty; {AGAIN}")
    match = _HEADER.fullmatch(first)
    if match is None:
        return "glove"
    # A line of text with too few values is still text, and an error later.
    expected = min(int(match[2]), second.rstrip(_LINE_END).count(b" "))
    return "word2vec" if not second or 0 < expected <= _trailing_values(second) else "word2vec-binary"


def _trailing_values(line: bytes) -> int:
    """The number of values at the end of a line, without its first part, which is a word."""
    parts = line.rstrip(_LINE_END).split(b" ")[1:]
    count = 0
    while count < len(parts) and _NUMBER.fullmatch(parts[-1 - count]):
        count += 1
    return count


def has_surplus(word: bytes) -> bool:
    """Return True if the text before the D values ends with one more: "route 66" is a word, "route 0.66" is not."""
    return b" " in word and _DECIMAL.fullmatch(word.rpartition(b" ")[2]) is not None


def _short(line: bytes) -> str:
    return short(line.rstrip(b"\r\n").decode("utf-8", "replace"))


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    try:
        with io.BufferedReader(open_decompressed(path), _BLOCK) as file:
            yield cast("IO[bytes]", file)
    except FileNotFoundError as error:
        raise WordVectorError(f"{path} does not exist; check the name") from error
    except READ_ERRORS as error:
        raise WordVectorError(
            f"{path} cannot be read to its end ({error}); check that it is whole and may be read"
        ) from error
