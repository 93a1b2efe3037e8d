"""One tiny run of each task, trained once for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from task_runs import trained_tasks

NAMES = ["lm-gru", "lm-transformer", "lm-bpe", "music", "classify-mean", "tag-gru", "names-gru"]


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Run folders by name; shared, so not to be changed."""
    with trained_tasks(tmp_path_factory.mktemp("tasks"), NAMES) as runs:
        yield runs
