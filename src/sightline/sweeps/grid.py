"""The combinations of overrides of a sweep, and the names of its runs.

`seed=1,2 model.width=128,256` is a grid: every value of each key with every value of the others. A list of variants
(sets of overrides that belong together, or other recipes) is multiplied by it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from sightline.files import read_bounded
from sightline.recipe.loading import shown
from sightline.recipe.yaml import MAX_BYTES, dotted, read_yaml


class SweepError(ValueError):
    """A sweep that is refused; the message says what to change."""


@dataclass(frozen=True)
class Override:
    """`key=text`, where the text is YAML, as `sightline train` takes it."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}={self.text}"


@dataclass(frozen=True)
class Variant:
    """Overrides that belong together, with an optional name and recipe."""

    overrides: tuple[Override, ...] = ()
    name: str | None = None
    recipe: str | None = None  # None: that of the sweep


@dataclass(frozen=True)
class Combination:
    """A variant and one point of the grid: the overrides of one run."""

    variant: Variant
    point: tuple[Override, ...]

    @property
    def overrides(self) -> tuple[Override, ...]:
        return (*self.variant.overrides, *self.point)

    def __str__(self) -> str:
        own = [] if self.variant.recipe is None else [self.variant.recipe]
        return " ".join([*own, *map(str, self.overrides)]) or "no overrides"


Axes = Sequence[str] | Mapping[str, Any]
# A quoted string, which begins after one of ,[{: and in which YAML writes ' as '' and " as \", or a character.
_PIECES = re.compile(r"""(?<=[,\[{:])\s*(?:'(?:[^']|'')*(?:'|$)|"(?:\\.|[^"\\])*(?:"|\\?$))|.""", re.DOTALL)


def as_given(recipe: str | Path) -> str:
    """A recipe argument of `sightline train`; a path is never read as the name of a shipped recipe."""
    return recipe if isinstance(recipe, str) else os.path.join(".", recipe)


def combinations(axes: Axes, variants: Sequence[Variant] = ()) -> list[Combination]:
    """Every variant at every point of the grid; the last key varies fastest."""
    grid = _from_mapping(axes) if isinstance(axes, Mapping) else _from_arguments(axes)
    if not grid and not variants:
        raise SweepError("there is nothing to sweep over; give keys with their values (seed=1,2,3) or a list (--list)")
    for variant in variants:
        both = sorted({override.key for override in variant.overrides} & set(grid))
        if both:
            raise SweepError(f"{both[0]} is in the list and on the command line; remove one of them")
    points = list(product(*([Override(key, text) for text in texts] for key, texts in grid.items())))
    return [Combination(variant, point) for variant in variants or [Variant()] for point in points]


# --- from the command line -----------------------------------------------------------------------------------------


def _from_arguments(arguments: Sequence[str]) -> dict[str, list[str]]:
    grid: dict[str, list[str]] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            raise SweepError(f"{argument!r} is not section.key=value,value,...")
        if key in grid:
            raise SweepError(f"{key} is given twice; write all its values together: {key}=a,b,c")
        grid[key] = split_values(text)
        if len(grid[key]) > 1 and "" in grid[key]:
            raise SweepError(f"{argument!r} has an empty value between its commas; remove it, or write null for none")
    return grid


def split_values(text: str) -> list[str]:
    """Split at commas outside brackets and quotes: `{kind: cosine, warmup: 10},constant` is two values."""
    values, depth = [""], 0
    for piece in _PIECES.findall(f",{text}")[1:]:
        depth = max(0, depth + {"[": 1, "{": 1, "]": -1, "}": -1}.get(piece, 0))
        if piece == "," and depth == 0:
            values.append("")
        else:
            values[-1] += piece
    return [value.strip() for value in values]


# --- from Python ---------------------------------------------------------------------------------------------------


def _from_mapping(axes: Mapping[str, Any]) -> dict[str, list[str]]:
    """The values of each key as YAML; a value that is no list or tuple is the only one."""
    grid = {}
    for key, values in axes.items():
        grid[key] = [as_text(value) for value in (values if isinstance(values, list | tuple) else [values])]
        if not grid[key]:
            raise SweepError(f"{key} has no values; give at least one")
    return grid


def as_text(value: Any) -> str:
    """A value as YAML on one line, quoted only if necessary."""
    if isinstance(value, str):
        read = read_yaml(value, "value")
        return value if read.value == value and not read.problems and "\n" not in value else _quoted(value)
    if isinstance(value, float):
        return repr(value).replace("inf", ".inf").replace("nan", ".nan")
    return _quoted(value)


def _quoted(value: Any) -> str:
    """JSON, with characters escaped that YAML refuses."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(character if character.isprintable() else f"\\U{ord(character):08x}" for character in text)


# --- lists of variants ---------------------------------------------------------------------------------------------


def read_variants(source: str | Path | Sequence[Mapping[str, Any]]) -> list[Variant]:
    """Read variants from a YAML file or Python mappings: dotted or nested keys, optionally `name` and `recipe`.

    Nested keys override single values of a section, not the whole section.
    """
    if isinstance(source, str | Path):
        variants = _read_file(Path(source))
    else:
        variants = [_variant(entry, f"variant {number}") for number, entry in enumerate(source, 1)]
    if not variants:
        raise SweepError("the list of variants is empty; give at least one, such as - seed: 1")
    names = [variant.name for variant in variants if variant.name is not None]
    for name in names:
        if names.count(name) > 1:
            raise SweepError(f"two variants of the list are named {name!r}; give each its own name")
    return variants


def _read_file(path: Path) -> list[Variant]:
    document = read_yaml(read_bounded(path, MAX_BYTES).decode("utf-8-sig"), str(path))
    if document.problems:
        raise SweepError("\n".join(document.problems))
    if not isinstance(document.value, list):
        raise SweepError(
            f"{path}: this is not a list of variants, each beginning with '- ', but {shown(document.value)}"
        )
    return [_variant(entry, document.place((number,))) for number, entry in enumerate(document.value)]


def _variant(entry: Any, place: str) -> Variant:
    if not isinstance(entry, Mapping):
        raise SweepError(f"{place}: a variant is a mapping such as training.lr: 1e-3, not {shown(entry)}")
    name = entry.get("name")
    if name is not None and not isinstance(name, str | int | float):
        raise SweepError(f"{place}: the name of a variant is a word, not {shown(name)}")
    recipe = entry.get("recipe")
    if recipe is not None and not isinstance(recipe, str | Path):
        raise SweepError(
            f"{place}: the recipe of a variant is a file or the name of a shipped one, not {shown(recipe)}"
        )
    overrides = list(_walk({key: value for key, value in entry.items() if key not in ("name", "recipe")}, ()))
    keys = [override.key for override in overrides]
    for key in keys:
        if keys.count(key) > 1:
            raise SweepError(f"{place}: {key} is given twice; keep one")
    own = None if recipe is None else as_given(recipe)
    return Variant(tuple(overrides), None if name is None else str(name), own)


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[Override]:
    if isinstance(value, Mapping) and (value or not path):
        for key in sorted(value, key=lambda key: key != "kind"):  # a kind decides the other keys
            yield from _walk(value[key], (*path, str(key)))
    else:
        yield Override(dotted(path), as_text(value))


_LONGEST = 100  # characters of a name; file systems allow 255 bytes, and a log has a suffix
_LONGEST_VALUE = 40


def name_runs(
    new: Sequence[Combination], *, beside: Sequence[Sequence[Override]], taken: Iterable[str], plain: str
) -> list[str]:
    """A distinct name for each new combination, made of the keys that vary among them and the runs `beside` them.

    `taken` names are not used; `plain` is the name if nothing varies.
    """
    varying = _varying([*(combination.overrides for combination in new), *beside])
    labels = _labels(varying)
    used = {name.casefold() for name in taken}  # some file systems ignore case
    names = []
    for combination in new:
        variant = combination.variant
        overrides = combination.overrides if variant.name is None else combination.point
        base = variant.name or (Path(variant.recipe).stem if variant.recipe else None)
        parts = [] if base is None else [_safe(base).lstrip(".") or "variant"]
        parts += [f"{labels[o.key]}={_value(o.text)}" for o in overrides if o.key in labels]
        name = ",".join(parts) or _safe(plain).lstrip(".") or "run"
        if len(name) > _LONGEST or name.casefold() in used:
            name = f"{name[: _LONGEST - 7]}-{_digest(str(combination))}"
        used.add(name.casefold())
        names.append(name)
    return names


def key_label(key: str) -> str:
    """The last part of a key; `attention` for `attention.kind`."""
    return key.removesuffix(".kind").split(".")[-1]


def _varying(sets: Sequence[Sequence[Override]]) -> list[str]:
    """The keys whose values differ between sets; all keys of a single set."""
    texts = [{override.key: override.text for override in overrides} for overrides in sets]
    keys = dict.fromkeys(key for each in texts for key in each)
    return [key for key in keys if len(texts) == 1 or len({each.get(key) for each in texts}) > 1]


def _labels(keys: Sequence[str]) -> dict[str, str]:
    """The shortest unique end of each key."""
    paths = {key: key.removesuffix(".kind").split(".") for key in keys}
    labels = {}
    for key, path in paths.items():
        others = [other for name, other in paths.items() if name != key]
        length = next((n for n in range(1, len(path)) if all(other[-n:] != path[-n:] for other in others)), len(path))
        labels[key] = _safe(".".join(path[-length:]))
    return labels


def _value(text: str) -> str:
    short = _safe(re.sub(r"\bkind:", "", text)) or "null"
    if text[:1] == "-":
        short = "-" + short.lstrip("-")  # a sign
    return short if len(short) <= _LONGEST_VALUE else f"{short[: _LONGEST_VALUE - 7]}-{_digest(text)}"


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:6]
