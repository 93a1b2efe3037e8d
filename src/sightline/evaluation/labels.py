"""Metrics of labels: one for each text (accuracy, macro F1), or one for each token of it (token accuracy, span F1).

A text's label is the whole output and may contain spaces. The labels of tokens stand in one output, separated by
spaces. F1 = 2·tp / (2·tp + fp + fn) is the harmonic mean of precision and recall, in percent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sightline.evaluation.errors import conditions, even, exact_match, share
from sightline.evaluation.intervals import Numbers
from sightline.evaluation.measurement import Measurement, Rest, fingerprint
from sightline.terminal import plural

_OUT = ("O", ".")  # tags that no span holds


def accuracy(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool) -> Measurement:
    """Percentage of outputs equal to their label as a whole; of several labels that are right, any will do."""
    return replace(exact_match(hypotheses, references, lowercase=lowercase), name="accuracy")


def macro_f1(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool) -> Measurement:
    """Mean of the labels' F1, rare labels counting as much as frequent ones (scikit-learn's `average="macro"`).

    Labels are those of the references and the outputs: one that is only ever given wrongly has an F1 of 0. An empty
    output (of an empty text) is none: it counts as wrong for the label of its reference, and is no class of its own.
    """
    pairs = label_pairs(hypotheses, references, lowercase=lowercase, metric="macro-f1")
    classes = tuple(sorted({given for given, _ in pairs if given} | {wanted for _, wanted in pairs}))
    place = {label: number for number, label in enumerate(classes)}
    counts = np.zeros((len(pairs), len(classes), 3))  # (N, C, tp fp fn)
    for row, (given, wanted) in zip(counts, pairs, strict=True):
        if given == wanted:
            row[place[given], 0] = 1
        else:
            row[place[wanted], 2] = 1
            if given in place:
                row[place[given], 1] = 1
    single = _label_f1(counts.sum(axis=0))  # (C,)
    worst = int(single.argmin())
    return Measurement(
        name="macro-F1",
        better="higher",
        statistics=counts.reshape(len(pairs), -1),  # (N, 3C)
        values=_macro_f1,
        conditions=conditions(references, lowercase, bs=None, seed=None, ci=None, spaces="strip", average="macro"),
        against=fingerprint("references", references),
        detail=f"{plural(len(classes), 'label')}, the lowest F1 {single[worst]:.2f} ({classes[worst]})",
        classes=classes,
        rests_on=Rest("label", tuple(int(count) for count in counts.sum(axis=(0, 2)))),
    )


def token_accuracy(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool) -> Measurement:
    """Percentage of tokens that have their label. Sentences are drawn again, not tokens, which err together."""
    pairs = token_pairs(hypotheses, references, lowercase=lowercase, metric="token-accuracy")
    right = [[one == other for one, other in zip(given, wanted, strict=True)] for given, wanted in pairs]
    outcomes = np.array([each for sentence in right for each in sentence], dtype=np.bool_)  # (tokens of all,)
    return Measurement(
        name="token accuracy",
        better="higher",
        statistics=np.array([(sum(sentence), len(sentence)) for sentence in right], dtype=np.float64),  # (N, 2)
        values=share,
        conditions=conditions(references, lowercase, bs=None, seed=None, ci=None, spaces="squeeze"),
        against=fingerprint("references", references),
        detail=f"{outcomes.sum():,} of {plural(outcomes.size, 'token')}",
        outcomes=outcomes,
        rests_on=Rest("sentence", (len(right),)),
    )


def span_f1(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool) -> Measurement:
    """F1 over the labelled spans that B-, I- and O tags mark (Ramshaw & Marcus 1995), all types together.

    A span is right if its type and both its ends are. Ill-formed tags are read as conlleval does (seqeval's default):
    an I- that continues nothing begins a span. Where there is no span at all F1 is 0, as in seqeval.
    """
    pairs = token_pairs(hypotheses, references, lowercase=False, metric="span-f1")
    statistics = np.zeros((len(pairs), 3))  # (N, spans in both, in the output, in the reference)
    for row, (given, wanted) in zip(statistics, pairs, strict=True):
        found, right = _spans(given, lowercase), _spans(wanted, lowercase)
        row[:] = len(found & right), len(found), len(right)
    both, found_spans, right_spans = statistics.sum(axis=0).astype(int)
    others = [tag for pair in pairs for tags in pair for tag in tags if not _is_tag(tag)]
    spanned = int(statistics.any(axis=1).sum())  # sentences that have one, on either side
    beside = f"; {plural(len(others), 'label')} beside B-, I- and O (the first: {others[0]})" if others else ""
    return Measurement(
        name="span F1",
        better="higher",
        statistics=statistics,
        values=_span_f1,
        conditions=conditions(
            references, lowercase, bs=None, seed=None, ci=None, spaces="squeeze", tags="conlleval", average="micro"
        ),
        against=fingerprint("references", references),
        detail=f"{both} of {plural(right_spans, 'span')} found, {found_spans} in the outputs{beside}",
        rests_on=Rest("sentence", (spanned,)) if spanned else None,
    )


def label_pairs(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool, metric: str
) -> list[tuple[str, str]]:
    """The label given and the label wanted, text by text."""
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
        (even(hypothesis, lowercase), even(single, lowercase))
        for hypothesis, (single,) in zip(hypotheses, references, strict=True)
    ]


def token_pairs(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool, metric: str
) -> list[tuple[list[str], list[str]]]:
    """The labels given and the labels wanted, text by text, as many of one as of the other."""
    pairs = [
        (_split(given), _split(wanted))
        for given, wanted in label_pairs(hypotheses, references, lowercase=lowercase, metric=metric)
    ]
    for number, (given, wanted) in enumerate(pairs, start=1):
        if not wanted:
            raise ValueError(f"the reference of sentence {number} has no labels; leave the sentence out of {metric}")
        if len(given) != len(wanted):
            raise ValueError(
                f"sentence {number} has {plural(len(given), 'label')} in the output and {len(wanted)} in the "
                f"reference; {metric} needs one label for each token in both"
            )
    return pairs


def never_right(references: Sequence[Sequence[str]], known: Iterable[str], *, of_words: bool, lowercase: bool) -> int:
    """How many wanted labels (one a text, or `of_words`) are none of those a model knows, as scores compare them."""
    given = {even(label, lowercase) for label in known}
    wanted = (even(single, lowercase) for several in references for single in several)
    return sum(label not in given for text in wanted for label in (_split(text) if of_words else [text]))


def _split(text: str) -> list[str]:
    return [label for label in text.split(" ") if label]  # other kinds of space may be part of a label


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first token, last token) of each span that tags mark, as conlleval reads them.

    A tag is a letter and, behind a hyphen, a type: B begins a span, I goes on with it, O is outside; E ends one and S
    is one alone, where a scheme has them. Whatever contradicts itself is read as the most that can be meant: another
    type ends a span and begins the next, an I that goes on with nothing begins one. The same as seqeval's default, for
    any labels at all.
    """
    spans: list[tuple[str, int, int]] = []
    before, kind, first = "O", "", 0
    for place, label in enumerate([*tags, "O"]):
        tag, rest = label[:1], label[1:]
        type_ = rest.split("-", maxsplit=1)[-1] or "_"
        other = type_ != kind
        if before in ("E", "S") or (before in ("B", "I") and tag in ("B", "S", "O")) or (before not in _OUT and other):
            spans.append((kind, first, place - 1))
        if tag in ("B", "S") or (before in ("E", "S", "O") and tag in ("E", "I")) or (tag not in _OUT and other):
            first = place
        before, kind = tag, type_
    return spans


def _spans(tags: list[str], lowercase: bool) -> set[tuple[str, int, int]]:
    """The spans of a sentence."""
    read = [tag[0] + tag[1:].lower() for tag in tags] if lowercase else tags  # the B, I or O in front stays as it is
    return set(entities(read))


def _is_tag(label: str) -> bool:
    return label in ("O", "B", "I") or label.startswith(("B-", "I-"))


def _label_f1(counts: Numbers) -> Numbers:
    """F1 of counts (..., tp fp fn), 0 where there are none."""
    right = 2 * counts[..., 0]
    return percentage(right, right + counts[..., 1] + counts[..., 2])


def _macro_f1(sums: Numbers) -> Numbers:
    """Of (M, 3C) sums; a label that does not occur in them does not count, as if nobody had heard of it."""
    counts = sums.reshape(len(sums), -1, 3)  # (M, C, tp fp fn)
    result: Numbers = _label_f1(counts).sum(axis=1) / counts.any(axis=2).sum(axis=1)
    return result


def _span_f1(sums: Numbers) -> Numbers:
    return percentage(2 * sums[:, 0], sums[:, 1] + sums[:, 2])


def percentage(part: Numbers | NDArray[np.int64], whole: Numbers | NDArray[np.int64]) -> Numbers:
    """Parts of wholes in percent; 0 of nothing."""
    result: Numbers = 100 * np.divide(part, whole, out=np.zeros(whole.shape), where=whole > 0)
    return result
