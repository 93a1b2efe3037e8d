"""Which labels are taken for which: the counts behind accuracy and F1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.evaluation.intervals import Numbers
from sightline.evaluation.labels import label_pairs, percentage, token_pairs


@dataclass(frozen=True, eq=False)
class Confusion:
    """How often each label (row) was given as each label (column); what is right stands on the diagonal."""

    labels: tuple[str, ...]
    counts: NDArray[np.int64]  # (C, C), rows = right, columns = predicted

    def __post_init__(self) -> None:
        if self.counts.shape != (len(self.labels), len(self.labels)):
            raise ValueError(
                f"counts {self.counts.shape} must be (labels, labels), here {(len(self.labels), len(self.labels))}"
            )
        if len(set(self.labels)) < len(self.labels):
            twice = next(label for label in self.labels if self.labels.count(label) > 1)
            raise ValueError(f"the label {twice!r} stands in labels twice; name each once")

    @staticmethod
    def of(
        outputs: Sequence[str],
        references: Sequence[Sequence[str]],
        *,
        labels: Sequence[str] = (),
        lowercase: bool = False,
    ) -> Confusion:
        """Count texts that have one label each. Rows begin with `labels`, in that order; others follow sorted."""
        return _counted(label_pairs(outputs, references, lowercase=lowercase, metric="a confusion"), labels)

    @staticmethod
    def of_tokens(outputs: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> Confusion:
        """Count the tokens of texts that have a label for each token, separated by spaces."""
        pairs = token_pairs(outputs, references, lowercase=lowercase, metric="a confusion")
        flat = [pair for given, wanted in pairs for pair in zip(given, wanted, strict=True)]
        return _counted(flat, ())

    @property
    def support(self) -> NDArray[np.int64]:
        """How many items have each label: (C,)."""
        result: NDArray[np.int64] = self.counts.sum(axis=1)
        return result

    @property
    def precision(self) -> Numbers:
        """Of the items given a label, the percentage that has it: (C,); 0 where none was given it."""
        return percentage(self.counts.diagonal(), self.counts.sum(axis=0))

    @property
    def recall(self) -> Numbers:
        """Of the items that have a label, the percentage that was given it: (C,); 0 where none has it."""
        return percentage(self.counts.diagonal(), self.support)

    @property
    def f1(self) -> Numbers:
        """2·tp / (2·tp + fp + fn) of each label, in percent: (C,). Their mean is macro F1."""
        return percentage(2 * self.counts.diagonal(), self.counts.sum(axis=0) + self.support)

    def mistakes(self, most: int) -> list[tuple[str, str, int]]:
        """The most frequent confusions: (right label, label given, how often), the most frequent first."""
        wrong = self.counts - np.diag(self.counts.diagonal())
        found = [(self.labels[row], self.labels[column], int(wrong[row, column])) for row, column in np.argwhere(wrong)]
        return sorted(found, key=lambda each: -each[2])[:most]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        columns = zip(self.labels, self.precision, self.recall, self.f1, self.support, strict=True)
        return {
            "labels": list(self.labels),
            "counts": self.counts.tolist(),
            "scores": [
                {"label": label, "precision": float(p), "recall": float(r), "f1": float(f), "support": int(n)}
                for label, p, r, f, n in columns
            ],
        }


def _counted(pairs: Iterable[tuple[str, str]], first: Sequence[str]) -> Confusion:
    """Count pairs of (given, wanted)."""
    known = list(pairs)
    labels = (*first, *sorted({label for pair in known for label in pair} - set(first)))
    place = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for given, wanted in known:
        counts[place[wanted], place[given]] += 1
    return Confusion(labels, counts)
