"""Texts for every task, and runs to begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_trainings import KINDS, Trainer, a_recipe, lines

from watched_runs import own_cache


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the texts are."""
    folder = tmp_path_factory.mktemp("texts")
    for task in KINDS:
        (folder / f"{task}.train").write_text(lines(task, range(60)))
        (folder / f"{task}.valid").write_text(lines(task, range(60, 70)))
    with own_cache(folder / "cache"):
        yield folder


@pytest.fixture
def train(folder: Path, tmp_path: Path) -> Trainer:
    return Trainer(folder, tmp_path)


@pytest.fixture(scope="package")
def started(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each task; shared, so not to be changed."""
    trainer = Trainer(folder, tmp_path_factory.mktemp("started"))
    return {task: trainer(a_recipe(task), out=task) for task in ("seq2seq", "language-model", "tagging")}
