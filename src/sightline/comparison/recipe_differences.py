"""What differs between recipes: the keys, and what each recipe says there.

Where files lie is compared by the place they are in the end: two names for one file are no difference, and where the
same names lie in different folders, the folder is the one key that differs. Which other test sets a recipe names does
not matter here, because all runs are compared on the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.comparison.wording import NOTHING, UNSET
from sightline.data.locate import data_folder
from sightline.recipe import Recipe

_FOLDER = "data.folder"
_UNSEEN = ("data.tests.",)
# Keys that cannot change what is learned; the last two only how fast, and in the last digits.
_IDLE = {f"training.{key}" for key in ("tensorboard", "keep", "log_every", "samples", "device", "threads")}


@dataclass(frozen=True)
class Difference:
    """A key, and its value in each recipe."""

    key: str
    values: list[str]


def differences(recipes: Sequence[Recipe]) -> list[Difference]:
    """The keys whose values are not the same in all recipes, in the order of the recipe."""
    flat = [_flat(recipe) for recipe in recipes]
    places = [_places(recipe) for recipe in recipes]
    keys = [key for key in _ordered(flat) if not any(other.startswith(f"{key}.") for each in flat for other in each)]
    moved = {key for found in places for key in found if _differ([each.get(key) for each in places])}
    by_folder = {key for key in moved if not _differ([each.get(key) for each in flat])}
    found: list[Difference] = []
    for key in keys:
        values = [_value(each, key) for each in flat]
        if key == _FOLDER:
            differs = bool(by_folder)
        elif any(key in each for each in places):
            differs = key in moved and key not in by_folder
        else:
            differs = _differ(values)
        if differs and not key.startswith(_UNSEEN):
            found.append(Difference(key, values))
    return found


def _value(flat: Mapping[str, str], key: str) -> str:
    """What a recipe says at a key: nothing where there is no such key, and UNSET where its section is not set."""
    parts = key.split(".")
    above = (".".join(parts[:count]) for count in range(1, len(parts)))
    return flat.get(key, UNSET if any(flat.get(each) == UNSET for each in above) else NOTHING)


def differ_only_in_seed(first: Recipe, second: Recipe) -> bool:
    """Whether two recipes would learn the same but for chance."""
    return all(each.key == "seed" or each.key in _IDLE for each in differences([first, second]))


def written(value: Any) -> str:
    """A value as a recipe has it, near enough."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, float) and float(f"{value:g}") == value:  # six digits where they say it all
        return f"{value:g}"
    return str(value)


def _flat(recipe: Recipe) -> dict[str, str]:
    found: dict[str, str] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else str(key))
        elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
            for number, inner in enumerate(value):
                walk(inner, f"{path}.{number}")
        else:
            found[path] = UNSET if value is None else written(value)

    walk(recipe.model_dump(mode="json"), "")
    return found


def _places(recipe: Recipe) -> dict[str, str]:
    """Where each file that the recipe learns from really lies."""
    folder = data_folder(recipe) or Path()
    sources = {f"data.train.{number}": source for number, source in enumerate(recipe.data.train)}
    sources["data.validation"] = recipe.data.validation
    return {
        f"{path}.{key}": str((folder / Path(getattr(source, key)).expanduser()).resolve())
        for path, source in sources.items()
        for key in source.file_keys
    }


def _ordered(flat: Sequence[Mapping[str, str]]) -> list[str]:
    """Every key once; one that only some recipes have stands after the key it follows there."""
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
