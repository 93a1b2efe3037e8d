from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from installed_plugins import forget_plugins, install


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example plug-in, installed."""
    forget_plugins(monkeypatch)
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", "example-plugin", "example_plugin", monkeypatch)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    forget_plugins(monkeypatch)
