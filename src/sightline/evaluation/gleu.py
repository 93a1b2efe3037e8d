"""GLEU of single sentences, the reward of Google's translation system (Wu et al. 2016, §5).

Unlike BLEU it is meant for one sentence at a time: from 0 to 1, symmetrical, and never 0 just for want of a 4-gram.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

Token = TypeVar("Token", bound=Hashable)

_ORDER = 4


def ngrams(tokens: Sequence[Token], order: int) -> Counter[tuple[Token, ...]]:
    """How often each run of 1 to `order` tokens occurs."""
    counts: Counter[tuple[Token, ...]] = Counter()
    for length in range(1, order + 1):
        counts.update(zip(*(tokens[start:] for start in range(length)), strict=False))
    return counts


def gleu_of(outputs: Sequence[Sequence[Hashable]], reference: Sequence[Hashable]) -> list[float]:
    """min(precision, recall) of the 1- to 4-grams together, for each output of one reference; 0 where both are empty.

    With m n-grams in common, o in the output and r in the reference, min(m/o, m/r) = m / max(o, r).
    """
    wanted = ngrams(reference, _ORDER)
    total = wanted.total()
    scores = []
    for output in outputs:
        found = ngrams(output, _ORDER)
        matches = sum(min(count, wanted[gram]) for gram, count in found.items() if gram in wanted)
        scores.append(matches / max(found.total(), total, 1))
    return scores
