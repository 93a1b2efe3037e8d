"""Metrics of sets of labels, several for each text, between spaces: micro and macro F1."""

from __future__ import annotations

import numpy as np

from sightline.evaluation.error_rates import conditions
from sightline.evaluation.labels import f1, label_pairs, macro_f1
from sightline.evaluation.measurement import Measurement, Metric, Numbers, References, Texts, fingerprint
from sightline.terminal import plural


def label_counts(
    hypotheses: Texts, references: References, *, lowercase: bool, metric: str
) -> tuple[tuple[str, ...], Numbers]:
    """The labels, and (N, C, 3): whether each is a true positive, a false positive or a false negative of each text."""
    pairs = label_pairs(hypotheses, references, lowercase=lowercase, metric=metric)
    sets = [(_labels(output), _labels(right)) for output, right in pairs]
    classes = tuple(sorted(set().union(*(both for pair in sets for both in pair))))
    counts = np.zeros((len(sets), len(classes), 3))
    for row, (output, right) in zip(counts, sets, strict=True):
        for number, label in enumerate(classes):
            row[number] = label in output & right, label in output - right, label in right - output
    return classes, counts


class MultilabelMicroF1(Metric):
    """F1 = 2 tp / (2 tp + fp + fn) over all labels of all texts together (scikit-learn's `average="micro"`)."""

    name = "micro-F1"

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        lowercase = self.options.lowercase
        _, counts = label_counts(hypotheses, references, lowercase=lowercase, metric="multilabel-micro-f1")
        right, wrong, missed = counts.sum(axis=(0, 1)).astype(int)
        return self.measurement(
            counts.sum(axis=1),  # (N, 3)
            f1,
            conditions=_conditions(references, lowercase, "micro"),
            against=fingerprint("references", references),
            detail=f"{right:,} of {plural(int(right + missed), 'label')} found, {wrong:,} wrong ones beside them",
        )


class MultilabelMacroF1(Metric):
    """Mean over the labels of the F1 of each (scikit-learn's `average="macro"`)."""

    name = "macro-F1"

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        lowercase = self.options.lowercase
        classes, counts = label_counts(hypotheses, references, lowercase=lowercase, metric="multilabel-macro-f1")
        each = f1(counts.sum(axis=0))  # (C,)
        worst = "" if not classes else f", the lowest F1 {each.min():.2f} ({classes[int(each.argmin())]})"
        return self.measurement(
            counts.reshape(len(counts), -1),  # (N, 3C)
            macro_f1,
            conditions=_conditions(references, lowercase, "macro"),
            against=fingerprint("references", references),
            detail=plural(len(classes), "label") + worst,
            classes=classes,
        )


def _labels(text: str) -> set[str]:
    return {label for label in text.split(" ") if label}


def _conditions(references: References, lowercase: bool, average: str) -> dict[str, object]:
    return conditions(references, lowercase, bs=None, seed=None, labels="several", average=average)
