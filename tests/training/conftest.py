"""Small trainings, each in a folder of its own; costs that must know every operation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
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


@pytest.fixture
def nothing_is_unknown() -> Iterator[None]:
    """An operation whose cost is not known, which is warned of, is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield
