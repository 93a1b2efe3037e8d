"""Which head aligns best, told without gold: the one with which another model, for the other direction, agrees most.

A word that comes from another is looked at by both models; what only one of them looks at is its own business. So of
all heads of both, those are chosen whose links agree best on some pairs of sentences (as Chen et al. 2020, §3.2, choose
a layer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.inspection.alignment import HeadSelection, Links
from sightline.inspection.attention import attentions


def candidates(model: Any) -> list[HeadSelection]:
    """Every head that looks at the source and the mean of every layer, each where words are written and read."""
    counts = attentions(model)
    names = [
        name
        for path in model.cross_attention_paths
        for name in (path, *(f"{path}.{head}" for head in range(counts[path])))
    ]
    single = {path for path in model.cross_attention_paths if counts[path] == 1}  # whose mean is their only head
    return [HeadSelection((name,), shift) for name in names if name not in single for shift in (False, True)]


def agreement(forward: Sequence[Links], backward: Sequence[Links]) -> float:
    """2 |A ∩ B| / (|A| + |B|) over all pairs of sentences; the links of both are (source word, target word)."""
    both = sum(len(a & b) for a, b in zip(forward, backward, strict=True))
    every = sum(len(a) + len(b) for a, b in zip(forward, backward, strict=True))
    return 2 * both / every if every else 0.0


@dataclass(frozen=True)
class Choice:
    """How each direction is read, and how much both agree so."""

    forward: HeadSelection
    backward: HeadSelection
    agreement: float


def choose_by_agreement(
    forward: Mapping[HeadSelection, Sequence[Links]], backward: Mapping[HeadSelection, Sequence[Links]]
) -> Choice:
    """Of all pairs the one that agrees most; of equal ones the first."""
    pairs = (
        Choice(one, other, agreement(links, turned))
        for one, links in forward.items()
        for other, turned in backward.items()
    )
    return max(pairs, key=lambda choice: choice.agreement)
