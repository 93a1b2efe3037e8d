"""Reading, overriding and saving recipes.

An error lists all problems of a recipe at once, each with its place (`dates.yaml:12`, or the override), the key, the
value, what was expected, and the nearest valid key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sightline.files import read_bounded, write_atomically
from sightline.recipe import Recipe
from sightline.recipe.aliases import RECIPES, rename_keys, warn_renamed
from sightline.recipe.overrides import apply_override, inherit_model, key_of
from sightline.recipe.plugins import missing_plugin
from sightline.recipe.reference import nearest_keys
from sightline.recipe.schema import chosen, inner, kinds
from sightline.recipe.yaml import MAX_BYTES, Key, Located, dotted, read_yaml, write_yaml


class RecipeError(ValueError):
    """A recipe that cannot be used; the message lists every reason."""


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe file or a shipped recipe, and apply `section.key=value` overrides in order.

    A shipped name wins over a file of the same name; `./dates` is always the file.
    """
    path = find_recipe(name_or_path)
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise RecipeError(f"{path}:{line}: this is not UTF-8 text; save the recipe as UTF-8") from error
    except ValueError as error:  # too large
        raise RecipeError(str(error)) from None
    document = read_yaml(text, str(path))
    if document.problems and document.value is None:
        raise RecipeError(_listed(document.problems, path))
    if document.value is None:
        raise RecipeError(f"{path}: the recipe is empty; it needs at least the section data")
    if not isinstance(document.value, dict):
        raise RecipeError(f"{document.place(())}: a recipe is a mapping of sections, not {shown(document.value)}")
    of_run = (path.parent / "config.json").is_file()
    old_name = rename_keys(document, of_run=of_run)
    first = [override for override in overrides if _decides_inheritance(key_of(override))]
    for override in first:
        apply_override(document, override)
        if key_of(override)[:2] == ("model", "init_from"):
            old_name = not override.strip().startswith("model.init_from")
    if not of_run:  # the recipe of a run is whole
        inherit_model(document, only_bodiless=old_name)  # under the old name nothing else was taken from the run
    for override in overrides:
        if override not in first:
            apply_override(document, override)
    rename_keys(document)  # in the values of overrides
    return _validated(document, path, run=path.parent if of_run else None)


def change_sections(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe of a run with overrides of `decoding` and `evaluation`, and what follows from them.

    Only these sections are validated: an ensemble may do what the recipe of its first run alone could not.
    """
    document = Located(recipe.model_dump(mode="json"))
    for override in overrides:
        apply_override(document, override)
        document.places.setdefault(key_of(override)[:1], f"override {override!r}")  # of problems between its keys
    decoding = document.value["decoding"]
    if isinstance(decoding, dict):
        keys = {key[1] if len(key) > 1 else None for key in map(key_of, overrides) if key[0] == "decoding"}
        changes = {key: value for key, value in decoding.items() if key in keys or None in keys}
        document.value["decoding"] = recipe.decoding.changed(changes)
    problems = list(document.problems)
    changed: dict[str, Any] = {}
    for key in set(document.value) - set(Recipe.model_fields):
        problems.append(_describe({"type": "extra_forbidden", "loc": (key,), "input": None}, document))
    for name in ("decoding", "evaluation"):
        try:
            changed[name] = type(getattr(recipe, name)).model_validate(document.value[name])
        except ValidationError as error:
            every = [{**details, "loc": (name, *details["loc"])} for details in error.errors(include_url=False)]
            problems += [_describe(details, document) for details in every if not _follows(details)]
    if problems:
        raise RecipeError(_listed(problems, Path("recipe.yaml")))
    return recipe.model_copy(update=changed)


def _decides_inheritance(key: tuple[str, ...]) -> bool:
    """True if an override changes the run a model is initialized from, or what is inherited from it."""
    return key in (("task",), ("model",)) or key[:2] == ("model", "init_from")


def shipped_recipes() -> dict[str, Path]:
    """The recipes inside the package: name (`dates`, `multi30k/transformer`) to file."""
    folder = Path(str(resources.files("sightline") / "recipes"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.yaml"))}


def save_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write the resolved recipe with every default."""
    write_atomically(Path(path), write_yaml(recipe.model_dump(mode="json")))


def recipe_schema() -> dict[str, Any]:
    """JSON Schema of a recipe, for editors: `# yaml-language-server: $schema=recipe.schema.json`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}


def find_recipe(name_or_path: str | Path) -> Path:
    """The file of a recipe, given the name of a shipped one or a path."""
    name, path = str(name_or_path), Path(name_or_path)
    shipped = shipped_recipes()
    if isinstance(name_or_path, str) and name in shipped:
        return shipped[name]
    if path.is_file():
        return path
    if name in RECIPES:
        warn_renamed("recipe", name, RECIPES[name])
        return shipped[RECIPES[name]]
    if path.is_dir():
        raise RecipeError(f"{name}: this is a folder, not a recipe; name the YAML file in it")
    near = difflib.get_close_matches(re.sub(r"\.ya?ml$", "", name), shipped, n=3, cutoff=0.5)
    remedy = f"did you mean {_either(near)}?" if near else "list the names with: sightline recipes list"
    raise RecipeError(f"{name}: there is no such file and no shipped recipe of this name; {remedy}")


def _validated(document: Located, path: Path, run: Path | None = None) -> Recipe:
    problems = list(document.problems)
    try:
        recipe = Recipe.model_validate(document.value)
    except ValidationError as error:
        problems += [
            _describe(details, document, run) for details in error.errors(include_url=False) if not _follows(details)
        ]
        raise RecipeError(_listed(problems, path)) from None
    if problems:
        raise RecipeError(_listed(problems, path))
    return recipe


def _follows(details: Any) -> bool:
    """True if a list is too short only because other errors removed items from it."""
    return bool(details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"])


def _listed(problems: Iterable[str], path: Path) -> str:
    def by_line(problem: str) -> int:
        at = re.match(re.escape(str(path)) + r":(\d+)", problem)
        return int(at[1]) if at else 10**9  # overrides come last

    lines = sorted(dict.fromkeys(problems), key=by_line)
    return lines[0] if len(lines) == 1 else f"{len(lines)} problems:\n" + "\n".join(f"  {line}" for line in lines)


def _describe(details: Any, document: Located, run: Path | None = None) -> str:
    """The message for one of pydantic's errors. For the recipe of a run, it names a missing plug-in."""
    where, annotation, value = _walk(details["loc"], document.value)
    kind, key = details["type"], dotted(where)
    place = document.place(where)
    if kind == "extra_forbidden" and len(where) == 1 and (keys := nearest_keys(key)):
        return f"{place}: unknown key {key}; did you mean {_either(keys)}?"
    if kind == "extra_forbidden":
        return f"{place}: unknown key {key}; {_nearest_key(str(where[-1]), annotation, value)}"
    if kind == "missing":
        named = re.sub(r"\.\d+(?=\.|$)", ".N", key)
        return f"{place}: {key} is missing; add it (see `sightline recipes keys {named}`)"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        known = sorted(kinds(annotation))
        if kind == "union_tag_not_found":
            return f"{place}: {key} has no kind; add kind: with one of {', '.join(known)}"
        written = details["input"]
        given = written["kind"] if isinstance(written, dict) else written
        place = document.place((*where, "kind"))
        if run is not None and (missing := missing_plugin(run, str(given))) is not None:
            return f"{place}: {key}.kind: there is no {shown(given)}: {missing}"
        near = _guess(str(given), known)
        return f"{place}: {key}.kind: there is no {shown(given)}; {near}the kinds are {', '.join(known)}"
    if kind == "value_error":
        return f"{place}: {key}: {details['ctx']['error']}{_with_overrides(document, where)}"
    given = details["input"]
    near = ""
    if kind == "literal_error":
        if run is not None and (missing := missing_plugin(run, str(given))) is not None:
            return f"{place}: {key}: there is no {shown(given)}: {missing}"
        near = _guess(str(given), re.findall(r"'([^']*)'", details["ctx"]["expected"])).removesuffix("; ")
    return f"{place}: {key}: {_expected(details['msg'])}, got {shown(given)}" + (f"; {near}" if near else "")


def _with_overrides(document: Located, where: tuple[Key, ...]) -> str:
    """The overrides inside the section that an error is about; they are the first thing to look at."""
    places = {place: None for path, place in document.places.items() if path[: len(where)] == where}
    overrides = [place for place in places if place.startswith("override ")]
    if not overrides or document.place(where) in overrides:
        return ""
    return f" ({', '.join(overrides)})"


def _walk(location: tuple[Key, ...], value: Any) -> tuple[tuple[Key, ...], Any, Any]:
    """The path of pydantic's location in the YAML, its annotation and the value that contains it. For an unknown key,
    the annotation is that of the section."""
    path: tuple[Key, ...] = ()
    annotation: Any = Recipe
    around = value
    rest = list(location)
    while rest:
        key = rest.pop(0)
        path = (*path, key)
        around = value
        declared = inner(annotation, key, value)
        if declared is None:
            break
        annotation = declared
        if isinstance(value, dict):
            value = value.get(str(key))
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
    return path, annotation, around


def _nearest_key(key: str, annotation: Any, around: Any) -> str:
    section = chosen(annotation, around)
    others = sorted(kind for kind, member in kinds(annotation).items() if key in member.model_fields)
    if others and isinstance(around, dict):
        return f"it belongs to kind {_either(others)}, and this one is {around.get('kind')}"
    known = [] if section is None else list(section.model_fields)
    near = _guess(key, known).removesuffix("; ")
    return near or f"the keys here are {', '.join(known)}"


def _guess(wrong: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(wrong, known, n=1)
    near = near or [key for key in known if key == "".join(part[:1] for part in wrong.split("_"))]  # learning_rate: lr
    return f"did you mean {near[0]}?; " if near else ""


def _expected(message: str) -> str:
    message = re.sub(r"^Input should be ", "expected ", message)
    message = re.sub(r"a valid dictionary or (instance of|object to extract fields from) ?\w*", "a mapping", message)
    message = re.sub(r", unable to .*$", "", message).replace("a valid tuple", "a list").replace("a valid ", "a ")
    message = re.sub(r"^(Tuple|List) should have", "expected a list with", message)
    return message.replace("a dictionary", "a mapping").replace("a integer", "an integer")


def shown(value: Any) -> str:
    """A value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1]
