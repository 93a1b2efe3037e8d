"""What of an example a model is given, and what it should answer, for each task.

A store holds pairs of ids, source and target. A translator reads the source and is given the target token by token; a
tagger reads words and answers with a label for each; a classifier answers once; a decoder that stands alone is given
all in one sequence and answers only where the target is. Where nothing is to be answered stands PAD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sightline.recipe import Recipe
from sightline.text.tokenizer import END, PAD, START

Ids = Sequence[np.ndarray]


@dataclass(frozen=True)
class Side:
    """One sequence of ids for each example, all of them between the same marks."""

    sequences: Ids
    before: int | None = None
    behind: int | None = None

    @property
    def marks(self) -> int:
        """How many marks each sequence has."""
        return (self.before is not None) + (self.behind is not None)

    def lengths(self) -> list[int]:
        """Tokens of each sequence, marks included."""
        return [len(sequence) + self.marks for sequence in self.sequences]

    def joined(self) -> np.ndarray:
        """All sequences end to end, each with its marks."""
        lengths = np.asarray(self.lengths(), np.int64)
        ends = np.cumsum(lengths)
        joined = np.empty(ends[-1], dtype=np.int64)
        rest = np.ones(len(joined), dtype=bool)
        for mark, places in ((self.before, ends - lengths), (self.behind, ends - 1)):
            if mark is not None:
                joined[places] = mark
                rest[places] = False
        joined[rest] = np.concatenate(self.sequences)
        return joined


@dataclass(frozen=True)
class Sides:
    """What is read as a whole, what is given token by token, and what is wanted.

    Answers stand where `given` does, if there is one, else where `source` does; or there is one for each example.
    """

    source: Side | None
    given: Side | None
    wanted: Side
    picked: bool = False  # few answers are wanted: a batch says where, and the output layer sees those places alone

    @property
    def read(self) -> list[Side]:
        """What the model is given."""
        return [side for side in (self.source, self.given) if side is not None]


def translation(sources: Ids, targets: Ids) -> Sides:
    """The source with its end mark; the target shifted right, and with its end mark."""
    return Sides(Side(sources, behind=END), Side(targets, before=START), Side(targets, behind=END))


def one_sequence(sources: Ids, targets: Ids) -> Sides:
    """Source with its end mark, start mark, target, as a search reads them; wanted is the target with its end mark."""
    given = [np.concatenate([s, [END, START], t]) for s, t in zip(sources, targets, strict=True)]
    wanted = [np.concatenate([np.full(len(s) + 1, PAD), t, [END]]) for s, t in zip(sources, targets, strict=True)]
    return Sides(None, Side(given), Side(wanted))


def labels(sources: Ids, targets: Ids) -> Sides:
    """The source with its end mark; one label for each example."""
    return Sides(Side(sources, behind=END), None, Side(targets))


def labels_with_class_token(sources: Ids, targets: Ids) -> Sides:
    """The same behind a token whose state stands for the whole text."""
    return Sides(Side(sources, before=START, behind=END), None, Side(targets))


def tags(sources: Ids, targets: Ids) -> Sides:
    """The pieces of words; their labels, each at the first piece of its word."""
    return Sides(Side(sources), None, Side(targets))


def masked_words(sources: Ids, targets: Ids) -> Sides:
    """A text between the marks a classifier may read it between; what was hidden is wanted where it stood."""
    return Sides(Side(sources, before=START, behind=END), None, Side(targets, before=PAD, behind=PAD), picked=True)


def windows(sources: Ids, targets: Ids) -> Sides:
    """Text as it stands: each token of a window is to be predicted from those before it (sources are not looked at)."""
    return Sides(None, Side([window[:-1] for window in targets]), Side([window[1:] for window in targets]))


def sides_of(recipe: Recipe) -> Callable[[Ids, Ids], Sides]:
    """How a recipe's examples are shown to its model."""
    spec = recipe.task_spec
    if spec.maps_text:
        return translation if recipe.model.encoder is not None else one_sequence
    if spec.fills_gaps:
        return masked_words
    if spec.labels == "one":
        assert recipe.model.pooling is not None
        return labels_with_class_token if recipe.model.pooling.kind == "class" else labels
    return tags if spec.labels == "words" else windows
