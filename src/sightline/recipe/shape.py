"""What the recipe's classes allow at a given key, asked of their annotations."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from sightline.recipe.annotations import alternatives
from sightline.recipe.sections import Section
from sightline.recipe.yaml import Key


def sections(annotation: Any) -> list[type[Section]]:
    """The recipe sections that may stand here."""
    return [leaf for leaf in alternatives(annotation) if isinstance(leaf, type) and issubclass(leaf, Section)]


def kinds(annotation: Any) -> dict[str, type[Section]]:
    """Each `kind` that may stand here, and the section it chooses."""
    return {
        kind: section
        for section in sections(annotation)
        if "kind" in section.model_fields
        for leaf in alternatives(section.model_fields["kind"].annotation)
        if get_origin(leaf) is Literal
        for kind in get_args(leaf)
    }


def chosen(annotation: Any, value: Any) -> type[Section] | None:
    """The section that `value` says it is, or the only one possible."""
    members = sections(annotation)
    if len(members) > 1:
        kind = value.get("kind") if isinstance(value, dict) else None
        return kinds(annotation).get(kind) if isinstance(kind, str) else None
    return members[0] if members else None


def inner(annotation: Any, key: Key, value: Any) -> Any:
    """What is declared under `key` of `annotation`, where `value` stands now; None where nothing is."""
    section = chosen(annotation, value)
    if section is not None:
        field = section.model_fields.get(str(key))
        return None if field is None else field.annotation
    for leaf in alternatives(annotation):
        origin, arguments = get_origin(leaf), get_args(leaf)
        if origin is dict:
            return arguments[1]
        if origin is tuple and isinstance(key, int):
            if arguments[-1] is Ellipsis:
                return arguments[0]
            return arguments[key] if key < len(arguments) else None
    return None
