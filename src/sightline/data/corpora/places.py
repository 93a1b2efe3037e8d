"""Where corpora lie on this machine: in $SIGHTLINE_CORPORA, else in the user's data folder."""

from __future__ import annotations

import os
from pathlib import Path


def corpora_folders() -> list[Path]:
    """The folders in which recipes look for corpora, best first."""
    named = os.environ.get("SIGHTLINE_CORPORA")
    own = user_corpora()
    folders = [] if not named else [Path(named).expanduser().resolve()]
    return folders if own in folders else [*folders, own]


def user_corpora() -> Path:
    """The folder of the user's own corpora, as the platform has it (Linux: ~/.local/share/sightline/corpora)."""
    from platformdirs import user_data_path

    return Path(user_data_path("sightline", appauthor=False)) / "corpora"
