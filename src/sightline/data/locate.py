"""Find the files of a recipe or run on this machine, and the provenance of texts that models wrote."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.data.corpora.catalogue import catalogue, corpora_folders
from sightline.data.text_files import DataError
from sightline.files import read_json
from sightline.recipe import Recipe
from sightline.recipe.data import direction
from sightline.recipe.loading import load_recipe
from sightline.recipe.sources import AnySource, TsvSource
from sightline.run_folder import read_config, verify


class MovedFolder(UserWarning):
    """A corpus is not in the folder that the recipe names; one of the same name is in $SIGHTLINE_CORPORA."""


def resolve_folder(folder: str | None, recipe: Path | None) -> Path | None:
    """The folder to which file names of a recipe are relative.

    A relative folder is searched beside the recipe file, then in $SIGHTLINE_CORPORA. An absolute one is used if it
    exists, else searched there by its last name: runs save absolute folders, and may have been trained on another
    machine. Without a folder, names are relative to the recipe file, or to the current folder (None).
    """
    if folder is None:
        return None if recipe is None else recipe.resolve().parent
    named = Path(folder).expanduser()
    for candidate in (candidates := _candidates(named, recipe)):
        if candidate.is_dir():
            if named.is_absolute() and candidate != named:
                moved = f"data.folder: {named} is not here; its files are read from {candidate} ($SIGHTLINE_CORPORA)"
                warnings.warn(MovedFolder(moved), stacklevel=1)
            return candidate
    raise _no_folder(folder, candidates)


def folder_here(folder: str) -> Path:
    """`resolve_folder` for a run; a folder that does not exist is returned unchanged, so opening its files fails."""
    try:
        return resolve_folder(folder, None) or Path(folder)
    except DataError:
        return Path(folder)


def _candidates(named: Path, recipe: Path | None) -> list[Path]:
    """The places of a folder, best first."""
    beside = (recipe.resolve().parent if recipe is not None else Path.cwd()) / named
    corpora = [folder / (named.name if named.is_absolute() else named) for folder in corpora_folders()]
    return list(dict.fromkeys([beside, *corpora]))


def _no_folder(folder: str, candidates: Sequence[Path]) -> DataError:
    if Path(folder).is_absolute():
        problem = "there is no " + " and no ".join(map(str, candidates))
    else:
        both = f"neither {' nor '.join(map(str, candidates))}"
        problem = f"{folder!r} is {both if len(candidates) > 1 else f'not {candidates[0]}'}"
    unset = "" if os.environ.get("SIGHTLINE_CORPORA") else " ($SIGHTLINE_CORPORA is not set)"
    return DataError(
        f"data.folder: {problem}{unset}; {_how_to_get(folder)}set data.folder (of a run, in its recipe.yaml) to where "
        f"the corpus is, or SIGHTLINE_CORPORA to the folder that holds it"
    )


def _how_to_get(folder: str) -> str:
    """The command that downloads a corpus, if it is in the catalogue."""
    name = Path(folder).name
    return f"get it with `sightline data get {name}`, or " if name in catalogue() else ""


def source_files(source: AnySource, folder: Path | None) -> list[Path]:
    """The files of a source; a missing one is an error."""
    paths = [(folder or Path()) / Path(getattr(source, key)).expanduser() for key in source.file_keys]
    for path in paths:
        if path.is_file():
            continue
        if folder is not None and path.is_relative_to(folder) and not folder.is_dir():
            raise _no_folder(str(folder), _candidates(folder, None))
        remedy = _how_to_get(str(path.absolute().resolve().parent))
        raise DataError(
            f"{path} does not exist; {remedy}check its name in the recipe, data.folder and SIGHTLINE_CORPORA"
        )
    return paths


def data_folder(recipe: Recipe) -> Path | None:
    """The folder of a recipe's data on this machine."""
    return None if recipe.data.folder is None else folder_here(recipe.data.folder)


def with_absolute_folder(recipe: Recipe, path: Path | None) -> Recipe:
    """The recipe of a file with data.folder made absolute, so that the run can be used from any folder.

    If no source reads files (generated dates, for example), the folder need not exist.
    """
    data = recipe.data
    sources = (*data.train, data.validation, *data.tests.values())
    other_files = recipe.model.word_vectors is not None or recipe.training.guided_alignment is not None
    if data.folder is not None and not other_files and not any(source.file_keys for source in sources):
        return recipe
    folder = resolve_folder(data.folder, path)
    absolute = str(folder.resolve()) if folder is not None else None
    return recipe.model_copy(update={"data": data.model_copy(update={"folder": absolute})})


def load_run_recipe(run: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a run folder. Training text inside the folder (distilled) is found wherever the folder is now."""
    verify(run)
    recipe = load_recipe(run / "recipe.yaml", overrides)

    def relocated(source: AnySource) -> AnySource:
        if not isinstance(source, TsvSource) or not Path(source.file).is_absolute() or Path(source.file).is_file():
            return source
        inside = run.resolve() / Path(source.file).name
        return source.model_copy(update={"file": str(inside)}) if inside.is_file() else source

    train = tuple(relocated(source) for source in recipe.data.train)
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train})})
    if recipe.model.copying is True and (run / "config.json").is_file() and "copying" not in read_config(run):
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"copying": "exact"})})
    return recipe


def is_reverse_direction(recipe: Recipe, other: Recipe) -> bool:
    """Return True if two recipes learn opposite directions of the same corpus, judged by its file names."""
    if not direction(recipe.data).is_turned(direction(other.data)):  # before looking for folders, which may not exist
        return False
    return data_folder(recipe) == data_folder(other)


def is_same_direction(recipe: Recipe, other: Recipe) -> bool:
    """Return True if two recipes read and write the same texts of the same corpus."""
    return direction(recipe.data) == direction(other.data) and data_folder(recipe) == data_folder(other)


def alignment_file(recipe: Recipe) -> Path | None:
    """The word alignments of training.guided_alignment, if set."""
    guide = recipe.training.guided_alignment
    return None if guide is None else (data_folder(recipe) or Path()) / Path(guide.file).expanduser()


_METHODS = {"teacher": "distilled", "model": "back-translated"}  # by the key of the plan that names the models


@dataclass(frozen=True)
class Provenance:
    """How models wrote a training text, and which: the digests of their weights."""

    how: str
    models: tuple[str, ...]


def provenance_file(file: Path) -> Path:
    """FILE.json beside a text that `sightline distill` or `backtranslate` wrote (augment/parts.py)."""
    return file.with_name(f"{file.name}.json")


def training_provenance(recipe: Recipe) -> list[Provenance]:
    """The provenance of a recipe's training texts, where it is known."""
    folder = data_folder(recipe) or Path()
    files = (folder / Path(each.file).expanduser() for each in recipe.data.train if isinstance(each, TsvSource))
    return [provenance for file in files if (provenance := read_provenance(file)) is not None]


def read_provenance(file: Path) -> Provenance | None:
    """The provenance of a text; None if nothing beside it records one."""
    try:
        plan = read_json(provenance_file(file))["plan"]
        key = next(key for key in _METHODS if key in plan)
        models = plan[key]["models"] if isinstance(plan[key], dict) else [plan[key]]  # an ensemble has several
        return Provenance(_METHODS[key], tuple(map(str, models)))
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None
