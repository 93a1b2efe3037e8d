"""What the runs of a sweep are called: the values that vary, `attention=dot,seed=1`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from sightline.sweeps.grid import Combination, Override

_LONGEST = 100  # characters of a name; file systems allow 255 bytes, and a log has a suffix
_LONGEST_VALUE = 40


def name_runs(
    new: Sequence[Combination], *, beside: Sequence[Sequence[Override]], taken: Iterable[str], plain: str
) -> list[str]:
    """A name for each new combination, told apart from each other, from the overrides of the runs `beside` them, and
    from the names `taken`. `plain` is the name of what varies in nothing."""
    varying = _varying([*(combination.overrides for combination in new), *beside])
    labels = _labels(varying)
    used = {name.casefold() for name in taken}  # some file systems do not tell upper from lower case
    names = []
    for combination in new:
        variant = combination.variant
        overrides = combination.overrides if variant.name is None else combination.point
        given = variant.name or (Path(variant.recipe).stem if variant.recipe else None)
        parts = [] if given is None else [_safe(given).lstrip(".") or "variant"]
        parts += [f"{labels[o.key]}={_value(o.text)}" for o in overrides if o.key in labels]
        name = ",".join(parts) or _safe(plain).lstrip(".") or "run"
        if len(name) > _LONGEST or name.casefold() in used:
            name = f"{name[: _LONGEST - 7]}-{_digest(str(combination))}"
        used.add(name.casefold())
        names.append(name)
    return names


def key_label(key: str) -> str:
    """How a key is called where no other has the same last part; `attention.kind` is called `attention`."""
    return key.removesuffix(".kind").split(".")[-1]


def _varying(sets: Sequence[Sequence[Override]]) -> list[str]:
    """The keys whose value is not the same everywhere; of a single set, all of them."""
    texts = [{override.key: override.text for override in overrides} for overrides in sets]
    keys = dict.fromkeys(key for each in texts for key in each)
    return [key for key in keys if len(texts) == 1 or len({each.get(key) for each in texts}) > 1]


def _labels(keys: Sequence[str]) -> dict[str, str]:
    """The shortest end of each key that no other key has."""
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
