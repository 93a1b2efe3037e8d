"""Atomic files and folders."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sightline.files import atomic_folder, check_writable, checksum, unfinished_files, write_atomically


def test_a_written_file_holds_its_content_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "grün")
    write_atomically(tmp_path / "a.txt", b"new")
    assert (tmp_path / "a.txt").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_write_that_fails_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    write_atomically(tmp_path / "a.txt", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_error_names_the_final_path(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 250)  # with what a temporary name has more, too long for a file system
    with pytest.raises(OSError, match="File name too long") as told:
        write_atomically(long, "")
    assert told.value.filename == str(long)


def test_written_file_respects_the_umask(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, "all of it")
    reader.join(10)
    assert got == ["all of it"]
    assert pipe.is_fifo()


def test_device_is_written_directly(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        write_atomically(Path(f"/dev/fd/{file.fileno()}"), "as it is")
        assert os.stat(tmp_path / "a.txt").st_ino == os.fstat(file.fileno()).st_ino
    assert (tmp_path / "a.txt").read_text() == "as it is"


def test_folder_without_write_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) != (tmp_path, os.W_OK))
    with pytest.raises(
        ValueError, match=rf"{tmp_path}/a\.txt cannot be written: you may not write to {tmp_path}; name"
    ):
        check_writable(tmp_path / "a.txt")


def test_a_folder_appears_only_when_it_is_finished(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "deep" / "run") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a.txt").write_text("a")
        assert not (tmp_path / "deep" / "run").exists()
        assert unfinished_files(tmp_path / "deep" / "run") == [folder]
    assert (tmp_path / "deep" / "run" / "inner" / "a.txt").read_text() == "a"
    assert unfinished_files(tmp_path / "deep" / "run") == []


def test_a_folder_whose_block_fails_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with atomic_folder(tmp_path / "run") as folder:
            (folder / "a.txt").write_text("a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_existing_folder_is_kept(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="run exists already"), atomic_folder(tmp_path / "run"):
        (tmp_path / "run").mkdir()
    assert os.listdir(tmp_path) == ["run"]


def test_folder_is_replaced_when_finished(tmp_path: Path) -> None:
    place = tmp_path / "there"
    for content in ("old", "new"):
        with atomic_folder(place, replace=True) as folder:
            (folder / content).touch()
            assert content == "old" or [path.name for path in place.iterdir()] == ["old"]
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "new"]


def test_the_checksum_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert checksum(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_file_without_a_folder_is_refused_by_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere/a\.txt cannot be written: there is no folder .*nowhere; make it"):
        write_atomically(tmp_path / "nowhere" / "a.txt", "a")


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it is a folder; name a file in it"):
        write_atomically(tmp_path, "a")
