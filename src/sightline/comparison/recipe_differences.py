"""Differences between recipes, key by key.

Files are compared by the path they resolve to: two names of one file do not differ, and of equal names in different
folders only the folder differs. Test sets are ignored, since all runs are compared on the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sightline.comparison.results import NOTHING, UNSET, Difference
from sightline.data.locate import data_folder
from sightline.recipe import Recipe

_FOLDER = "data.folder"
_IGNORED = ("data.tests.",)
# Keys that do not change the model, apart from rounding.
_NO_EFFECT = {f"training.{key}" for key in ("tensorboard", "keep", "log_every", "samples", "device", "threads")}


def recipe_differences(recipes: Sequence[Recipe]) -> list[Difference]:
    """The keys whose values are not the same in all recipes, in the order of the recipe."""
    flat = [_flat(recipe) for recipe in recipes]
    places = [_places(recipe) for recipe in recipes]
    keys = [key for key in _ordered(flat) if not any(other.startswith(f"{key}.") for each in flat for other in each)]
    moved = {key for each in places for key in each if _differ([other.get(key) for other in places])}
    by_folder = {key for key in moved if not _differ([each.get(key) for each in flat])}
    differences: list[Difference] = []
    for key in keys:
        values = [_value(each, key) for each in flat]
        if key == _FOLDER:
            differs = bool(by_folder)
        elif any(key in each for each in places):
            differs = key in moved and key not in by_folder
        else:
            differs = _differ(values)
        if differs and not key.startswith(_IGNORED):
            differences.append(Difference(key, values))
    return differences


def differ_only_in_seed(first: Recipe, second: Recipe) -> bool:
    """Return True if two recipes differ only in the seed and in keys without effect on the model."""
    return all(each.key == "seed" or each.key in _NO_EFFECT for each in recipe_differences([first, second]))


def format_value(value: Any) -> str:
    """A value in YAML notation; floats with six digits if that is exact."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_value, value)) + "]"
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def _value(flat: Mapping[str, str], key: str) -> str:
    """The value of a key; NOTHING where it does not exist, and UNSET where its section is not set."""
    parts = key.split(".")
    above = (".".join(parts[:count]) for count in range(1, len(parts)))
    return flat.get(key, UNSET if any(flat.get(each) == UNSET for each in above) else NOTHING)


def _flat(recipe: Recipe) -> dict[str, str]:
    """Dotted keys and their values."""
    flat: dict[str, str] = {}

    def add(value: Any, path: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(inner, f"{path}.{key}" if path else str(key))
        elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
            for number, inner in enumerate(value):
                add(inner, f"{path}.{number}")
        else:
            flat[path] = UNSET if value is None else format_value(value)

    add(recipe.model_dump(mode="json"), "")
    return flat


def _places(recipe: Recipe) -> dict[str, str]:
    """The resolved path of each training and validation file."""
    folder = data_folder(recipe) or Path()
    sources = {f"data.train.{number}": source for number, source in enumerate(recipe.data.train)}
    sources["data.validation"] = recipe.data.validation
    return {
        f"{path}.{key}": str((folder / Path(getattr(source, key)).expanduser()).resolve())
        for path, source in sources.items()
        for key in source.file_keys
    }


def _ordered(flat: Sequence[Mapping[str, str]]) -> list[str]:
    """All keys in the order of the recipes."""
    keys: list[str] = []
    for each in flat:
        at = 0
        for key in each:
            if key in keys:
                at = keys.index(key) + 1
            else:
                keys.insert(at, key)
                at += 1
    return keys


def _differ(values: Sequence[object]) -> bool:
    return any(value != values[0] for value in values)
