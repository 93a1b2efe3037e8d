"""`sightline recipes`: shipped recipes, the reference of all keys, and their JSON Schema."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Annotated

import click
import typer

from sightline.cli.commands import Group, group


class RecipesGroup(Group):
    """`recipes` lists; `recipes NAME` is `recipes show NAME`."""

    alone, default = "list", "show"


def about() -> None:
    """List shipped recipes, print one, or explain every key.

    Without a sub-command, sightline recipes lists recipes and sightline recipes NAME prints one.

    Examples:
      sightline recipes
      sightline recipes show multi30k/transformer > mine.yaml
      sightline recipes keys training.schedule
      sightline recipes schema > recipe.schema.json
    """


def list_recipes() -> None:
    """List the shipped recipes.

    Examples:
      sightline recipes list
    """
    from sightline.recipe.loading import shipped_recipes

    recipes = shipped_recipes()
    width = max(map(len, recipes))
    titles = {name: path.read_text(encoding="utf-8").partition("\n")[0] for name, path in recipes.items()}
    _print("".join(f"{name:<{width}}  {title.lstrip('# ').rstrip()}\n" for name, title in titles.items()))


def show(name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped recipe, or a file.")]) -> None:
    """Print a recipe.

    Examples:
      sightline recipes show multi30k/transformer > mine.yaml
    """
    from sightline.recipe.loading import find_recipe

    _print(find_recipe(name).read_text(encoding="utf-8-sig"))


def keys(
    prefix: Annotated[str | None, typer.Argument(metavar="PREFIX", help="Print only keys with this prefix.")] = None,
) -> None:
    """Print the keys a recipe can have, with types, defaults and meanings.

    Examples:
      sightline recipes keys
      sightline recipes keys training.schedule
    """
    from sightline.recipe.reference import reference

    _print(reference(prefix or "", width=max(60, min(shutil.get_terminal_size((80, 24)).columns, 100))))


def schema() -> None:
    """Print the JSON Schema of recipes, for editors.

    Editors find it by a first line # yaml-language-server: $schema=recipe.schema.json.

    Examples:
      sightline recipes schema > recipe.schema.json
    """
    from sightline.recipe.loading import recipe_schema

    print(json.dumps(recipe_schema(), indent=2, ensure_ascii=False))


def _print(text: str) -> None:
    """Print; through a pager if the terminal is too short."""
    if sys.stdout.isatty() and text.count("\n") >= shutil.get_terminal_size().lines:
        click.echo_via_pager(text)
    else:
        print(text, end="" if text.endswith("\n") else "\n")


app = group("recipes", about, {"list": list_recipes, "show": show, "keys": keys, "schema": schema}, cls=RecipesGroup)
