"""`sightline schema` and `sightline recipes`: what a recipe may say, and which there are."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema of recipes, for editors.

    Example: `sightline schema > recipe.schema.json`, then begin a recipe with
    `# yaml-language-server: $schema=recipe.schema.json`.
    """
    import json

    from sightline.recipe.files import recipe_schema

    print(json.dumps(recipe_schema(), indent=2, ensure_ascii=False))


def recipes() -> None:
    """List the shipped recipes, each with the first line of its header."""
    from sightline.recipe.files import shipped_recipes

    found = shipped_recipes()
    width = max(len(name) for name in found)
    for name, path in found.items():
        with path.open(encoding="utf-8") as file:
            print(f"{name:<{width}}  {file.readline().lstrip('# ').rstrip()}")
