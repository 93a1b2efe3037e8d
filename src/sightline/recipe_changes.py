"""Whether a training may go on under a recipe that is not word for word the one it was begun with."""

from __future__ import annotations

from typing import Any

from sightline.recipe import Recipe

# What may change between the sittings of one training. Only the limits change what is learned: training longer than
# planned moves the end of a cosine or warmup-stable-decay schedule, which is what whoever raises them wants.
FREE: frozenset[tuple[str, ...]] = frozenset(
    {
        *(("training", key) for key in ("limits", "device", "threads", "tensorboard", "keep", "log_every")),
        ("training", "stopping", "patience"),
        ("data", "tests"),
        ("decoding",),
        ("evaluation", "bootstrap"),
    }
)


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The keys that may not change and do: `training.lr: 0.1 then, 0.2 now`."""
    return _differences(old.model_dump(mode="json"), new.model_dump(mode="json"), ())


def _differences(old: Any, new: Any, path: tuple[str, ...]) -> list[str]:
    if path in FREE or old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [line for key in keys for line in _differences(old.get(key), new.get(key), (*path, key))]
    return [f"{'.'.join(path)}: {old!r} then, {new!r} now"]
