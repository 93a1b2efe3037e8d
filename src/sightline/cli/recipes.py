"""`sightline schema` and `sightline recipes`: what a recipe may say, and which there are."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated

import click
import typer


def schema() -> None:
    """Print the JSON Schema of recipes, for editors.

    Example: `sightline schema > recipe.schema.json`, then begin a recipe with
    `# yaml-language-server: $schema=recipe.schema.json`.
    """
    import json

    from sightline.recipe.loading import recipe_schema

    print(json.dumps(recipe_schema(), indent=2, ensure_ascii=False))


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="A recipe to print; or `keys`: what a recipe may say.", show_default=False)
    ] = None,
    prefix: Annotated[str | None, typer.Argument(help="Of keys: only those that begin so.", show_default=False)] = None,
) -> None:
    """List the shipped recipes, print one of them, or all keys with their types, defaults and meanings.

    Examples:

    - `sightline recipes`
    - `sightline recipes multi30k/transformer > mine.yaml`
    - `sightline recipes keys`
    - `sightline recipes keys training.schedule`
    """
    if name is None:
        _print(_listed())
        return
    if name == "keys":
        from sightline.recipe.reference import reference

        _print(reference(prefix or "", width=_width()))
        return
    if prefix is not None:
        raise ValueError(f"sightline recipes {name} prints that recipe, so {prefix!r} has no place; leave it out")
    from sightline.recipe.loading import find_recipe

    _print(find_recipe(name).read_text(encoding="utf-8-sig"))


def _listed() -> str:
    """The shipped recipes, each with the first line of its header."""
    from sightline.recipe.loading import shipped_recipes

    found = shipped_recipes()
    width = max(len(name) for name in found)
    heads = {
        name: path.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ").rstrip() for name, path in found.items()
    }
    return "".join(f"{name:<{width}}  {head}\n" for name, head in heads.items())


def _width() -> int:
    """Columns to write into: those of the terminal, within what reads well."""
    return max(60, min(shutil.get_terminal_size((80, 24)).columns, 100))


def _print(text: str) -> None:
    """Print; in a terminal that is too short for it, through a pager."""
    if sys.stdout.isatty() and text.count("\n") >= shutil.get_terminal_size().lines:
        click.echo_via_pager(text)
    else:
        print(text, end="" if text.endswith("\n") else "\n")
