"""Files that are compressed, told by their suffix, in small letters or capitals: .gz, .bz2, .xz, .zst."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

# What reading a file that is cut short, damaged or not what its suffix says can raise.
BROKEN = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, OSError)

_BLOCK = 1 << 16
_MEMORY = 1 << 28  # bytes an .xz file may ask for; xz -9 takes 65 MB to unpack


def open_bytes(path: Path) -> Any:
    """The content of a file, decompressed as it is read."""
    return _OPENERS.get(path.suffix.lower(), _open_plain)(path)


def looks_packed(content: bytes) -> str | None:
    """The suffix that a file with this beginning should have; None where it is not compressed."""
    return next((suffix for suffix, magic in _MAGIC.items() if content.startswith(magic)), None)


def packed(path: Path, content: bytes) -> bytes:
    """The content as it stands in a file of that name."""
    return _PACKERS.get(path.suffix.lower(), bytes)(content)


def packing(path: Path, file: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """What packs into an open file, bit by bit, as in a file of that name; leaving it does not close the file."""
    writer: AbstractContextManager[IO[bytes]] = _WRITERS.get(path.suffix.lower(), nullcontext)(file)
    return writer


def _open_plain(path: Path) -> Any:
    return path.open("rb")


class _Streams(io.RawIOBase):
    """The streams of a file as one, with or without zeros between them, which are padding.

    BZ2File and LZMAFile end without a word where a later stream cannot be read, or padding stands before it.
    """

    def __init__(self, path: Path, decompressor: Callable[[], Any]) -> None:
        self._file, self._decompressor = path.open("rb"), decompressor
        self._stream, self._start = decompressor(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content and (block := self._next_block()) is not None:
            try:
                content = self._stream.decompress(block, len(buffer))
            except (lzma.LZMAError, OSError) as error:
                raise OSError(f"the stream that begins at byte {self._start + 1:,}: {error}") from error
        buffer[: len(content)] = content
        return len(content)

    def _next_block(self) -> bytes | None:
        """What the stream takes next, maybe nothing; where it is at its end, the head of a new one; None: no more."""
        if not self._stream.eof:
            block = self._file.read(_BLOCK) if self._stream.needs_input else b""
            if self._stream.needs_input and not block:
                raise EOFError(f"the stream that begins at byte {self._start + 1:,} has no end")
            return block
        head: bytes = self._stream.unused_data.lstrip(b"\0")
        while not head and (block := self._file.read(_BLOCK)):
            head = block.lstrip(b"\0")
        if not head:
            return None
        self._stream, self._start = self._decompressor(), self._file.tell() - len(head)
        return head

    def close(self) -> None:
        self._file.close()
        super().close()


def _open_streams(decompressor: Callable[[], Any]) -> Callable[[Path], Any]:
    return lambda path: io.BufferedReader(_Streams(path, decompressor), _BLOCK)


def _open_zstd(path: Path) -> Any:
    import pyarrow  # slow to import, and seldom needed for this

    return pyarrow.input_stream(str(path), compression="zstd")


def _pack_zstd(content: bytes) -> bytes:
    import pyarrow

    return cast("bytes", pyarrow.compress(content, codec="zstd", asbytes=True))


def _packing_zstd(file: IO[bytes]) -> Any:
    import pyarrow

    return pyarrow.CompressedOutputStream(pyarrow.PythonFile(_Kept(file), mode="w"), "zstd")


class _Kept:
    """A file that whoever was handed it cannot close."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None: ...


_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.GzipFile,
    ".bz2": _open_streams(bz2.BZ2Decompressor),
    ".xz": _open_streams(partial(lzma.LZMADecompressor, memlimit=_MEMORY)),
    ".zst": _open_zstd,
}
_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": _pack_zstd,
}
_WRITERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda file: gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0),
    ".bz2": lambda file: bz2.BZ2File(file, "wb"),
    ".xz": lambda file: lzma.LZMAFile(file, "wb"),  # noqa: SIM115
    ".zst": _packing_zstd,
}
_MAGIC = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\x00", ".zst": b"\x28\xb5\x2f\xfd"}
