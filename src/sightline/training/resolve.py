"""From what a user names to the recipe that is trained; who only plans trainings waits for no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sightline.data.locate import load_run_recipe, with_absolute_folder
from sightline.recipe import Recipe
from sightline.recipe.conflicts import check_trainable
from sightline.recipe.loading import RecipeError, load_recipe


def open_recipe(recipe: Recipe | str | Path, overrides: Sequence[str] = ()) -> tuple[Recipe, str]:
    """The recipe, its data folder found, and the run folder it is trained into when none is named.

    A run folder may stand for its own recipe, and is then trained further in place. What cannot be trained is refused.
    """
    if isinstance(recipe, Recipe):
        check_trainable(recipe)
        return _placed(recipe, None), "runs/run"
    path = Path(recipe)
    run = (path / "recipe.yaml").is_file()
    loaded = load_run_recipe(path, overrides) if run else load_recipe(recipe, overrides)
    try:
        check_trainable(loaded)
    except ValueError as error:
        raise RecipeError(f"{recipe}: {error}") from None
    return _placed(loaded, path if path.is_file() else None), str(path) if run else f"runs/{path.stem}"


def _placed(recipe: Recipe, path: Path | None) -> Recipe:
    """With the folders it names made absolute."""
    found = with_absolute_folder(recipe, path)
    if found.model.init_from is None:
        return found
    from sightline.training.init_from import with_start  # PyTorch comes with it

    return with_start(found)
