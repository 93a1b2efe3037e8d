"""What tests see of a training, and do to it: a display that shows nothing and may pull the plug, a cache of its own,
the journal without what the clock says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

MEASURED = ("seconds", "tokens_per_second", "validation_seconds", "peak_memory")


@dataclass
class Silent:
    """A display that shows nothing, keeps the notes, and may do something at a step."""

    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def step(self, progress: Any, record: dict[str, Any]) -> None:
        self.at.get(progress.step, lambda: None)()

    def validation(self, progress: Any, record: dict[str, Any]) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


class Killed(Exception):
    """Stands for a power cut: nothing is saved on the way out."""


def pull_the_plug() -> None:
    raise Killed


@contextmanager
def own_cache(folder: Path) -> Iterator[Path]:
    """Stores are built in this folder and not in the user's cache, and no corpora are at hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIGHTLINE_CACHE", str(folder))
        patch.setenv("SIGHTLINE_CORPORA", "")
        yield folder


def records(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """metrics.jsonl, or what it has of a kind, without what was measured: times and memory."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [
        {key: value for key, value in line.items() if key not in MEASURED}
        for line in lines
        if kind is None or line["kind"] == kind
    ]
