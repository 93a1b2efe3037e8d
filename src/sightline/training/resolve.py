"""From the name a user gives to the recipe that is trained. Imports no PyTorch, so that sweeps are planned fast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sightline.data.locate import load_run_recipe, with_absolute_folder
from sightline.recipe import Recipe
from sightline.recipe.checks import check_trainable
from sightline.recipe.loading import RecipeError, load_recipe


def open_recipe(recipe: Recipe | str | Path, overrides: Sequence[str] = ()) -> tuple[Recipe, str]:
    """The recipe, its data folder found, and the run folder it is trained into when none is named.

    The recipe of a run folder is its recipe.yaml; training continues in place. Untrainable recipes are refused.
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
    """The recipe with absolute folders."""
    recipe = with_absolute_folder(recipe, path)
    if recipe.model.init_from is None:
        return recipe
    from sightline.training.init_from import with_start  # PyTorch comes with it

    return with_start(recipe)
