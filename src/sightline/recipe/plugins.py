"""Plug-ins that a recipe uses: recorded with a run, and named with what to install when one is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from sightline.files import read_bounded
from sightline.recipe.schema import Choice, Registered, Section, open_union_of
from sightline.registry import Entry, entries

_MOST_BYTES = 10_000_000  # of config.json


def used_plugins(recipe: Section) -> list[dict[str, Any]]:
    """The plug-ins whose parts a recipe names: `[{"package": …, "version": …, "parts": ["score cosine"]}]`."""
    parts: dict[tuple[str, str | None], list[str]] = {}
    for part, name, entry in _named(recipe):
        if entry.plugin is not None:
            parts.setdefault((entry.plugin.package, entry.plugin.version), []).append(f"{part} {name}")
    return [
        {"package": package, "version": version, "parts": sorted(set(names))}
        for (package, version), names in parts.items()
    ]


def with_own_parts(part: str, named: Sequence[Choice]) -> list[Choice]:
    """Sightline's own parts of a kind, without options unless a recipe names them, then those the recipe names."""
    names = {each.kind for each in named}
    own = (name for name, entry in entries(part).items() if entry.plugin is None and name not in names)
    return [*(Choice(kind=name) for name in own), *named]


def missing_plugin(run: Path, name: str) -> str | None:
    """How to install the plug-in that a finished run took a part from; None if the run does not record it."""
    try:
        config = json.loads(read_bounded(run / "config.json", _MOST_BYTES))
        recorded = config.get("plugins", [])
        plugin = next(each for each in recorded if any(part.split(" ", 1)[1] == name for part in each["parts"]))
    except (OSError, ValueError, StopIteration, AttributeError, KeyError, TypeError, IndexError):
        return None
    package, version = plugin["package"], plugin.get("version")
    requirement = f"{package}=={version}" if version else package
    return f"the run was trained with the plug-in {package} {version or ''}".rstrip() + (
        f", which is not installed here; run `pip install {requirement}`"
    )


def _named(section: Section) -> Iterator[tuple[str, str, Entry]]:
    """Each registered part that a section and those inside it name."""
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        for part, item in _items(
            Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation, value
        ):
            kind = getattr(item, "kind", item)
            entry = entries(part).get(kind) if isinstance(kind, str) else None
            if entry is not None:
                yield part, kind, entry
        for item in [value] if isinstance(value, Section) else _values(value):
            if isinstance(item, Section):
                yield from _named(item)


def _items(annotation: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """The sections and names at a key that come from a registry, each with the registry."""
    metadata = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    registered = next((each for each in metadata if isinstance(each, Registered)), None)
    union = open_union_of(annotation)
    part = registered.part if registered else union.part if union else None
    if part is not None:
        yield part, value
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _items(arguments[0], value)
    elif origin in (tuple, dict):
        for item in _values(value):
            yield from _items(arguments[1 if origin is dict else 0], item)


def _values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, tuple | list) else []
