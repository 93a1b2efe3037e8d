"""Who wrote a training text: beside what a model wrote lies FILE.json, with the plan it was made by.

`sightline distill` and `sightline backtranslate` write both (augment/parts.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sightline.data.preparation import data_folder
from sightline.files import read_json
from sightline.recipe import Recipe
from sightline.recipe.data import TsvSource

_WRITERS = {"teacher": "distilled", "model": "back-translated"}  # by which key a plan names who wrote


@dataclass(frozen=True)
class Origin:
    """How a text was made, and by which models: the digests of their weights."""

    how: str
    models: tuple[str, ...]


def summary_of(file: Path) -> Path:
    """Where it is said how a file was made."""
    return file.with_name(f"{file.name}.json")


def origins(recipe: Recipe) -> list[Origin]:
    """How those of its training texts were made that models wrote, as far as it is still to be found."""
    folder = data_folder(recipe) or Path()
    files = (folder / Path(each.file).expanduser() for each in recipe.data.train if isinstance(each, TsvSource))
    return [origin for file in files if (origin := origin_of(file)) is not None]


def origin_of(file: Path) -> Origin | None:
    """How a text was made; None where nothing beside it says so."""
    try:
        plan = read_json(summary_of(file))["plan"]
        key = next(key for key in _WRITERS if key in plan)
        models = plan[key]["models"] if isinstance(plan[key], dict) else [plan[key]]  # of an ensemble: all
        return Origin(_WRITERS[key], tuple(map(str, models)))
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None
