"""metrics.jsonl, and the TensorBoard events beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Journal:
    """One JSON object a line, in the order things happened, nothing twice: a resumed run cuts what it will redo."""

    def __init__(self, run: Path, *, tensorboard: bool) -> None:
        self.path = run / "metrics.jsonl"
        self._events = self._open_events(run) if tensorboard else None
        self._file = self.path.open("ab")

    @staticmethod
    def _open_events(run: Path) -> Any:
        from torch.utils.tensorboard.writer import SummaryWriter

        return SummaryWriter(str(run / "tensorboard"))  # type: ignore[no-untyped-call]

    def cut(self, size: int) -> None:
        """Forget everything after the first `size` bytes; a journal that is shorter (it was lost) stays as it is."""
        self._file.truncate(min(size, self._file.seek(0, os.SEEK_END)))
        self._file.seek(0, os.SEEK_END)

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, record: dict[str, Any]) -> None:
        """Add a line, and its numbers to TensorBoard."""
        self._file.write((json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8"))
        self._file.flush()
        if self._events is not None:
            for key, value in record.items():
                if isinstance(value, int | float) and key not in ("step", "epoch"):
                    self._events.add_scalar(f"{record['kind']}/{key}", value, record["step"])

    def sync(self) -> None:
        """Make what is written durable, before a checkpoint refers to it."""
        os.fsync(self._file.fileno())
        if self._events is not None:
            self._events.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()
