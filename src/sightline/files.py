"""Atomic files, locks, compression: every file is written under a temporary name, fsynced and renamed.

A reader never sees half a file, even if the process is killed or the disk fills up; the old content stays until the new
one is safely on disk.

Nothing is written, truncated or deleted through a symbolic link. A link in the place of a file is replaced by the file,
and its target stays as it is; a link in the place of a folder or of a growing file is refused (`LinkError`). Only the
folders that a user names on the command line (a run folder, a cache) may be reached through links.
"""

from __future__ import annotations

import bz2
import csv
import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast


class LinkError(ValueError):
    """A file would be written or deleted through a symbolic link."""


MAX_JSON = 2**28  # the most bytes of a JSON file
TEMPORARY = ".tmp"  # suffix of unfinished files and folders, whose names start with a dot and the final name


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write `data` to `path`, which has either the old or the complete new content at any time."""
    content = data.encode("utf-8") if isinstance(data, str) else data
    with atomic_file(path) as file:
        file.write(content)


def write_json(path: Path, record: Any, *, indent: int | None = 1) -> None:
    """Write a record as indented JSON, or with `indent=None` on one line."""
    write_atomically(path, json.dumps(record, ensure_ascii=False, indent=indent) + "\n")


def parse_json(content: bytes | str) -> Any:
    """`json.loads` whose every error (not UTF-8, nested too deeply) is a ValueError."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(path: Path) -> Any:
    """The JSON in a file; a ValueError with the path if it is invalid."""
    try:
        return parse_json(read_bounded(path, MAX_JSON))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: not JSON ({error})") from error


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a file of at most `most` bytes."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} has more than {most:,} bytes, too many for a file of this kind")
    return content


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write; if the block succeeds, the file is fsynced and replaces `path`.

    A pipe or a device is not replaced: it is written directly.
    """
    check_writable(path)
    if _streams(path):
        with path.open("wb") as file:
            yield file
        return
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # report the first error
            temporary.unlink()
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the name that the user knows
        raise
    sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill; if the block succeeds, the folder is fsynced and renamed to `path`.

    If the block fails, the folder is removed. If `path` exists by then, it is kept and FileExistsError is raised, or
    with `replace` the new folder takes its place.
    """
    folder = _temporary(path)
    folder.mkdir(parents=True)
    try:
        yield folder
        for inner, _, names in os.walk(folder):
            for name in names:
                _sync_file(Path(inner) / name)
            sync_folder(Path(inner))
        old = None
        if path.exists():
            if not replace:  # os.rename would silently replace an empty folder
                raise FileExistsError(f"{path} exists already; remove it or choose another name")
            old = _temporary(path)
            os.rename(path, old)
        try:
            os.rename(folder, path)
        except BaseException:
            if old is not None:
                os.rename(old, path)
            raise
        if old is not None:
            with suppress(OSError):
                remove(old)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    sync_folder(path.parent)


def refuse_link(path: Path) -> None:
    """Refuse a symbolic link in the place of a folder or file that will be changed."""
    if path.is_symlink():
        raise LinkError(
            f"{path} is a symbolic link to {os.readlink(path)}; nothing is written or deleted through links: remove "
            f"the link, or put what it points to in its place"
        )


def make_folder(path: Path) -> None:
    """Make a folder if it does not exist; a link is refused."""
    refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)


def open_growing(path: Path) -> IO[bytes]:
    """Open a file for reading and appending; it is created if needed. A link is refused."""
    refuse_link(path)  # for its message, and for systems without O_NOFOLLOW (Windows)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o666), "a+b")


def open_output(path: Path) -> IO[str]:
    """Open a text file for the output of a command. A link in its place is replaced, not followed."""
    if _streams(path):
        return path.open("w", encoding="utf-8")
    if path.is_symlink():
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a file, a folder with its content, or a link, but not the target of a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # follows no links
    else:
        path.unlink()


@contextmanager
def file_lock(path: Path, *, wait: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock of a file, which is created if needed; the lock is released with the process, however that ends.

    While another process holds it, `wait` is called: True tries again, False raises BlockingIOError.
    """
    from filelock import FileLock, Timeout  # slow to import

    refuse_link(path)
    lock = FileLock(path)
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except Timeout as error:
            if not wait():
                raise BlockingIOError(errno.EAGAIN, "locked by another process", str(path)) from error
    try:
        yield
    finally:
        lock.release()


def unfinished_files(path: Path) -> list[Path]:
    """Unfinished versions of `path`, left by killed processes (or still being written, if there is no lock)."""
    start = f".{path.name}."
    if not path.parent.is_dir():
        return []
    return [each for each in path.parent.iterdir() if each.name.startswith(start) and each.suffix == TEMPORARY]


def check_writable(path: Path) -> None:
    """Refuse a file whose folder is missing or not writable, before the work is done."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ValueError(f"{path} cannot be written: it is a folder; name a file in it")
    if not folder.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {folder}; make it first")
    if not os.access(path if _streams(path) else folder, os.W_OK):
        raise ValueError(f"{path} cannot be written: you may not write to {folder}; name another place")


def _streams(path: Path) -> bool:
    """Return True if a path is a pipe, a device or another entry of /dev (/dev/stdout)."""
    parts = path.absolute().parts
    if parts[1:2] == ("dev",):
        return parts[2:3] != ("shm",)  # a file system in memory
    return not path.is_symlink() and path.exists() and not path.is_file() and not path.is_dir()


def checksum(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of(content: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sync_folder(path: Path) -> None:
    """Fsync a folder: a rename is durable once its folder is on disk."""
    if sys.platform == "win32":
        return  # folders cannot be opened, and renames are journaled
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_file(path: Path) -> None:
    with path.open("r+b") as file:  # Windows does not sync files opened for reading
        os.fsync(file.fileno())


def _temporary(path: Path) -> Path:
    """An unused name beside `path`. (tempfile would make files that only their owner can read.)"""
    return path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}"


# Exceptions of reading a file that is truncated, damaged or does not match its suffix.
READ_ERRORS = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, OSError)

_BLOCK = 1 << 16
_MEMORY = 1 << 28  # bytes that decompressing an .xz file may need; xz -9 needs 65 MB


def open_decompressed(path: Path) -> Any:
    """Open a file for reading; it is decompressed according to its suffix."""
    codec = _CODECS.get(path.suffix.lower())
    return path.open("rb") if codec is None else codec.open(path)


def compression_suffix(content: bytes) -> str | None:
    """The suffix for a compressed file with this beginning; None if it is not compressed."""
    return next((suffix for suffix, codec in _CODECS.items() if content.startswith(codec.magic)), None)


def compressed(path: Path, content: bytes) -> bytes:
    """The content compressed according to the suffix of a path."""
    codec = _CODECS.get(path.suffix.lower())
    return content if codec is None else codec.compress(content)


def compressor(path: Path, file: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """A writer that compresses into an open file according to the suffix of a path; it does not close the file."""
    codec = _CODECS.get(path.suffix.lower())
    return nullcontext(file) if codec is None else cast("AbstractContextManager[IO[bytes]]", codec.writer(file))


class _Streams(io.RawIOBase):
    """All compressed streams of a file as one, with or without padding zeros between them.

    BZ2File and LZMAFile silently stop at a damaged stream and at padding.
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
        """The next input of the decompressor (maybe empty), or the head of the next stream; None at the end."""
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


class _Kept:
    """A file that the wrapped writer cannot close."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None: ...


class _Codec(NamedTuple):
    magic: bytes
    open: Callable[[Path], Any]
    compress: Callable[[bytes], bytes]
    writer: Callable[[IO[bytes]], Any]


def _pyarrow() -> Any:
    import pyarrow  # slow to import

    return pyarrow


_CODECS = {
    ".gz": _Codec(
        b"\x1f\x8b",
        gzip.GzipFile,
        lambda content: gzip.compress(content, mtime=0),
        lambda file: gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0),
    ),
    ".bz2": _Codec(
        b"BZh",
        lambda path: io.BufferedReader(_Streams(path, bz2.BZ2Decompressor), _BLOCK),
        bz2.compress,
        lambda file: bz2.BZ2File(file, "wb"),
    ),
    ".xz": _Codec(
        b"\xfd7zXZ\x00",
        lambda path: io.BufferedReader(_Streams(path, partial(lzma.LZMADecompressor, memlimit=_MEMORY)), _BLOCK),
        lzma.compress,
        lambda file: lzma.LZMAFile(file, "wb"),  # noqa: SIM115
    ),
    ".zst": _Codec(
        b"\x28\xb5\x2f\xfd",
        lambda path: _pyarrow().input_stream(str(path), compression="zstd"),
        lambda content: cast("bytes", _pyarrow().compress(content, codec="zstd", asbytes=True)),
        lambda file: _pyarrow().CompressedOutputStream(_pyarrow().PythonFile(_Kept(file), mode="w"), "zstd"),
    ),
}


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV with a header; texts that a spreadsheet would run as formulas get an apostrophe in front.

    See https://owasp.org/www-community/attacks/CSV_Injection.
    """
    content = io.StringIO()
    writer = csv.DictWriter(content, list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        formulas = (key for key, value in row.items() if isinstance(value, str) and value.startswith(_FORMULA))
        writer.writerow({**row, **{key: f"'{row[key]}" for key in formulas}})
    return content.getvalue()
