"""Vectors written to a file as they come, however many: a NumPy array with its units beside it, or a Parquet table.

`vectors.npy` holds a matrix (rows, D) of float32, `vectors.tsv` beside it a line for each row: the number of the text
it comes from (from 1) and the unit, a token, a word or the text itself. `vectors.parquet` has the same three as
columns: line, unit, vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sightline.files import atomic_file, check_place

SUFFIXES = (".npy", ".parquet")


class VectorWriter(Protocol):
    """What rows are handed to."""

    def write(self, lines: Sequence[int], units: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Some rows: the number of each one's text, its unit, its vector (rows, D)."""
        ...


def check_vector_file(path: Path) -> None:
    """Refuse a name that says no format, or a folder that is not there, before there is anything to write."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: vectors are written as {' or '.join(SUFFIXES)}; name the file so")
    check_place(path)


def files_of(path: Path) -> tuple[Path, ...]:
    """All that is written under that name: an array has its units in a file beside it."""
    return (path, path.with_suffix(".tsv")) if path.suffix.lower() == ".npy" else (path,)


@contextmanager
def vector_file(path: Path, width: int) -> Iterator[VectorWriter]:
    """Write rows of so many numbers inside the block; the file is there when it ends well."""
    check_vector_file(path)
    if path.suffix.lower() == ".parquet":
        with atomic_file(path) as file, _ParquetRows(file, width) as rows:
            yield rows
        return
    vectors, units = files_of(path)
    with atomic_file(vectors) as file, atomic_file(units) as beside:
        array = _ArrayRows(file, beside, width)
        yield array
        array.finish()


class _ArrayRows:
    """A NumPy file whose length is put in at the end: its header has room for that."""

    def __init__(self, file: IO[bytes], beside: IO[bytes], width: int) -> None:
        self.file, self.beside, self.width, self.rows = file, beside, width, 0
        self._header()
        self.begin = file.tell()

    def _header(self) -> None:
        shape = (self.rows, self.width)
        np.lib.format.write_array_header_1_0(self.file, {"descr": "<f4", "fortran_order": False, "shape": shape})

    def write(self, lines: Sequence[int], units: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
        told = (f"{line}\t{' '.join(unit.split())}\n" for line, unit in zip(lines, units, strict=True))
        self.beside.write("".join(told).encode("utf-8"))
        self.rows += len(vectors)

    def finish(self) -> None:
        """Put in how many rows there are."""
        self.file.seek(0)
        self._header()
        if self.file.tell() != self.begin:
            raise RuntimeError(f"the header of {self.rows:,} rows is longer than the room NumPy left for it")


class _ParquetRows:
    """A Parquet table, a row group for each call."""

    def __init__(self, file: IO[bytes], width: int) -> None:
        from pyarrow import parquet

        self.kind = pa.list_(pa.float32(), width)
        self.schema = pa.schema([("line", pa.int64()), ("unit", pa.string()), ("vector", self.kind)])
        self.writer: Any = parquet.ParquetWriter(file, self.schema, compression="zstd")

    def __enter__(self) -> _ParquetRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def write(self, lines: Sequence[int], units: Sequence[str], vectors: NDArray[np.float32]) -> None:
        flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
        rows = pa.FixedSizeListArray.from_arrays(flat, type=self.kind)
        columns = [pa.array(lines, pa.int64()), pa.array(units, pa.string()), rows]
        self.writer.write_table(pa.Table.from_arrays(columns, schema=self.schema))
