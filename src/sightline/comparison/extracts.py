"""Sentences of a text as its summary: the first ones (lead), or those a reference would choose (oracle)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sightline.evaluation.rouge import words
from sightline.text.sentences import sentences

Counts = Counter[tuple[str, ...]]


def lead(text: str, count: int) -> str:
    """The first `count` sentences."""
    return " ".join(sentences(text)[:count])


def oracle(text: str, references: Sequence[str], most: int | None = None) -> str:
    """The sentences that say most of a reference, in the order of the text: what no extract is likely to beat by much.

    One after the other, the sentence that raises ROUGE-1 + ROUGE-2 (F) most is taken, until none does or there are
    `most` (Nallapati et al. 2017, §2.2: greedy, so not always the very best). It is an oracle: it sees the reference.
    Of several references the one that can be said best.
    """
    parts = sentences(text)
    counted = [ngrams(part) for part in parts]
    found = [_greedy(counted, ngrams(reference), most) for reference in references]
    chosen, _ = max(found, key=lambda pair: pair[1])
    return " ".join(parts[place] for place in sorted(chosen))


def ngrams(text: str) -> tuple[Counts, Counts]:
    """The words of a text and its pairs of words, counted."""
    own = words(text)
    return Counter((word,) for word in own), Counter(pairwise(own))


@dataclass
class _Said:
    """How much of the n-grams of a reference has been said, and in how many words."""

    wanted: Counts
    counts: Counts = field(default_factory=Counter)  # of those that are wanted
    matched: int = 0
    total: int = 0

    def f(self, part: Counts) -> float:
        """2m / (o + r), the F of precision and recall, after this part too: m in common, o said, r wanted."""
        total = self.total + part.total() + self.wanted.total()
        return 2 * (self.matched + self._gain(part)) / total if total else 0.0

    def add(self, part: Counts) -> None:
        self.matched += self._gain(part)
        self.total += part.total()
        self.counts.update({gram: count for gram, count in part.items() if gram in self.wanted})

    def _gain(self, part: Counts) -> int:
        said, wanted = self.counts, self.wanted
        return sum(
            min(said[gram] + count, wanted[gram]) - min(said[gram], wanted[gram])
            for gram, count in part.items()
            if gram in wanted
        )


def _greedy(
    parts: Sequence[tuple[Counts, Counts]], reference: tuple[Counts, Counts], most: int | None
) -> tuple[list[int], float]:
    """Which parts are taken, and their ROUGE-1 + ROUGE-2 together."""
    said, best, chosen = tuple(_Said(wanted) for wanted in reference), 0.0, list[int]()
    for _ in range(len(parts) if most is None else min(most, len(parts))):
        left = [place for place in range(len(parts)) if place not in chosen]
        values = [sum(each.f(part) for each, part in zip(said, parts[place], strict=True)) for place in left]
        value = max(values)
        if value <= best:
            break
        best = value
        chosen.append(left[values.index(value)])  # of equals the first
        for each, part in zip(said, parts[chosen[-1]], strict=True):
            each.add(part)
    return chosen, best
