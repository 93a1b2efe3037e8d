"""Whether a training may go on under a recipe that is not word for word the one it was begun with."""

from __future__ import annotations

from typing import Any

from sightline.recipe import Recipe
from sightline.recipe.sections import Section

# What may change between the sittings of one training. Only the limits change what is learned: training longer than
# planned moves the end of a cosine or warmup-stable-decay schedule, which is what whoever raises them wants.
FREE: frozenset[tuple[str, ...]] = frozenset(
    {
        *(("training", key) for key in ("limits", "device", "threads", "tensorboard", "keep", "log_every")),
        ("training", "log_layers"),
        ("training", "stopping", "patience"),
        ("data", "tests"),
        ("data", "folder"),  # another machine has the files elsewhere; whether their text is another is seen later
        ("decoding",),
        ("evaluation", "bootstrap"),
    }
)


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The keys that may not change and do: `training.lr: 0.1 then, 0.2 now`."""
    return _differences(old.model_dump(mode="json"), new.model_dump(mode="json"), ())


def _differences(old: Any, new: Any, path: tuple[str, ...]) -> list[str]:
    if path in FREE or old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [line for key in keys for line in _differences(old.get(key), new.get(key), (*path, key))]
    return [f"{'.'.join(path)}: {old!r} then, {new!r} now"]


def without_adapters(recipe: Recipe) -> Recipe:
    """The recipe of the model that one with adapters becomes when they are merged into its weights."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"adapters": None})})


def section_differences(theirs: Section, own: Section, name: str, free: frozenset[str]) -> list[str]:
    """Where a section of another recipe differs, but for keys that are `free`: `model.width: 8 there, 16 here`."""

    def walk(one: Any, other: Any, path: tuple[str, ...]) -> list[str]:
        if one == other or path[-1] in free:
            return []
        if isinstance(one, dict) and isinstance(other, dict):
            keys = sorted(set(one) | set(other))
            return [line for key in keys for line in walk(one.get(key), other.get(key), (*path, key))]
        return [f"{'.'.join(path)}: {one!r} there, {other!r} here"]

    return walk(theirs.model_dump(mode="json"), own.model_dump(mode="json"), (name,))
