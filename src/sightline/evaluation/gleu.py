"""GLEU of single sentences, the reward of Google's translation system (Wu et al. 2016, §5).

Unlike BLEU it is meant for one sentence at a time: from 0 to 1, symmetrical, and never 0 just for want of a 4-gram.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

ORDER = 4


def ngrams(tokens: Sequence[Hashable], order: int = ORDER) -> Counter[tuple[Hashable, ...]]:
    """How often each run of 1 to `order` tokens occurs."""
    counts: Counter[tuple[Hashable, ...]] = Counter()
    for length in range(1, order + 1):
        counts.update(zip(*(tokens[start:] for start in range(length)), strict=False))
    return counts


def gleu(output: Sequence[Hashable], reference: Sequence[Hashable], order: int = ORDER) -> float:
    """min(precision, recall) of the n-grams of all orders together; 0 where both are empty."""
    return gleu_of([output], reference, order)[0]


def gleu_of(outputs: Sequence[Sequence[Hashable]], reference: Sequence[Hashable], order: int = ORDER) -> list[float]:
    """The same for several outputs of one reference, whose n-grams are counted once.

    With m n-grams in common, o in the output and r in the reference, min(m/o, m/r) = m / max(o, r).
    """
    wanted = ngrams(reference, order)
    total = wanted.total()
    scores = []
    for output in outputs:
        found = ngrams(output, order)
        matches = sum(min(count, wanted[gram]) for gram, count in found.items() if gram in wanted)
        scores.append(matches / max(found.total(), total, 1))
    return scores
