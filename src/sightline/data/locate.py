"""Find the files of a recipe or run on this machine, and the origin of texts that models wrote."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.data.corpora.catalogue import corpora_folders
from sightline.data.text_files import DataError
from sightline.files import read_json
from sightline.recipe import Recipe
from sightline.recipe.data import AnySource, TsvSource, direction
from sightline.recipe.loading import load_recipe
from sightline.run_folder import read_config, verify

_WRITERS = {"teacher": "distilled", "model": "back-translated"}  # by which key a plan names who wrote


@dataclass(frozen=True)
class Provenance:
    """How a text was made, and by which models: the digests of their weights."""

    how: str
    models: tuple[str, ...]


def provenance_file(file: Path) -> Path:
    """Where it is said how a file was made."""
    return file.with_name(f"{file.name}.json")


def training_provenance(recipe: Recipe) -> list[Provenance]:
    """How those of its training texts were made that models wrote, as far as it is still to be found."""
    folder = data_folder(recipe) or Path()
    files = (folder / Path(each.file).expanduser() for each in recipe.data.train if isinstance(each, TsvSource))
    return [origin for file in files if (origin := read_provenance(file)) is not None]


def read_provenance(file: Path) -> Provenance | None:
    """How a text was made; None where nothing beside it says so."""
    try:
        plan = read_json(provenance_file(file))["plan"]
        key = next(key for key in _WRITERS if key in plan)
        models = plan[key]["models"] if isinstance(plan[key], dict) else [plan[key]]  # of an ensemble: all
        return Provenance(_WRITERS[key], tuple(map(str, models)))
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def with_absolute_folder(recipe: Recipe, path: Path | None) -> Recipe:
    """The recipe with data.folder made absolute, so that the run folder can be used from anywhere.

    A folder in which nothing is looked for need not be there: text that is built in (dates) is read from no file.
    """
    if recipe.data.folder is not None and not _reads_files(recipe):
        return recipe
    folder = resolve_folder(recipe.data.folder, path)
    absolute = str(folder.resolve()) if folder is not None else None
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"folder": absolute})})


def _reads_files(recipe: Recipe) -> bool:
    data = recipe.data
    sources = (*data.train, data.validation, *data.tests.values())
    beside = recipe.model.word_vectors is not None or recipe.training.guided_alignment is not None
    return beside or any(source.file_keys for source in sources)


def load_run_recipe(run: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a run folder: text that lay in it (distilled) lies there still, wherever the folder is now."""
    verify(run)
    recipe = load_recipe(run / "recipe.yaml", overrides)

    def found(source: AnySource) -> AnySource:
        if not isinstance(source, TsvSource) or not Path(source.file).is_absolute() or Path(source.file).is_file():
            return source
        own = run.resolve() / Path(source.file).name
        return source.model_copy(update={"file": str(own)}) if own.is_file() else source

    train = tuple(found(source) for source in recipe.data.train)
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train})})
    if recipe.model.copying is True and (run / "config.json").is_file() and "copying" not in read_config(run):
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"copying": "exact"})})
    return recipe


def data_folder(recipe: Recipe) -> Path | None:
    """Where its files start on this machine."""
    return None if recipe.data.folder is None else folder_here(recipe.data.folder)


def is_reverse_direction(recipe: Recipe, other: Recipe) -> bool:
    """Whether two recipes learn the two directions of one corpus, as the names of their texts say."""
    if not direction(recipe.data).is_turned(direction(other.data)):  # then nobody need know where the files lie
        return False
    return data_folder(recipe) == data_folder(other)


def is_same_direction(recipe: Recipe, other: Recipe) -> bool:
    """Whether two recipes read and write the same texts of one corpus."""
    return direction(recipe.data) == direction(other.data) and data_folder(recipe) == data_folder(other)


def alignment_file(recipe: Recipe) -> Path | None:
    """The word alignments of training.guided_alignment, if there are some."""
    guide = recipe.training.guided_alignment
    return None if guide is None else (data_folder(recipe) or Path()) / Path(guide.file).expanduser()


class MovedFolder(UserWarning):
    """A corpus is not where a recipe has it, and one of its name is among the corpora of this machine."""


def resolve_folder(folder: str | None, recipe: Path | None) -> Path | None:
    """Where relative file names of a recipe start.

    A folder is looked for beside the recipe file, then in $SIGHTLINE_CORPORA; an absolute one where it should be, then
    there by its name alone: a run saves absolute folders, and may have been trained on another machine. Without a
    folder, names start beside the recipe (or, when there is no recipe file either, where we stand: None).
    """
    if folder is None:
        return None if recipe is None else recipe.resolve().parent
    wanted = Path(folder).expanduser()
    for found in (places := _places(wanted, recipe)):
        if found.is_dir():
            if wanted.is_absolute() and found != wanted:
                said = f"data.folder: {wanted} is not here; its files are read from {found} ($SIGHTLINE_CORPORA)"
                warnings.warn(MovedFolder(said), stacklevel=1)
            return found
    raise _no_folder(folder, places)


def folder_here(folder: str) -> Path:
    """The folder of a run, wherever it was trained (see `resolve_folder`).

    Where there is none it is what the recipe says: an error for whoever wants a file in it, and for nobody else.
    """
    try:
        return resolve_folder(folder, None) or Path(folder)
    except DataError:
        return Path(folder)


def _places(wanted: Path, recipe: Path | None) -> list[Path]:
    """Where a folder may lie, best first."""
    beside = (recipe.resolve().parent if recipe is not None else Path.cwd()) / wanted
    among = [folder / (wanted.name if wanted.is_absolute() else wanted) for folder in corpora_folders()]
    return list(dict.fromkeys([beside, *among]))


def _no_folder(folder: str, places: Sequence[Path]) -> DataError:
    if Path(folder).is_absolute():
        told = "there is no " + " and no ".join(map(str, places))
    else:
        looked = "not " + str(places[0]) if len(places) == 1 else "neither " + " nor ".join(map(str, places))
        told = f"{folder!r} is {looked}"
    unset = "" if os.environ.get("SIGHTLINE_CORPORA") else " ($SIGHTLINE_CORPORA is not set)"
    return DataError(
        f"data.folder: {told}{unset}; {_how_to_get(folder)}set data.folder (of a run, in its recipe.yaml) to where the "
        f"corpus lies, or SIGHTLINE_CORPORA to the folder that holds it"
    )


def _how_to_get(folder: str) -> str:
    """The command that gets a corpus, where it is one of the catalogue."""
    from sightline.data.corpora.catalogue import catalogue

    name = Path(folder).name
    return f"get it with `sightline data get {name}`, or " if name in catalogue() else ""


def source_files(source: AnySource, folder: Path | None) -> list[Path]:
    """The files a source reads; all of them exist."""
    paths = [(folder or Path()) / Path(getattr(source, key)).expanduser() for key in source.file_keys]
    for path in paths:
        if path.is_file():
            continue
        if folder is not None and path.is_relative_to(folder) and not folder.is_dir():
            raise _no_folder(str(folder), _places(folder, None))
        remedy = _how_to_get(str(path.absolute().resolve().parent))
        raise DataError(
            f"{path} does not exist; {remedy}check its name in the recipe, data.folder and SIGHTLINE_CORPORA"
        )
    return paths
