"""What a run is tested on, and how it did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sightline.data.sources import Example
from sightline.evaluation.confusion import Confusion
from sightline.evaluation.metrics import Score


@dataclass(frozen=True)
class TestSet:
    """Sources, each with its references."""

    name: str
    sources: list[str]
    references: list[list[str]]
    pairs: int

    @staticmethod
    def of(name: str, examples: Iterable[Example], *, gathered: bool = False) -> TestSet:
        """An entry for each example; gathered (see `Recipe.gathers`), one for each source, with all its references."""
        if not gathered:
            every = list(examples)
            return TestSet(name, [each.source for each in every], [[each.target] for each in every], len(every))
        grouped: dict[str, list[str]] = {}
        pairs = 0
        for example in examples:
            pairs += 1
            known = grouped.setdefault(example.source, [])
            if example.target not in known:
                known.append(example.target)
        return TestSet(name, list(grouped), list(grouped.values()), pairs)

    def beside(self) -> list[tuple[str, str]]:
        """Each reference beside its source."""
        return [(source, each) for source, many in zip(self.sources, self.references, strict=True) for each in many]


@dataclass(frozen=True)
class Report:
    """How a run did on a test set."""

    on: str
    sentences: int
    scores: list[Score]
    outputs: list[str]
    tokens: int | None = None  # of the text a language model was measured by, end marks included
    unknown: int = 0  # tokens it was measured by that its vocabulary lacks: <unk>, whatever that stands for
    validated: int | None = None  # of a validation set, how many of its first examples validations in training saw
    confusion: Confusion | None = None  # of a classifier or a tagger
    unlearned: int = 0  # labels of its references that the model does not know, so that it is never right there
    cut: int = 0  # sources that were cut to data.clean.truncate_source tokens
    incomplete: dict[str, Any] = field(default_factory=dict)  # outputs that a length limit cut, counted
    notes: list[str] = field(default_factory=list)  # the same for a person

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = {"on": self.on, "sentences": self.sentences, "scores": [found.to_dict() for found in self.scores]}
        counts = {"tokens": self.tokens, "unknown": self.unknown, "cut": self.cut, "unlearned": self.unlearned}
        counts["validated"] = self.validated
        found |= {name: count for name, count in counts.items() if count}
        found |= self.incomplete
        if self.confusion is not None:
            found["confusion"] = self.confusion.to_dict()
        return found
