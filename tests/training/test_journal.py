"""metrics.jsonl."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sightline.training.loggers import Journal, TensorBoard


def record(step: int) -> dict[str, Any]:
    return {"kind": "train", "step": step, "loss": step / 3, "samples": [{"source": "März", "output": "\n"}]}


def steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_each_record_is_a_line_and_can_be_read_at_once(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for step in (1, 2):
            journal.write(record(step))
            assert steps(tmp_path) == list(range(1, step + 1))
        assert json.loads((tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[1]) == record(2)


def test_journal_keeps_unicode(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.write(record(1))
    assert "März" in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")


def test_sync_writes_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with Journal(tmp_path) as journal:
        journal.write(record(1))
        journal.sync()
        assert synced == [journal.size]


def test_a_resumed_journal_drops_records_after_its_checkpoint(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.write(record(1))
        journal.sync()
        size = journal.size
        journal.write(record(2))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # killed in the middle of a line
    with Journal(tmp_path, size=size) as journal:
        assert journal.size == size
        journal.write(record(3))
    assert steps(tmp_path) == [1, 3]


def test_a_truncated_last_line_is_removed(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for step in (1, 2, 3):
            journal.write(record(step))
        size = journal.size
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    with Journal(tmp_path, size=size) as journal:
        journal.write(record(4))
    assert steps(tmp_path) == [1, 2, 4]


def test_a_new_training_starts_an_empty_journal(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 99}\n')
    with Journal(tmp_path) as journal:
        journal.write(record(1))
    assert steps(tmp_path) == [1]


def test_a_lost_journal_is_not_filled_with_zeros(tmp_path: Path) -> None:
    """A checkpoint remembers how long the journal was; a journal that is shorter now stays what it is."""
    with Journal(tmp_path) as journal:
        journal.write(record(1))
    with Journal(tmp_path, size=10_000) as journal:
        journal.write(record(2))
        assert journal.size == (tmp_path / "metrics.jsonl").stat().st_size
    assert steps(tmp_path) == [1, 2]


def test_tensorboard_shows_nothing_twice_after_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with TensorBoard(tmp_path) as events_file:
        for step in (1, 2, 3):
            events_file.validation(None, record(step))
    with TensorBoard(tmp_path, step=1) as events_file:
        for step in (2, 3, 4):
            events_file.validation(None, {**record(step), "epoch": 0})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert events.Tags()["scalars"] == ["train/loss"]
