"""Files that are whole or not there: everything is written under a temporary name, fsynced and renamed.

A reader never sees half a file, whenever the writer is killed or the disk fills up; and what stood under the name
before stays until the new content is safely on the disk.

Nothing is written, cut or deleted through a symbolic link. A link under the name of a file is replaced by the file, and
what it points to is left alone; a link in the place of a folder or of a file that grows is refused (`LinkError`). Only
the folders that a user names on the command line (a run folder, a cache) may be reached through links.
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
from typing import IO, Any, cast


class LinkError(ValueError):
    """Something would be written or deleted through a symbolic link."""


MAX_JSON = 2**28  # bytes of a JSON file that is read as a whole
TEMPORARY = ".tmp"  # every unfinished file or folder ends so, and begins with a dot and the name it is to have


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write `data` to `path` so that it holds either the old content or all of the new."""
    content = data.encode("utf-8") if isinstance(data, str) else data
    with atomic_file(path) as file:
        file.write(content)


def write_json(path: Path, record: Any, *, indent: int | None = 1) -> None:
    """The same for a record, as JSON that people can read; with no indent, in one line."""
    write_atomically(path, json.dumps(record, ensure_ascii=False, indent=indent) + "\n")


def parse_json(content: bytes | str) -> Any:
    """`json.loads`, but all that can be wrong (not UTF-8, nested too deeply) is a ValueError."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(path: Path) -> Any:
    """The JSON in a file; a ValueError with the path where it is none."""
    try:
        return parse_json(read_bounded(path, MAX_JSON))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: not JSON ({error})") from error


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a file that has no more than so many bytes."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} has more than {most:,} bytes, too many for a file of this kind")
    return content


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write, however long; when the block ends well, it is fsynced and takes the place of `path`.

    Nothing takes the place of a pipe or a device: what is there to read it gets all as it is written.
    """
    check_place(path)
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
        with suppress(OSError):  # what went wrong first is what is told
            temporary.unlink()
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the name that somebody knows
        raise
    sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill; when the block ends well, it is fsynced and renamed to `path`.

    If the block fails, the folder is removed with all that is in it. If something stands under `path` by then,
    it is left alone and FileExistsError is raised; or, to `replace` it, the new folder takes its place.
    """
    folder = _temporary(path)
    folder.mkdir(parents=True)
    try:
        yield folder
        for inner, _, names in os.walk(folder):
            for name in names:
                _sync_file(Path(inner) / name)
            sync_folder(Path(inner))
        if not path.exists():
            os.rename(folder, path)
        elif replace:
            _take_place(folder, path)
        else:  # os.rename would silently take the place of an empty folder
            raise FileExistsError(f"{path} exists already; remove it or choose another name")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    sync_folder(path.parent)


def _take_place(folder: Path, path: Path) -> None:
    """Rename a folder to `path`; what stood there is removed once that has succeeded."""
    aside = _temporary(path)
    os.rename(path, aside)
    try:
        os.rename(folder, path)
    except BaseException:
        os.rename(aside, path)
        raise
    with suppress(OSError):
        remove(aside)


def refuse_link(path: Path) -> None:
    """Refuse a symbolic link in the place of a folder or file that is going to be changed."""
    if path.is_symlink():
        raise LinkError(
            f"{path} is a symbolic link to {os.readlink(path)}; nothing is written or deleted through links: remove "
            f"the link, or put what it points to in its place"
        )


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there; a link to one is refused."""
    refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)


def open_growing(path: Path) -> IO[bytes]:
    """Open a file to read it and to add to its end; it is made if it is not there. A link is refused."""
    refuse_link(path)  # where the system has no O_NOFOLLOW (Windows), and for its message
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o666), "a+b")


def open_output(path: Path) -> IO[str]:
    """Open a text file that a command fills as it goes. A link under its name is replaced, not followed."""
    if _streams(path):
        return path.open("w", encoding="utf-8")
    if path.is_symlink():
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a link, but not what the link points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # follows no links inside either
    else:
        path.unlink()


@contextmanager
def file_lock(path: Path, *, wait: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is not there; it goes with the process, however that ends.

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


def unfinished(path: Path) -> list[Path]:
    """What writers of `path` that were killed left behind (or, where nobody holds a lock, are still writing)."""
    start = f".{path.name}."
    if not path.parent.is_dir():
        return []
    return [found for found in path.parent.iterdir() if found.name.startswith(start) and found.suffix == TEMPORARY]


def check_place(path: Path) -> None:
    """Refuse a file that cannot be written for want of a folder or a right; better known before the work than after."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ValueError(f"{path} cannot be written: it is a folder; name a file in it")
    if not folder.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {folder}; make it first")
    if not os.access(path if _streams(path) else folder, os.W_OK):
        raise ValueError(f"{path} cannot be written: you may not write to {folder}; name another place")


def _streams(path: Path) -> bool:
    """Whether it is no file on a disk: a pipe, a device, or what /dev has a name for (/dev/stdout)."""
    parts = path.absolute().parts
    if parts[1:2] == ("dev",):
        return parts[2:3] != ("shm",)  # which is a disk in memory
    return not path.is_symlink() and path.exists() and not path.is_file() and not path.is_dir()


def checksum(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of(content: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: a rename is only on the disk once its folder is."""
    if sys.platform == "win32":
        return  # folders cannot be opened there, and renames are journaled
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_file(path: Path) -> None:
    with path.open("r+b") as file:  # Windows syncs no file that is only read
        os.fsync(file.fileno())


def _temporary(path: Path) -> Path:
    """A name beside `path` that nobody else uses. (tempfile would make files that only their owner can read.)"""
    return path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}"


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


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header and a line for each row; texts that a spreadsheet would run as formulas begin with an apostrophe."""
    content = io.StringIO()
    writer = csv.DictWriter(content, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return content.getvalue()


def _cell(value: Any) -> Any:
    """Formula injection (https://owasp.org/www-community/attacks/CSV_Injection) is of texts; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
