"""Test sets, and the report of how a run did on one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline.data.sources import Example, read
from sightline.evaluation.labels import Confusion
from sightline.evaluation.measurement import MetricScore
from sightline.recipe import Recipe
from sightline.recipe.sources import ColumnsSource, ConlluSource, PlainSource, TextSource


@dataclass(frozen=True)
class TestSet:
    """Sources, each with its references."""

    name: str
    sources: list[str]
    references: list[list[str]]
    pairs: int

    @staticmethod
    def of(name: str, examples: Iterable[Example], *, gathered: bool = False) -> TestSet:
        """An entry for each example, or (gathered, see `Recipe.gathers`) for each source with all its references."""
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

    def source_reference_pairs(self) -> list[tuple[str, str]]:
        """Every reference with its source."""
        return [(source, each) for source, many in zip(self.sources, self.references, strict=True) for each in many]


def from_files(source: Path | None, reference: Path | None, recipe: Recipe | None = None) -> TestSet:
    """Read a test set from two parallel files, for runs of a recipe (by default one of text pairs).

    Language models take the text alone, split into documents like the validation text. Taggers also take one file of
    words and labels in the format of their training files.
    """
    spec = None if recipe is None else recipe.task_spec
    if recipe is not None and recipe.of_text:
        if source is not None or reference is None:
            raise ValueError("--source: language models read no source; give their text with --reference alone")
        validation = recipe.data.validation
        document = validation.document if isinstance(validation, PlainSource) else "line"
        return TestSet.of(reference.name, read(PlainSource(file=str(reference), document=document), None))
    labelled = spec is not None and spec.labels == "words"
    if labelled and source is None and reference is not None:
        assert recipe is not None
        return TestSet.of(reference.name, read(_tagged_source(reference, recipe), None))
    if source is None or reference is None:
        raise ValueError("--source and --reference go together: give both, or neither")
    pairs = read(TextSource(source=str(source), target=str(reference)), None, labelled=labelled)
    return TestSet.of(source.name, pairs)


def _tagged_source(path: Path, recipe: Recipe) -> ConlluSource | ColumnsSource:
    """A file of words and labels in the columns of the training files."""
    train = recipe.data.train[0]
    if not isinstance(train, ConlluSource | ColumnsSource):
        raise ValueError(
            f"--reference {path} alone is a file of words with their labels, and this run learned from {train.kind}: "
            f"give --source and --reference, line by line"
        )
    return train.model_copy(update={"file": str(path), "share": None})


@dataclass(frozen=True)
class Report:
    """How a run did on a test set."""

    on: str
    sentences: int
    scores: list[MetricScore]
    outputs: list[str]
    tokens: int | None = None  # of the text that a language model was scored on, end marks included
    unknown: int = 0  # <unk> tokens among them
    validated: int | None = None  # of a validation set: how many of its first examples training validated on
    confusion: Confusion | None = None  # of a classifier or a tagger
    unlearned: int = 0  # labels of the references that the model does not know
    cut: int = 0  # sources cut to data.clean.truncate_source tokens
    incomplete: dict[str, Any] = field(default_factory=dict)  # counts of outputs that a length limit cut
    notes: list[str] = field(default_factory=list)  # the same as sentences

    def to_dict(self) -> dict[str, Any]:
        """For JSON; counts of nothing are left out."""
        plain = {"on": self.on, "sentences": self.sentences, "scores": [score.to_dict() for score in self.scores]}
        counts = {"tokens": self.tokens, "unknown": self.unknown, "cut": self.cut, "unlearned": self.unlearned}
        counts["validated"] = self.validated
        plain |= {name: count for name, count in counts.items() if count}
        plain |= self.incomplete
        if self.confusion is not None:
            plain["confusion"] = self.confusion.to_dict()
        return plain
