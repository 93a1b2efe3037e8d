"""Where the tokenized corpora are kept; apart, for whoever asks need not be able to read them."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SIGHTLINE_CACHE, or sightline in the user's cache folder."""
    if chosen := os.environ.get("SIGHTLINE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sightline"
