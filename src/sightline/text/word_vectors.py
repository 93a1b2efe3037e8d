"""Word vectors from files (text/vector_formats.py says which): for a vocabulary, for embeddings, to be asked.

Files of millions of words are streamed, and only the words of a vocabulary are kept. Words are compared as UTF-8
bytes, so the few broken words that the best-known files contain trouble nobody.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from sightline.files import packed, write_atomically
from sightline.terminal import plural
from sightline.text.tokenizer import SPACE, SPECIALS, UNK, Tokenizer
from sightline.text.vector_formats import AGAIN, Format, Matrix, WordVectorError, has_surplus, vector_entries

if TYPE_CHECKING:
    from torch import Tensor

Table = TypeVar("Table", "Tensor", NDArray[np.float32])


@dataclass(frozen=True)
class Coverage:
    """How much of a vocabulary a file of vectors knows."""

    found: int  # as they are written
    lowercased: int  # only when lowercased
    missing: tuple[str, ...]  # the most frequent first where counts were given, else in the order of the vocabulary
    tokens: float | None = None  # the share of the running tokens that have a vector, where counts were given
    file: str = ""

    @property
    def known(self) -> int:
        """Words with a vector."""
        return self.found + self.lowercased

    @property
    def size(self) -> int:
        """All words."""
        return self.known + len(self.missing)

    @property
    def share(self) -> float:
        """The part of the vocabulary that has a vector."""
        return self.known / max(self.size, 1)

    def describe(self) -> str:
        """One line for a log: "word vectors: 14,210 of 16,000 words (88.8%) found in vectors.txt"."""
        text = f"word vectors: {self.known:,} of {self.size:,} words ({self.share:.1%}) found"
        text += f" in {self.file}" if self.file else ""
        return text if self.tokens is None else f"{text}, {self.tokens:.1%} of the running tokens"

    def __str__(self) -> str:
        text = f"{self.known:,} of {self.size:,} words have a vector ({self.share:.1%})"
        if self.lowercased:
            text += f", {self.lowercased:,} of them lowercased"
        if self.missing:
            text += f"; missing: {', '.join(self.missing[:10])}{', …' if len(self.missing) > 10 else ''}"
        return text


@dataclass(frozen=True)
class WordVectors:
    """A vector for each word of a vocabulary, as far as there is one."""

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
    counts: Sequence[int] | None = None,
) -> WordVectors:
    """The vectors of the words of a vocabulary, as people write them (no "▁").

    Without a format, the file is looked into. With `lowercase`, a word that the file does not have as it is written
    gets the vector of its lowercased form. `width` is the D that is needed; `counts` (V) put the missing in order.
    Where a file has a word twice, the first counts.
    """
    if counts is not None and len(counts) != len(vocabulary):
        raise WordVectorError(
            f"{plural(len(counts), 'count')} for {plural(len(vocabulary), 'word')}; give one for each word"
        )
    exact = _rows(vocabulary)
    lowered = _rows([word.lower() for word in vocabulary]) if lowercase else {}
    wanted = exact.keys() | lowered.keys()
    with vector_entries(path, format, width, wanted) as (width, entries):
        matrix = np.full((len(vocabulary), width), np.nan, np.float32)  # (V, D)
        source = np.zeros(len(vocabulary), np.int8)  # 0 for no vector, 1 for one of the lowercased word, 2 for its own
        for word, vector in entries:
            for level, rows in ((1, lowered.get(word, ())), (2, exact.get(word, ()))):
                for row in rows:
                    if source[row] < level:
                        matrix[row], source[row] = vector, level
    missing, tokens = np.flatnonzero(source == 0), None
    if counts is not None:
        often = np.asarray(counts)
        missing = missing[np.argsort(-often[missing], kind="stable")]
        tokens = float(often[source > 0].sum() / max(often.sum(), 1))
    words = tuple(vocabulary[row] for row in missing.tolist())
    coverage = Coverage(int((source == 2).sum()), int((source == 1).sum()), words, tokens, path.name)
    return WordVectors(matrix, source > 0, coverage)


def read_all_word_vectors(path: Path) -> tuple[list[str], Matrix]:
    """Every word of a file with its vector (V, D), in the order of the file; all of it is held in memory."""
    with vector_entries(path, None, None, _Everything()) as (width, entries):
        words, rows = [], []
        for word, vector in entries:
            words.append(word.decode("utf-8", "replace"))
            rows.append(vector)
    return words, np.stack(rows) if rows else np.empty((0, width), np.float32)


def initial_embeddings(
    path: Path, tokenizer: Tokenizer, width: int, table: Table, *, counts: Sequence[int] | None = None
) -> tuple[Table, Coverage]:
    """An embedding table (V, D) in which the words of a file have the file's vectors; the given one is left alone.

    A piece is looked up without its "▁", then lowercased. Vectors are multiplied by the one number that makes their
    root mean square that of the rows they replace: what enters a network keeps the size its initial weights were made
    for, and who is near whom stays as it was. Specials and words without a vector keep their random rows.

    `counts` (V), how often each id occurs, make the coverage say the share of running tokens; unknown ones count as
    such, and pad, start and end do not count.
    """
    if tuple(table.shape) != (tokenizer.size, width):
        raise WordVectorError(
            f"the table has shape {tuple(table.shape)}, and {tokenizer.size:,} pieces of width {width} need "
            f"({tokenizer.size}, {width}); build it from the same tokenizer and model.width"
        )
    if counts is not None and len(counts) != tokenizer.size:
        raise WordVectorError(f"{plural(len(counts), 'count')} for {tokenizer.size:,} pieces; give one for each id")
    first = len(SPECIALS)
    pieces = tokenizer.pieces(range(first, tokenizer.size))
    words = [piece.removeprefix(SPACE) or SPACE for piece in pieces]
    often = None if counts is None else counts[first:]
    vectors = read_word_vectors(path, words, lowercase=True, width=width, counts=often)
    coverage = vectors.coverage
    if not coverage.known:
        raise WordVectorError(
            f"{path} has a vector for none of the {len(words):,} pieces of the vocabulary; take vectors of the "
            f"language of the text, and a tokenizer of kind word"
        )
    if counts is not None and coverage.tokens is not None:
        running = max(sum(counts[first:]), 1)
        coverage = replace(coverage, tokens=coverage.tokens * running / (running + counts[UNK]))
    old = table if isinstance(table, np.ndarray) else table.detach().cpu().numpy()
    new = old.copy()
    rows = first + np.flatnonzero(vectors.known)
    found = vectors.matrix[vectors.known].astype(np.float64)
    size = np.sqrt(np.square(found).mean())
    if not size > 0:
        raise WordVectorError(f"{path}: every vector that is wanted is zero; {AGAIN}")
    new[rows] = found * (np.sqrt(np.square(old[rows], dtype=np.float64).mean()) / size)
    return _like(table, new), coverage


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
    write_atomically(path, packed(path, b"\n".join(lines) + b"\n"))


class _Everything(Container[bytes]):
    """Every word is wanted."""

    def __contains__(self, word: object) -> bool:
        return True


def _like(table: Table, values: NDArray[Any]) -> Table:
    """The values as the same kind of table, on the same device."""
    if isinstance(table, np.ndarray):
        return values
    import torch  # only who gives a tensor needs it

    return torch.from_numpy(values).to(table)


def _rows(words: Sequence[str]) -> dict[bytes, list[int]]:
    """Where each word stands in a vocabulary."""
    rows: dict[bytes, list[int]] = {}
    for row, word in enumerate(words):
        rows.setdefault(word.encode("utf-8", "surrogatepass"), []).append(row)
    return rows
