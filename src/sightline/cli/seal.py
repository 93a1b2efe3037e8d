"""`sightline seal`: accept the files of a run folder as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def seal(runs: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)]) -> None:
    """Write the manifest of a run folder anew: the SHA-256 of every file that a command relies on.

    For runs of older versions, which have no manifest, and after a file was changed on purpose. Every command that
    loads a run refuses files that are not the ones that were sealed.

    Examples:

    - `sightline seal runs/mine`
    - `sightline seal runs/*`
    """
    from sightline.recipe.files import load_recipe
    from sightline.run_folder import changes, locked, need, parse_config, read_manifest
    from sightline.run_folder import seal as write_manifest

    for run in runs:
        parse_config(run)
        load_recipe(need(run, "recipe.yaml", "it is part of every run folder; copy the whole folder"))
        with locked(run):
            try:
                old, found = read_manifest(run), changes(run)
            except ValueError as error:
                old, found = None, [str(error)]
            files = write_manifest(run, finished=True)
        size = sum(entry["size"] for entry in files.values())
        print(f"{run}: sealed {len(files)} files, {size / 1e6:.1f} MB")
        for change in found:
            print(f"  {change}; accepted")
        if old is None and not found:
            print("  had no manifest")
