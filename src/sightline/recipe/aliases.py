"""Keys of older recipes and what they are called now: recipes and runs that use an old name keep loading."""

from __future__ import annotations

from typing import Any

from sightline.recipe.tasks import task_aliases
from sightline.recipe.yaml import KeyPath, Located, dotted

# old → new, oldest first; an old key that is null says nothing
ALIASES: dict[KeyPath, KeyPath] = {
    ("training", "start_from"): ("model", "init_from"),
    ("model", "start_from"): ("model", "init_from"),
}


def current_name(path: KeyPath) -> KeyPath:
    """The path of a key under its present name."""
    for old, new in ALIASES.items():
        if path[: len(old)] == old:
            return (*new, *path[len(old) :])
    return path


def with_current_names(values: Any) -> Any:
    """A recipe as a mapping, old keys and other names of tasks under their present names; the argument is unchanged."""
    if isinstance(values, dict) and isinstance(task := values.get("task"), str) and task in (names := task_aliases()):
        values = {**values, "task": names[task]}
    for (section, key), (new_section, new_key) in ALIASES.items():
        held = values.get(section) if isinstance(values, dict) else None
        if not isinstance(held, dict) or key not in held:
            continue
        values = {**values, section: {name: value for name, value in held.items() if name != key}}
        target = values.get(new_section)
        if held[key] is not None and isinstance(target, dict):
            values[new_section] = {new_key: held[key], **target}
    return values


def rename_keys(document: Located) -> bool:
    """The same of a document, with its places; whether there was an old name in it."""
    old_names = [old for old in ALIASES if old in document.places and _value(document.value, old) is not None]
    for old in old_names:
        new = ALIASES[old]
        if new in document.places:
            document.problems.append(
                f"{document.place(old)}: {dotted(old)} is the old name of {dotted(new)}, which is given too; keep one"
            )
        for place in [place for place in document.places if place[: len(old)] == old]:
            document.places.setdefault(current_name(place), document.places.pop(place))
    document.value = with_current_names(document.value)
    return bool(old_names)


def _value(values: Any, path: KeyPath) -> Any:
    for key in path:
        values = values.get(key) if isinstance(values, dict) else None
    return values
