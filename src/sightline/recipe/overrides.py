"""`section.key=value`: one change to a recipe, made from the command line.

An override changes the recipe as it would be resolved: a section the file does not write begins as its default, and a
new `kind` takes the keys that only the old one had with it.
"""

from __future__ import annotations

from typing import Any

from sightline.recipe import Recipe
from sightline.recipe.aliases import current_name
from sightline.recipe.defaults import with_model
from sightline.recipe.sections import Section
from sightline.recipe.shape import chosen, inner, kinds
from sightline.recipe.yaml import Key, KeyPath, Located, dotted, read_yaml


def key_of(override: str) -> tuple[str, ...]:
    """The key that an override sets, under its present name."""
    return tuple(map(str, current_name(tuple(override.partition("=")[0].strip().split(".")))))


def apply_override(document: Located, override: str) -> None:
    """Change `document` in place; what is wrong with the override joins its problems."""
    at = f"override {override!r}"
    name, equals, text = override.partition("=")
    name = name.strip()
    if not equals:
        document.problems.append(f"{at}: there is no '='; write section.key=value")
        return
    if not all(name.split(".")):
        document.problems.append(f"{at}: {name!r} is not a key; write section.key=value")
        return
    new = read_yaml(text, at, at=at)
    if new.problems:
        document.problems.extend(new.problems)
        return
    if name.startswith(("model.encoder", "model.decoder", "model.pooling")):
        document.value = with_model(document.value)  # so that `model.encoder.layers=2` changes the default encoder
    try:
        _put(document, [str(key) for key in current_name(tuple(name.split(".")))], new, at)
    except LookupError as error:
        document.problems.append(f"{at}: {error.args[0]}")


def _put(document: Located, keys: list[str], new: Located, at: str) -> None:
    here: Any = document.value
    annotation: Any = Recipe
    walked: KeyPath = ()
    for name in keys[:-1]:
        key = _key_in(here, name, walked)
        below = inner(annotation, key, here)
        if _lacks(here, key):
            here[key] = _default(annotation, key, here)
            document.places[(*walked, key)] = at
        _write_out(document, here, key, below, (*walked, key))
        here, annotation, walked = here[key], below, (*walked, key)
    key = _key_in(here, keys[-1], walked)
    if key == "kind" and isinstance(here, dict):
        _drop_keys_of_the_old_kind(document, here, annotation, new.value, walked)
    here[key] = new.value
    target = (*walked, key)
    for old in [place for place in document.places if place[: len(target)] == target]:
        del document.places[old]
    document.places.update({(*target, *place): at for place in new.places})


def _key_in(here: Any, name: str, path: KeyPath) -> Key:
    """`name` as a key of the mapping or an index of the list `here`."""
    if isinstance(here, dict):
        return name
    if isinstance(here, list):
        if name.isdecimal() and int(name) < len(here):
            return int(name)
        some = f"0 to {len(here) - 1}" if here else "none: it is empty"
        raise LookupError(f"{dotted(path)} is a list, and {name!r} is not one of its positions ({some})")
    raise LookupError(f"{dotted(path)} is {here!r}, which has no keys, so {name!r} cannot be set in it")


def _lacks(here: Any, key: Key) -> bool:
    return isinstance(here, dict) and here.get(str(key)) is None


def _write_out(document: Located, here: Any, key: Key, annotation: Any, path: KeyPath) -> None:
    """`init_from: RUN` as `init_from: {run: RUN}`, so that other keys can stand beside it."""
    section = chosen(annotation, here[key])
    if isinstance(here[key], str) and section is not None and section.short_for is not None:
        here[key] = {section.short_for: here[key]}
        document.places[(*path, section.short_for)] = document.places[path]


def _default(annotation: Any, key: Key, here: Any) -> Any:
    """What the section `here` would have at `key` if nobody wrote it, as far as it was not left to its own defaults."""
    section = chosen(annotation, here)
    field = section.model_fields.get(str(key)) if section else None
    default = field.get_default(call_default_factory=True, validated_data={}) if field else None
    if isinstance(default, Section):
        kind = {"kind": getattr(default, "kind")} if "kind" in type(default).model_fields else {}  # noqa: B009
        return kind | default.model_dump(mode="json", exclude_unset=True)
    if isinstance(default, tuple):
        return [item.model_dump(mode="json") if isinstance(item, Section) else item for item in default]
    return {}


def _drop_keys_of_the_old_kind(
    document: Located, here: dict[str, Any], annotation: Any, kind: Any, path: KeyPath
) -> None:
    old, new = chosen(annotation, here), kinds(annotation).get(kind) if isinstance(kind, str) else None
    if old is None or new is None:
        return
    for key in set(old.model_fields) - set(new.model_fields):
        if not document.places.get((*path, key), "").startswith("override "):  # what was just asked for is not dropped
            here.pop(key, None)
