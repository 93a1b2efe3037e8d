"""Small trainings, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_jobs import Job

from sightline.models.seq2seq import Seq2Seq


@pytest.fixture
def job(tmp_path: Path, build_model: Callable[..., Seq2Seq]) -> Callable[..., Job]:
    def make(name: str = "run", **training: Any) -> Job:
        return Job(tmp_path / name, build_model, **training)

    return make
