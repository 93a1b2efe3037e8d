"""Plug-ins as pip leaves them, and a registry without any."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sightline import registry

METADATA = "Metadata-Version: 2.1\nName: example-plugin\nVersion: 1.2\n"


def forget_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: no plug-in is loaded, and registries have Sightline's own parts."""
    own = {
        part: {name: entry for name, entry in entries.items() if entry.plugin is None}
        for part, entries in registry.REGISTRIES.items()
    }
    monkeypatch.setattr(registry, "REGISTRIES", own)
    monkeypatch.setattr(registry, "_loaded", set())
    for module in [name for name in sys.modules if name.split(".")[0] in ("example_plugin", "broken_plugin")]:
        del sys.modules[module]


def install(folder: Path, package: str, entry_point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves it: a .dist-info folder on the path."""
    info = folder / f"{package.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.replace("example-plugin", package))
    (info / "entry_points.txt").write_text(f"[sightline.plugins]\nparts = {entry_point}\n")
    monkeypatch.syspath_prepend(str(folder))
