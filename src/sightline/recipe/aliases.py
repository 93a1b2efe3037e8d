"""Old names of recipe keys and values. Recipes and runs that use them keep loading.

A recipe that a user wrote triggers a `RenamedKey` warning for every old name; the recipe of a finished run does not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from sightline.recipe.tasks import task_aliases
from sightline.recipe.yaml import Key, KeyPath, Located, dotted

# old → new, oldest first; `*` is any one key. An old key whose value is null is dropped.
KEYS: dict[str, str] = {
    "training.start_from": "model.init_from",
    "model.start_from": "model.init_from",
    "training.recompute_layers": "training.gradient_checkpointing",
    "training.stopping.on": "training.stopping.monitor",
    "training.reward.mix": "training.reward.nll_weight",
    "data.clean.cut_source": "data.clean.truncate_source",
    "data.noise.short": "data.noise.short_ratio",
    "data.noise.mean": "data.noise.mean_span_length",
    "data.noise.permute": "data.noise.permute_sentences",
    "data.noise.delete": "data.noise.deletion_ratio",
    "model.spelling": "model.character_cnn",
    "model.adapters.on": "model.adapters.target_modules",
    "model.adapters.also": "model.adapters.modules_to_save",
    "model.*.links": "model.*.skip_connections",
    "model.*.experts.top": "model.*.experts.top_k",
    "model.*.experts.capacity": "model.*.experts.capacity_factor",
    "model.*.feedforward.experts.top": "model.*.feedforward.experts.top_k",
    "model.*.feedforward.experts.capacity": "model.*.feedforward.experts.capacity_factor",
    "model.*.attention.groups": "model.*.attention.kv_heads",
    "model.*.attention.span": "model.*.attention.pattern",
    "model.*.positions.longest": "model.*.positions.max_positions",
    "model.*.positions.farthest": "model.*.positions.max_distance",
}
# the same of sources, by their kind
SOURCE_KEYS: dict[str, dict[str, str]] = {
    "chorales": {"part": "split"},
    "dates": {"part": "split"},
    "sequences": {"part": "split", "change": "operation"},
    "phrases": {"part": "split", "give": "target"},
}
VALUES: dict[str, dict[Any, Any]] = {
    "data.noise.kind": {"denoise": "text-infilling"},
}
# shipped recipes that were renamed
RECIPES: dict[str, str] = {
    "multi30k/lstm-linear": "multi30k/lstm-unnormalized",
    "pretraining/masked-words": "pretraining/bert",
    "pretraining/next-word": "pretraining/gpt",
    "pretraining/denoising": "pretraining/bart",
    "pretraining/span-corruption": "pretraining/t5",
    "multi30k/experts-transformer": "multi30k/moe-transformer",
    "multi30k/experts-lstm": "multi30k/moe-lstm",
    "multi30k/from-denoising": "multi30k/from-bart",
    "chorales/relative": "chorales/music-transformer",
    "sumpubmed/transformer-dmca-experts": "sumpubmed/transformer-dmca-moe",
    "debian-synopsis/from-denoising": "debian-synopsis/from-bart",
    "debian-synopsis/from-span-corruption": "debian-synopsis/from-t5",
    "sst2/from-masked-words": "sst2/from-bert",
    "ewt/from-masked-words": "ewt/from-bert",
    "phrases/masked-words": "phrases/masked-lm",
    "phrases/from-masked-words": "phrases/from-masked-lm",
}
_HEAD_SCORES = {  # scaled or not
    **dict.fromkeys(("softmax", "dot", "scaled-dot"), ("scaled-dot", "dot")),
    **dict.fromkeys(("linear", "unscaled-linear"), ("unnormalized", "unnormalized-dot")),
}
_SOURCES = ("data.train.*", "data.validation", "data.tests.*")


class RenamedKey(FutureWarning):
    """The old name of a recipe, a key or a value is used."""


def current_name(path: KeyPath) -> KeyPath:
    """The path of a key under its present name."""
    for old, new in KEYS.items():
        parts = tuple(old.split("."))
        if len(path) >= len(parts) and all(part in ("*", key) for part, key in zip(parts, path, strict=False)):
            stars = iter([key for part, key in zip(parts, path, strict=False) if part == "*"])
            path = (*(next(stars) if part == "*" else part for part in new.split(".")), *path[len(parts) :])
    return path


def with_current_names(values: Any) -> Any:
    """The content of a recipe with old names replaced by present ones; the argument is unchanged."""
    document = Located(_copy(values))
    rename_keys(document, silent=True)
    return document.value


def warn_renamed(place: str, old: str, new: str) -> None:
    """Warn that a recipe uses an old name."""
    warnings.warn(RenamedKey(f"{place}: {old} is now called {new}; the old name will be removed"), stacklevel=3)


def rename_keys(document: Located, *, silent: bool = False, of_run: bool = False) -> bool:
    """Replace old names in a document, with their places, and warn of each; True if `start_from` was one of them.

    `of_run`: the document is the whole recipe of a finished run, for which there are no warnings.
    """
    warn = (lambda place, old, new: None) if silent or of_run else warn_renamed
    model = document.value.get("model") if isinstance(document.value, dict) else None
    before_linear = of_run and isinstance(model, dict) and "output_bias" not in model
    keys = list(_old_keys(document.value))
    for old, new in keys:
        _move(document, old, new)
        warn(document.place(new), dotted(old), dotted(new))
    for path in _matches(document.value, ("model", "*", "attention")):
        _rename_score(document, path, warn)
        kind = _get(document.value, (*path, "kind"))
        if kind == "unscaled-linear" or (kind == "linear" and before_linear):
            new_kind = "unnormalized" if kind == "linear" else "unnormalized-dot"
            _get(document.value, path)["kind"] = new_kind
            warn(document.place((*path, "kind")), f"{dotted(path)}.kind: {kind}", f"kind: {new_kind}")
    for path, value in list(_old_values(document.value)):
        section, key = _get(document.value, path[:-1]), path[-1]
        warn(document.place(path), f"{dotted(path)}: {section[key]}", value)
        section[key] = value
    return any(old[-1] == "start_from" for old, _ in keys)


def _old_keys(values: Any) -> Iterator[tuple[KeyPath, KeyPath]]:
    """The paths of old keys, each with its present path; a rename may depend on the one before it."""
    for old, new in KEYS.items():
        for path in _matches(values, tuple(old.split("."))):
            stars = iter([key for part, key in zip(old.split("."), path, strict=True) if part == "*"])
            yield path, tuple(next(stars) if part == "*" else part for part in new.split("."))
    for pattern in _SOURCES:
        for path in _matches(values, tuple(pattern.split("."))):
            source = _get(values, path)
            kind = source.get("kind") if isinstance(source, dict) else None
            for old, new in (SOURCE_KEYS.get(kind, {}) if isinstance(kind, str) else {}).items():
                if old in source:
                    yield (*path, old), (*path, new)


def _old_values(values: Any) -> Iterator[tuple[KeyPath, Any]]:
    for pattern, names in {"task": task_aliases(), **VALUES}.items():
        for path in _matches(values, tuple(pattern.split("."))):
            value = _get(values, path)
            if isinstance(value, str) and value in names:
                yield path, names[value]


def _rename_score(document: Located, path: KeyPath, warn: Callable[[str, str, str], None]) -> None:
    """Heads once had `kind: softmax | linear` and `scaled`; now they take the scores of recurrent decoders."""
    section = _get(document.value, path)
    kind, scaled = section.get("kind", "softmax"), section.get("scaled", True)
    if ("scaled" not in section and kind != "softmax") or not isinstance(scaled, bool) or kind not in _HEAD_SCORES:
        return
    name = _HEAD_SCORES[kind][0 if scaled else 1]
    if section.keys() & {"kind", "scaled"}:
        old = f"{dotted(path)}: kind: {kind}, scaled: {str(scaled).lower()}"
        place = document.place((*path, "scaled" if "scaled" in section else "kind"))
        warn(place, old, f"kind: {name}")
        document.places.setdefault((*path, "kind"), place)
        section.pop("scaled", None)
        section["kind"] = name


def _move(document: Located, old: KeyPath, new: KeyPath) -> None:
    place, value = document.place(old), _get(document.value, old[:-1]).pop(old[-1])
    if value is not None and new in document.places:
        document.problems.append(
            f"{place}: {dotted(old)} is the old name of {dotted(new)}, which is given too; keep one"
        )
    # null has no meaning where another section took the key over; within its section it is a value like others
    kept, section = value is not None or old[:-1] == new[:-1], _get(document.value, new[:-1])
    if kept and isinstance(section, dict):
        section.setdefault(new[-1], value)
    for path in [path for path in document.places if path[: len(old)] == old]:
        place = document.places.pop(path)
        if kept:
            document.places.setdefault((*new, *path[len(old) :]), place)


def _matches(values: Any, pattern: tuple[str, ...], path: KeyPath = ()) -> Iterator[KeyPath]:
    """Paths in nested mappings and lists that match a pattern."""
    if not pattern:
        yield path
        return
    first, *rest = pattern
    if isinstance(values, dict):
        keys: list[Key] = list(values) if first == "*" else [first] if first in values else []
        for key in keys:
            yield from _matches(values[key], tuple(rest), (*path, key))
    elif isinstance(values, list | tuple) and first == "*":
        for number, item in enumerate(values):
            yield from _matches(item, tuple(rest), (*path, number))


def _get(values: Any, path: KeyPath) -> Any:
    for key in path:
        if isinstance(values, list | tuple):
            values = values[int(key)]
        else:
            values = values.get(key) if isinstance(values, dict) else None
    return values


def _copy(values: Any) -> Any:
    """A copy of nested mappings and lists."""
    if isinstance(values, dict):
        return {key: _copy(value) for key, value in values.items()}
    return [_copy(item) for item in values] if isinstance(values, list | tuple) else values
