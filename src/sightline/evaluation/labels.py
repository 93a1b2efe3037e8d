"""Metrics of labels: one for each text (accuracy, macro F1) or one for each token (token accuracy, span F1).

A text's label is the whole output and may contain spaces. Labels of tokens are separated by spaces. F1 = 2·tp /
(2·tp + fp + fn) is the harmonic mean of precision and recall, in percent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.evaluation.error_rates import ExactMatch, conditions, percentage_of_sums, stripped
from sightline.evaluation.measurement import Measurement, Metric, Numbers, References, Support, Texts, fingerprint
from sightline.terminal import plural

_OUTSIDE = ("O", ".")  # tags outside any span


class Accuracy(ExactMatch):
    """Percentage of outputs equal to their label, or to one of several correct labels."""

    name = "accuracy"


class MacroF1(Metric):
    """Mean F1 over the labels, rare ones counting as much as frequent ones (scikit-learn's `average="macro"`).

    The labels are those of references and outputs: one that is only predicted wrongly has an F1 of 0. An empty output
    (of an empty text) counts as wrong for the label of its reference and is not a class.
    """

    name = "macro-F1"

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        lowercase = self.options.lowercase
        pairs = label_pairs(hypotheses, references, lowercase=lowercase, metric="macro-f1")
        classes = tuple(sorted({output for output, _ in pairs if output} | {label for _, label in pairs}))
        column = {label: number for number, label in enumerate(classes)}
        counts = np.zeros((len(pairs), len(classes), 3))  # (N, C, tp fp fn)
        for row, (output, label) in zip(counts, pairs, strict=True):
            if output == label:
                row[column[output], 0] = 1
            else:
                row[column[label], 2] = 1
                if output in column:
                    row[column[output], 1] = 1
        each = f1(counts.sum(axis=0))  # (C,)
        worst = int(each.argmin())
        return self.measurement(
            counts.reshape(len(pairs), -1),  # (N, 3C)
            macro_f1,
            conditions=conditions(references, lowercase, bs=None, seed=None, ci=None, spaces="strip", average="macro"),
            against=fingerprint("references", references),
            detail=f"{plural(len(classes), 'label')}, the lowest F1 {each[worst]:.2f} ({classes[worst]})",
            classes=classes,
            support=Support("label", tuple(int(count) for count in counts.sum(axis=(0, 2)))),
        )


class TokenAccuracy(Metric):
    """Percentage of tokens with the correct label. Resamples sentences: errors of one sentence are not independent."""

    name = "token accuracy"

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        lowercase = self.options.lowercase
        pairs = token_pairs(hypotheses, references, lowercase=lowercase, metric="token-accuracy")
        right = [[one == other for one, other in zip(output, labels, strict=True)] for output, labels in pairs]
        outcomes = np.array([each for sentence in right for each in sentence], dtype=np.bool_)  # (tokens of all,)
        return self.measurement(
            [(sum(sentence), len(sentence)) for sentence in right],  # (N, 2)
            percentage_of_sums,
            conditions=conditions(references, lowercase, bs=None, seed=None, ci=None, spaces="squeeze"),
            against=fingerprint("references", references),
            detail=f"{outcomes.sum():,} of {plural(outcomes.size, 'token')}",
            outcomes=outcomes,
            support=Support("sentence", (len(right),)),
        )


class SpanF1(Metric):
    """F1 over the spans that B-, I- and O tags mark (Ramshaw & Marcus 1995), all types together.

    A span is right if its type and both ends are. Ill-formed tags are read as conlleval does (seqeval's default): an I-
    that continues nothing begins a span. Without any span F1 is 0, as in seqeval.
    """

    name = "span F1"

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        lowercase = self.options.lowercase
        pairs = token_pairs(hypotheses, references, lowercase=False, metric="span-f1")
        statistics = np.zeros((len(pairs), 3))  # (N, spans in both, in the output, in the reference)
        for row, (output, labels) in zip(statistics, pairs, strict=True):
            predicted, right = _spans(output, lowercase), _spans(labels, lowercase)
            row[:] = len(predicted & right), len(predicted), len(right)
        both, in_outputs, in_references = statistics.sum(axis=0).astype(int)
        untagged = [tag for pair in pairs for tags in pair for tag in tags if not _is_tag(tag)]
        more = f"; {plural(len(untagged), 'label')} beside B-, I- and O (the first: {untagged[0]})" if untagged else ""
        with_spans = int(statistics.any(axis=1).sum())  # sentences that have one, on either side
        return self.measurement(
            statistics,
            _span_f1,
            conditions=conditions(
                references, lowercase, bs=None, seed=None, ci=None, spaces="squeeze", tags="conlleval", average="micro"
            ),
            against=fingerprint("references", references),
            detail=f"{both} of {plural(in_references, 'span')} found, {in_outputs} in the outputs{more}",
            support=Support("sentence", (with_spans,)) if with_spans else None,
        )


def label_pairs(hypotheses: Texts, references: References, *, lowercase: bool, metric: str) -> list[tuple[str, str]]:
    """(predicted label, correct label) of each text."""
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{plural(len(hypotheses), 'output')} and references for {len(references)}: {metric} needs one for each"
        )
    for number, several in enumerate(references, start=1):
        if isinstance(several, str):
            raise TypeError(f"the references of output {number} are a text; write a list of texts: [{several!r}]")
        if len(several) != 1:
            raise ValueError(
                f"output {number} has {len(several)} references; {metric} needs exactly one for each output "
                "(accuracy takes several)"
            )
    return [
        (stripped(hypothesis, lowercase), stripped(single, lowercase))
        for hypothesis, (single,) in zip(hypotheses, references, strict=True)
    ]


def token_pairs(
    hypotheses: Texts, references: References, *, lowercase: bool, metric: str
) -> list[tuple[list[str], list[str]]]:
    """(predicted labels, correct labels) of the tokens of each text, the same number of both."""
    pairs = [
        (_split(output), _split(labels))
        for output, labels in label_pairs(hypotheses, references, lowercase=lowercase, metric=metric)
    ]
    for number, (output, labels) in enumerate(pairs, start=1):
        if not labels:
            raise ValueError(f"the reference of sentence {number} has no labels; leave the sentence out of {metric}")
        if len(output) != len(labels):
            raise ValueError(
                f"sentence {number} has {plural(len(output), 'label')} in the output and {len(labels)} in the "
                f"reference; {metric} needs one label for each token in both"
            )
    return pairs


def count_unknown_labels(references: References, known: Iterable[str], *, of_words: bool, lowercase: bool) -> int:
    """How many correct labels (one a text, or `of_words`) a model does not know, compared as scores compare them."""
    vocabulary = {stripped(label, lowercase) for label in known}
    texts = (stripped(single, lowercase) for several in references for single in several)
    return sum(label not in vocabulary for text in texts for label in (_split(text) if of_words else [text]))


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first token, last token) of each span that tags mark, as conlleval reads them.

    A tag is a letter and, after a hyphen, a type: B begins a span, I continues it, O is outside; E ends one and S is a
    span of one token, in schemes that have them. Contradictions are read generously: another type ends a span and
    begins the next, and an I that continues nothing begins one. The same as seqeval's default for all labels.
    """
    spans: list[tuple[str, int, int]] = []
    before, kind, first = "O", "", 0
    for place, label in enumerate([*tags, "O"]):
        tag, rest = label[:1], label[1:]
        type_ = rest.split("-", maxsplit=1)[-1] or "_"
        other = type_ != kind
        if (
            before in ("E", "S")
            or (before in ("B", "I") and tag in ("B", "S", "O"))
            or (before not in _OUTSIDE and other)
        ):
            spans.append((kind, first, place - 1))
        if tag in ("B", "S") or (before in ("E", "S", "O") and tag in ("E", "I")) or (tag not in _OUTSIDE and other):
            first = place
        before, kind = tag, type_
    return spans


def percentage(part: Numbers | NDArray[np.int64], whole: Numbers | NDArray[np.int64]) -> Numbers:
    """100 part / whole, 0 where the whole is 0."""
    result: Numbers = 100 * np.divide(part, whole, out=np.zeros(whole.shape), where=whole > 0)
    return result


def _split(text: str) -> list[str]:
    return [label for label in text.split(" ") if label]  # other kinds of space may be part of a label


def _spans(tags: list[str], lowercase: bool) -> set[tuple[str, int, int]]:
    read = [tag[0] + tag[1:].lower() for tag in tags] if lowercase else tags  # the B, I or O keeps its case
    return set(entities(read))


def _is_tag(label: str) -> bool:
    return label in ("O", "B", "I") or label.startswith(("B-", "I-"))


def f1(counts: Numbers) -> Numbers:
    """F1 of counts (..., tp fp fn), 0 where there are none."""
    right = 2 * counts[..., 0]
    return percentage(right, right + counts[..., 1] + counts[..., 2])


def macro_f1(sums: Numbers) -> Numbers:
    """Macro F1 of (M, 3C) sums, over the labels that occur in them."""
    counts = sums.reshape(len(sums), -1, 3)  # (M, C, tp fp fn)
    result: Numbers = f1(counts).sum(axis=1) / counts.any(axis=2).sum(axis=1)
    return result


def _span_f1(sums: Numbers) -> Numbers:
    return percentage(2 * sums[:, 0], sums[:, 1] + sums[:, 2])


# --- confusion matrices ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Confusion:
    """A confusion matrix: how often each label (row) was predicted as each label (column)."""

    labels: tuple[str, ...]
    counts: NDArray[np.int64]  # (C, C), rows = correct, columns = predicted

    def __post_init__(self) -> None:
        if self.counts.shape != (len(self.labels), len(self.labels)):
            raise ValueError(
                f"counts {self.counts.shape} must be (labels, labels), here {(len(self.labels), len(self.labels))}"
            )
        if len(set(self.labels)) < len(self.labels):
            twice = next(label for label in self.labels if self.labels.count(label) > 1)
            raise ValueError(f"the label {twice!r} occurs in labels twice; name each once")

    @staticmethod
    def of(
        outputs: Texts,
        references: References,
        *,
        labels: Sequence[str] = (),
        lowercase: bool = False,
    ) -> Confusion:
        """Count texts with one label each. Rows begin with `labels`, in that order; the rest are sorted."""
        return _confusion(label_pairs(outputs, references, lowercase=lowercase, metric="a confusion"), labels)

    @staticmethod
    def of_tokens(outputs: Texts, references: References, *, lowercase: bool = False) -> Confusion:
        """Count the tokens of texts with a label for each token, separated by spaces."""
        pairs = token_pairs(outputs, references, lowercase=lowercase, metric="a confusion")
        return _confusion([pair for output, labels in pairs for pair in zip(output, labels, strict=True)], ())

    @property
    def support(self) -> NDArray[np.int64]:
        """(C,) how many items have each label."""
        result: NDArray[np.int64] = self.counts.sum(axis=1)
        return result

    @property
    def precision(self) -> Numbers:
        """(C,) percentage of the items predicted as a label that have it; 0 where there are none."""
        return percentage(self.counts.diagonal(), self.counts.sum(axis=0))

    @property
    def recall(self) -> Numbers:
        """(C,) percentage of the items with a label that were predicted as it; 0 where there are none."""
        return percentage(self.counts.diagonal(), self.support)

    @property
    def f1(self) -> Numbers:
        """(C,) 2·tp / (2·tp + fp + fn) of each label in percent. Their mean is macro F1."""
        return percentage(2 * self.counts.diagonal(), self.counts.sum(axis=0) + self.support)

    def mistakes(self, most: int) -> list[tuple[str, str, int]]:
        """The most frequent confusions: (correct label, predicted label, count), the most frequent first."""
        wrong = self.counts - np.diag(self.counts.diagonal())
        cells = [(self.labels[row], self.labels[column], int(wrong[row, column])) for row, column in np.argwhere(wrong)]
        return sorted(cells, key=lambda each: -each[2])[:most]

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


def _confusion(pairs: Sequence[tuple[str, str]], first: Sequence[str]) -> Confusion:
    """Count pairs of (predicted, correct)."""
    labels = (*first, *sorted({label for pair in pairs for label in pair} - set(first)))
    index = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for output, label in pairs:
        counts[index[label], index[output]] += 1
    return Confusion(labels, counts)
