"""The command line: one thin file per verb. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `sightline` command."""
    from sightline.cli.app import app
    from sightline.cli.errors import told

    with told():
        app(prog_name="sightline")
    sys.exit(0)
