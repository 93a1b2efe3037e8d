"""Which keys of a recipe may change when a training is resumed, and how two recipes differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sightline.recipe import Recipe
from sightline.recipe.bodies import RecurrentDecoderConfig
from sightline.recipe.schema import Section

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
    """The keys that may not change and do: `training.lr: 0.1 then, 0.2 now`.

    A run stores the precision that `auto` came to, so `auto` agrees with any.
    """
    if new.training.precision == "auto":
        training = new.training.model_copy(update={"precision": old.training.precision})
        new = new.model_copy(update={"training": training})
    return changed(old.model_dump(mode="json"), new.model_dump(mode="json"), lambda path: path in FREE)


def with_unset_from(recipe: Section, saved: Section) -> Any:
    """The recipe with the value of `saved` for each key that it does not set: how a run is resumed."""
    changes: dict[str, Any] = {}
    for name in type(recipe).model_fields:
        own, theirs = getattr(recipe, name), getattr(saved, name)
        if name not in recipe.model_fields_set:
            changes[name] = theirs
        elif isinstance(own, Section) and type(own) is type(theirs):
            changes[name] = with_unset_from(own, theirs)
    return recipe.model_copy(update=changes)


def changed(old: Any, new: Any, free: Callable[[tuple[str, ...]], bool] = lambda path: False) -> list[str]:
    """Where two mappings of mappings differ, but for paths that are free: `decoding.beam: 5 then, 1 now`."""
    return [f"{key}: {before!r} then, {after!r} now" for key, before, after in _differing(old, new, (), free)]


def section_differences(theirs: Section, own: Section, name: str, free: frozenset[str]) -> list[str]:
    """Where a section of another recipe differs, but for keys that are `free`: `model.width: 8 there, 16 here`."""
    both = (theirs.model_dump(mode="json"), own.model_dump(mode="json"))
    found = _differing(*both, (name,), lambda path: path[-1] in free)
    return [f"{key}: {there!r} there, {here!r} here" for key, there, here in found]


def _differing(
    one: Any, other: Any, path: tuple[str, ...], free: Callable[[tuple[str, ...]], bool]
) -> Iterator[tuple[str, Any, Any]]:
    """Each key that is not free and has two values, with both."""
    if one == other or free(path):
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(set(one) | set(other)):
            yield from _differing(one.get(key), other.get(key), (*path, key), free)
    else:
        yield ".".join(path), one, other


def without_adapters(recipe: Recipe) -> Recipe:
    """The recipe of the model that one with adapters becomes when they are merged into its weights."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"adapters": None})})


def carries(recipe: Recipe) -> bool:
    """Whether a window goes on from the state of the one before it."""
    wanted, able = recipe.training.batches.carry, isinstance(recipe.model.decoder, RecurrentDecoderConfig)
    if wanted and not able:
        raise ValueError("training.batches.carry: true needs a recurrent decoder; others have no state to hand on")
    return able if wanted is None else wanted
