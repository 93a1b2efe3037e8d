"""Before a training: how many right outputs its length limits would cut."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sightline.data.preparation import Prepared, store_of_test
from sightline.data.sources import DataError
from sightline.data.store import Store
from sightline.decoding.request import source_limits
from sightline.recipe.bodies import learned_positions
from sightline.terminal import plural


def cut_references(prepared: Prepared, store: Store) -> int:
    """How many targets of a store have more tokens than the recipe allows an output for their source."""
    recipe = prepared.recipe
    limits = np.array(source_limits((store.source_lengths + 1).tolist(), recipe.decoding, prepared.target_lengths))
    longest = learned_positions(recipe.model.decoder) if recipe.model.encoder is not None else None
    limits = limits if longest is None else np.minimum(limits, longest)
    return int((store.target_lengths + 1 > limits).sum())


def cut_reference_notes(prepared: Prepared) -> list[str]:
    """A line on the targets that would be cut; none where all fit, or where outputs have no references."""
    recipe = prepared.recipe
    if not recipe.task_spec.maps_text or recipe.of_text:
        return []
    parts = []
    for name, store in _stores(prepared):
        if cut := cut_references(prepared, store):
            parts.append(f"{cut:,} of {plural(len(store), name)}")
    if not parts:
        return []
    keys = {key: getattr(recipe.decoding, key) for key in ("max_length", "max_ratio")}
    given = [f"decoding.{key} ({value:g})" for key, value in keys.items() if value is not None]
    what = " and ".join(given) or "the limit of outputs, which follows from the training text,"
    remedy = "raise it, or leave decoding.max_length and max_ratio out" if given else "set decoding.max_length"
    return [f"{what} would cut {', '.join(parts)}; {remedy}"]


def _stores(prepared: Prepared) -> Iterator[tuple[str, Store]]:
    """Every text with targets; a test set that cannot be read is reported elsewhere."""
    yield "training target", prepared.train(0)
    yield "validation reference", prepared.validation
    for name in prepared.recipe.data.tests:
        try:
            yield f"{name} reference", store_of_test(prepared, name)
        except DataError:
            continue
