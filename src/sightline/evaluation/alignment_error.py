"""Alignment error rate (AER), precision and recall of word alignments (Och & Ney 2003, §4.1).

Annotators mark links as sure (S) or possible (P ⊇ S). For a system's links A:

    precision = |A ∩ P| / |A|,  recall = |A ∩ S| / |S|,  AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

If all links are sure, 1 − AER is the F-score. Files have a line for each sentence pair, `0-0 1-2 3?4`: source word, `-`
for a sure link or `?` for a possible one, target word, counted from 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sightline.evaluation.measurement import Measurement, Numbers, fingerprint
from sightline.terminal import plural

Links = frozenset[tuple[int, int]]  # (source word, target word)
_LINK = re.compile(r"(\d+)([-?])(\d+)")


@dataclass(frozen=True)
class Gold:
    """The annotated links of one sentence pair."""

    sure: Links
    possible: Links  # the sure ones among them

    def swapped(self) -> Gold:
        """The same with source and target exchanged."""
        return Gold(*(frozenset((j, i) for i, j in links) for links in (self.sure, self.possible)))


def parse_gold(line: str, place: str = "alignment") -> Gold:
    """Parse one line of a gold file; `place` names it in errors."""
    sure, possible = set(), set()
    for word in line.split():
        match = _LINK.fullmatch(word)
        if match is None:
            raise ValueError(
                f"{place}: {word!r} is no link; write source-target from 0, as in 0-0 1-2 (or 3?4, possible)"
            )
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


def read_gold(lines: Iterable[str], name: str) -> list[Gold]:
    """Parse the lines of a gold file."""
    return [parse_gold(line, f"{name}, line {number}") for number, line in enumerate(lines, 1)]


def within(
    gold: Sequence[Gold], sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]
) -> tuple[list[Gold], list[str]]:
    """Drop links that point past the end of a sentence, with a note about each.

    One link in a hundred may be mistyped. If there are more, the files do not belong together, or their links are
    target-source: an error.
    """
    if not len(gold) == len(sources) == len(targets):
        raise ValueError(
            f"{plural(len(gold), 'alignment')} for {plural(len(sources), 'source')} and "
            f"{plural(len(targets), 'target')}; give each pair one"
        )
    kept, notes = [], []
    for number, (links, source, target) in enumerate(zip(gold, sources, targets, strict=True), 1):
        wrong = {(i, j) for i, j in links.possible if i >= len(source) or j >= len(target)}
        kept.append(Gold(links.sure - wrong, links.possible - wrong))
        size = f"sentences of {len(source)} and {len(target)} words"
        notes += [f"alignment {number}: {i}-{j} points past the end of {size}, left out" for i, j in sorted(wrong)]
    if 100 * len(notes) > sum(len(each.possible) for each in gold):
        raise ValueError(
            f"too many links ({len(notes)}) point past the end of their sentences (as {notes[0].split(', left')[0]}); "
            f"links are source-target from 0: if the file has target-source, say so (--swap-alignments)"
        )
    return kept, notes


def counts(links: Collection[tuple[int, int]], gold: Gold) -> tuple[int, int, int, int]:
    """|A ∩ S|, |A ∩ P|, |A|, |S|: the measures are functions of their sums."""
    links = frozenset(links)
    return len(links & gold.sure), len(links & gold.possible), len(links), len(gold.sure)


def _ratio(part: Numbers, whole: Numbers) -> Numbers:
    """part / whole, 1 where both are 0: no link is right where there is none."""
    result: Numbers = np.divide(part, whole, out=np.ones(part.shape), where=whole > 0)
    return result


_VALUES: dict[str, Callable[[Numbers], Numbers]] = {
    "AER": lambda sums: 1.0 - _ratio(sums[:, 0] + sums[:, 1], sums[:, 2] + sums[:, 3]),
    "precision": lambda sums: _ratio(sums[:, 1], sums[:, 2]),
    "recall": lambda sums: _ratio(sums[:, 0], sums[:, 3]),
}


def measure_alignments(alignments: Sequence[Collection[tuple[int, int]]], gold: Sequence[Gold]) -> list[Measurement]:
    """AER, precision and recall of a system's links, between 0 and 1."""
    if len(alignments) != len(gold) or not gold:
        raise ValueError(
            f"there are {len(alignments)} alignments to score against {len(gold)}; there must be as many, and some"
        )
    statistics = np.asarray([counts(*pair) for pair in zip(alignments, gold, strict=True)], dtype=np.float64)
    kinds = "sure" if all(each.sure == each.possible for each in gold) else "sure+possible"
    against = fingerprint("links", [[str(sorted(each.sure)), str(sorted(each.possible))] for each in gold])
    return [
        Measurement(
            name=name,
            better="lower" if name == "AER" else "higher",
            statistics=statistics,
            values=values,
            conditions={"links": kinds},
            against=against,
            digits=3,
        )
        for name, values in _VALUES.items()
    ]
