"""Nothing is written, truncated or deleted through symbolic links in a run folder or a cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import sightline
from dated_runs import write_recipe
from sightline.data.store import Stopped
from sightline.files import (
    LinkError,
    atomic_file,
    file_lock,
    make_folder,
    open_growing,
    open_output,
    remove,
    write_atomically,
)
from sightline.run_folder import RunError, lock_run
from sightline.training.checkpoints import Checkpoints
from sightline.training.loggers import Journal, TensorBoard
from watched_runs import Silent


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def moved_away(finished: Path, name: str, tmp_path: Path) -> Path:
    """A part of a run moved elsewhere, and a link left in its place."""
    outside = tmp_path / "outside"
    outside.mkdir(exist_ok=True)
    os.rename(finished / name, outside / name)
    (finished / name).symlink_to(outside / name)
    return outside


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", ".lock"])
def test_resuming_refuses_links(finished: Path, name: str, tmp_path: Path) -> None:
    outside = moved_away(finished, name, tmp_path)
    before, run = contents(outside), contents(finished)
    with pytest.raises(ValueError, match=rf"{name} is a symbolic link to {outside}/{name}.*remove the link"):
        sightline.train(finished, ["training.limits.steps=14"], resume=True, display=Silent())
    assert contents(outside) == before and contents(finished) == run


def test_replacing_a_link_keeps_its_target(finished: Path, tmp_path: Path) -> None:
    outside = tmp_path
    for name in ("recipe.yaml", "model.safetensors", "config.json", "README.md", "manifest.json"):
        outside = moved_away(finished, name, tmp_path)
    before = contents(outside)
    assert sightline.load(finished, device="cpu").predict(["1 January 2000"])  # reading follows links
    sightline.train(finished, ["training.limits.steps=14"], resume=True, display=Silent())
    assert contents(outside) == before
    assert not [path for path in finished.iterdir() if path.is_symlink()]


def test_a_checkpoint_that_is_a_link_is_removed_and_its_files_stay(finished: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    oldest = Checkpoints(finished, 1).steps()[1]  # the first is the best, and kept
    step = Checkpoints(finished, 1).path(oldest)
    os.rename(step, outside)
    step.symlink_to(outside, target_is_directory=True)
    left = finished / ".model.safetensors.1-2.tmp"  # as of a writer that was killed
    left.symlink_to(outside, target_is_directory=True)
    before = contents(outside)
    sightline.train(finished, ["training.limits.steps=20"], resume=True, display=Silent())
    assert contents(outside) == before
    assert not step.is_symlink() and not left.is_symlink()


def test_checkpoints_are_not_written_into_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "outside")
    checkpoints = Checkpoints(tmp_path / "run", 2)
    for change in (checkpoints.sweep, lambda: make_folder(checkpoints.folder)):
        with pytest.raises(LinkError):
            change()


def test_the_journal_is_not_cut_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(LinkError):
        Journal(tmp_path / "run")
    assert (tmp_path / "other").read_text() == "precious\n"


def test_tensorboard_events_are_not_written_into_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "tensorboard").symlink_to(tmp_path / "outside")
    with pytest.raises(LinkError):
        TensorBoard(tmp_path)
    assert not list((tmp_path / "outside").iterdir())


def test_a_linked_store_folder_of_the_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "stores").symlink_to(tmp_path / "outside")
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(LinkError, match="stores is a symbolic link"):
        sightline.train(write_recipe(tmp_path), out=tmp_path / "run", display=Silent())
    assert not list((tmp_path / "outside").iterdir())


def test_an_output_file_that_is_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "target").read_text() == "old" and (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()


def test_streamed_output_replaces_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with open_output(tmp_path / "link") as file:
        file.write("new")
    assert (tmp_path / "target").read_text() == "old" and (tmp_path / "link").read_text() == "new"


def test_a_link_to_a_pipe_is_replaced_and_nothing_is_written_into_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with atomic_file(tmp_path / "link") as file:  # to open the pipe would wait for a reader
        file.write(b"new")
    assert (tmp_path / "link").read_text() == "new"


def test_removing_a_link_leaves_its_target(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "inner").symlink_to(tmp_path / "folder")
    remove(tmp_path / "link")
    remove(tmp_path / "own")
    assert (tmp_path / "folder" / "file").exists() and not (tmp_path / "own").exists()


def test_growing_file_is_not_opened_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    monkeypatch.setattr("sightline.files.refuse_link", lambda path: None)  # as if it had been looked at before
    with pytest.raises(OSError, match="symbolic link"):
        open_growing(tmp_path / "link")


def test_a_lock_is_held_by_one_and_waited_for(tmp_path: Path) -> None:
    tries = []

    def give_up() -> bool:
        tries.append(1)
        if len(tries) == 3:
            raise Stopped
        return True

    with file_lock(tmp_path / "lock", wait=lambda: False):
        with pytest.raises(BlockingIOError), file_lock(tmp_path / "lock", wait=lambda: False):
            pass
        with pytest.raises(Stopped), file_lock(tmp_path / "lock", wait=give_up):
            pass
    with file_lock(tmp_path / "lock", wait=lambda: False):
        pass


def test_a_folder_that_cannot_be_made_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = tmp_path / "file" / "run"
    told = f"{run} cannot be written: Not a directory ({run}); give another folder with --out"
    with pytest.raises(RunError, match=re.escape(told)), lock_run(run):
        pass


def test_a_cache_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device")  # as pyarrow says

    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sightline.data.store._build", full)
    with pytest.raises(OSError, match="could not be written to the cache: No space left on device") as caught:
        sightline.train(write_recipe(tmp_path), out=tmp_path / "run", display=Silent())
    assert caught.value.filename == str(tmp_path / "cache" / "stores")
