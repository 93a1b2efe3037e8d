"""Files that are whole or not there: everything is written under a temporary name, fsynced and renamed.

A reader never sees half a file, whenever the writer is killed or the disk fills up; and what stood under the name
before stays until the new content is safely on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

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
    shutil.rmtree(aside, ignore_errors=True)


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
    return path.absolute().parts[1:2] == ("dev",) or (path.exists() and not path.is_file() and not path.is_dir())


def checksum(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of(content: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: a rename is only on the disk once its folder is."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _temporary(path: Path) -> Path:
    """A name beside `path` that nobody else uses. (tempfile would make files that only their owner can read.)"""
    return path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}"
