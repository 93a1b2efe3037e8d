"""Which Sightline this is."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path


def version() -> str:
    """The installed version; in a checkout that is not installed, what its pyproject.toml says."""
    try:
        return metadata.version("sightline")
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[2] / "pyproject.toml"
        try:
            return f"{tomllib.loads(project.read_text(encoding='utf-8'))['project']['version']}+source"
        except (OSError, KeyError, tomllib.TOMLDecodeError):
            return "0+source"
