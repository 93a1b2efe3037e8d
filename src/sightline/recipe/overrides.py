"""Overrides (`section.key=value`) and the model section that a recipe inherits from another run.

An override changes the resolved recipe: a section that the file leaves out starts from its default, and a new `kind`
drops the keys that only the old one had.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from sightline.files import read_bounded
from sightline.recipe import Recipe
from sightline.recipe.aliases import current_name, rename_keys, warn_renamed
from sightline.recipe.defaults import with_model
from sightline.recipe.model import ModelConfig
from sightline.recipe.schema import Section, chosen, inner, kinds, open_union_of
from sightline.recipe.tasks import task_spec
from sightline.recipe.yaml import MAX_BYTES, Key, KeyPath, Located, dotted, read_yaml


def key_of(override: str) -> tuple[str, ...]:
    """The key that an override sets, under its present name."""
    return tuple(map(str, current_name(tuple(override.partition("=")[0].strip().split(".")))))


def apply_override(document: Located, override: str) -> None:
    """Apply an override to a document in place; add its problems to those of the document."""
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
        keys = current_name(tuple(name.split(".")))
        if dotted(keys) != name:
            warn_renamed(at, name, dotted(keys))
        _put(document, [str(key) for key in keys], new, at)
    except LookupError as error:
        document.problems.append(f"{at}: {error.args[0]}")


def _put(document: Located, keys: list[str], new: Located, at: str) -> None:
    here: Any = document.value
    annotation: Any = Recipe
    walked: KeyPath = ()
    for name in keys[:-1]:
        key = _key_in(here, name, walked)
        below = inner(annotation, key, here)
        if isinstance(here, dict) and here.get(str(key)) is None:
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


def _write_out(document: Located, here: Any, key: Key, annotation: Any, path: KeyPath) -> None:
    """Expand `init_from: RUN` to `{run: RUN}`, `optimizer: NAME` to `{kind: NAME}`, so that other keys can be set."""
    section, union = chosen(annotation, here[key]), open_union_of(annotation)
    short = "kind" if union is not None and union.short else None if section is None else section.short_for
    if isinstance(here[key], str) and short is not None:
        here[key] = {short: here[key]}
        document.places[(*path, short)] = document.places[path]


def _default(annotation: Any, key: Key, here: Any) -> Any:
    """The default of a key in the section `here`, with the values that differ from the defaults of its own keys."""
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
        if not document.places.get((*path, key), "").startswith("override "):  # set by another override
            here.pop(key, None)


_NOT_INHERITED = {"init_from", "adapters", "word_vectors"}
_OF_EVERY_TASK = ("width", "encoder", "decoder")


def inherit_model(document: Located, *, only_bodiless: bool = False) -> None:
    """Complete `model` of a recipe with `model.init_from`, key by key, from the recipe of that run.

    A section with another `kind` than in the run is not completed. From a run of another task, the width is inherited,
    and the encoder or decoder that this task has. With `only_bodiless`, a model section with an encoder or a decoder
    is left unchanged. Inherited keys keep their place in the recipe of the run.
    """
    model = document.value.get("model") if isinstance(document.value, dict) else None
    start = model.get("init_from") if isinstance(model, dict) else None
    run = start.get("run") if isinstance(start, dict) else start
    if not isinstance(model, dict) or not isinstance(run, str) or set(ModelConfig.model_fields) <= set(model):
        return
    bodies = {"encoder", "decoder"} & set(model)
    if only_bodiless and bodies:
        return
    path = Path(run).expanduser() / "recipe.yaml"
    if not path.is_file():
        if not bodies:  # else the recipe is whole, and only a training needs the run
            at = document.place(("model", "init_from"))
            document.problems.append(
                f"{at}: model.init_from: {run} has no recipe.yaml to take the model section from; name a run folder, "
                f"or write the model section out"
            )
        return
    try:
        theirs = read_yaml(read_bounded(path, MAX_BYTES).decode("utf-8-sig"), str(path))
    except (OSError, ValueError) as error:
        theirs = Located(problems=[f"{path}: cannot be read: {error}"])
    if theirs.problems or not isinstance(theirs.value, dict):
        document.problems.extend(theirs.problems or [f"{path}: this is not a recipe"])
        return
    rename_keys(theirs, of_run=True)
    held = theirs.value.get("model")
    if isinstance(held, dict):
        inherited = _inherited(held, theirs.value.get("task", "seq2seq"), document.value.get("task", "seq2seq"))
        _complete(document, model, inherited, theirs, ("model",))


def _inherited(model: dict[str, Any], their_task: str, task: str) -> dict[str, Any]:
    """The keys of the model section of a run that a recipe for a task inherits."""
    if task == their_task:
        return {key: value for key, value in model.items() if key not in _NOT_INHERITED}
    spec = task_spec(task)
    allowed = {"width", *(() if spec is None else spec.allows)}
    return {key: model[key] for key in _OF_EVERY_TASK if key in allowed and key in model}


def _complete(document: Located, own: dict[str, Any], theirs: dict[str, Any], origin: Located, path: KeyPath) -> None:
    """Add missing keys to a section, with their places."""
    for key, value in theirs.items():
        below = (*path, key)
        if key not in own:
            own[key] = copy.deepcopy(value)
            document.places.update({place: at for place, at in origin.places.items() if place[: len(below)] == below})
        elif isinstance(own[key], dict) and isinstance(value, dict):
            if own[key].get("kind", value.get("kind")) == value.get("kind"):
                _complete(document, own[key], value, origin, below)
