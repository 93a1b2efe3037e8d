"""Heads that see blocks or compressed keys can be looked at like others."""

from __future__ import annotations

import numpy as np

from sightline.inspection.attention import trace_heads
from untrained_runs import untrained


def test_local_heads_show_blocks_and_compressed_ones_are_called_by_the_tokens_they_stand_at() -> None:
    trace = untrained("spans").trace("Ein Hund bellt laut.", "A dog barks.")
    heads = {head.name: head for head in trace_heads(trace)}
    local, compressed = (heads[f"decoder.layers.{number}.attention.0"] for number in range(2))
    count = len(local.queries)
    assert local.weights.shape == (count, count)
    near = np.arange(count) // 3
    seen = (near[:, None] == near[None, :]) & np.tri(count, dtype=bool)
    assert np.array_equal(local.weights > 0, seen)
    assert compressed.keys == compressed.queries[::3]
    assert compressed.weights.shape == (count, len(compressed.keys))
    assert np.array_equal((compressed.weights > 0).sum(1), np.arange(count) // 3 + 1)
    assert 0 < compressed.measures.entropy_share <= 1
