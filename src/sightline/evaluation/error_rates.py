"""Exact match, word error rate and character error rate.

Error rates are micro-averages, (substitutions + deletions + insertions) / reference length over the whole set. Words
are separated by spaces, so phonemes count as words. Of several references the one with the lowest rate counts.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sightline.evaluation.measurement import (
    Measurement,
    Metric,
    Numbers,
    References,
    Texts,
    fingerprint,
    number_of_references,
)
from sightline.registry import version
from sightline.terminal import plural


class ExactMatch(Metric):
    """Percentage of outputs equal to one of their references, ignoring spaces at the ends.

    The interval is Wilson's: resampling a set without errors would never show one.
    """

    name = "exact"

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        lowercase = self.options.lowercase
        right = [
            stripped(hypothesis, lowercase) in {stripped(reference, lowercase) for reference in several}
            for hypothesis, several in zip(hypotheses, references, strict=True)
        ]
        return self.measurement(
            [(each, 1) for each in right],  # (N, 2)
            percentage_of_sums,
            conditions=conditions(references, lowercase, spaces="strip", ci=None),
            against=fingerprint("references", references),
            detail=f"{sum(right)} of {len(right)}",
            spread="wilson",
            outcomes=np.array(right, dtype=np.bool_),
        )


class WordErrorRate(Metric):
    """Word error rate in percent; it can exceed 100."""

    name = "WER"
    higher_is_better = False
    unit: ClassVar[str] = "word"

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        lowercase = self.options.lowercase
        statistics = self._errors(hypotheses, references)
        errors, length = statistics.sum(axis=0)
        return self.measurement(
            statistics,
            error_rate,
            conditions=conditions(references, lowercase, bs=None, seed=None, spaces="squeeze", refs="nearest"),
            against=fingerprint("references", references),
            detail=f"{plural(int(errors), 'error')} in {plural(int(length), self.unit)}",
        )

    def _errors(self, hypotheses: Texts, references: References) -> Numbers:
        """(N, 2) errors and reference length of each output against its nearest reference."""
        import jiwer

        def squeezed(text: str) -> str:
            return " ".join(stripped(text, self.options.lowercase).split())

        pairs = [
            (squeezed(reference), squeezed(hypothesis))
            for hypothesis, several in zip(hypotheses, references, strict=True)
            for reference in several
        ]
        process = jiwer.process_words if self.unit == "word" else jiwer.process_characters
        output = process([reference for reference, _ in pairs], [hypothesis for _, hypothesis in pairs])
        counted = iter(
            (
                sum(
                    max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
                    for chunk in chunks
                    if chunk.type != "equal"
                ),
                len(reference),
            )
            for chunks, reference in zip(output.alignments, output.references, strict=True)
        )
        return np.array(
            [
                min((next(counted) for _ in several), key=lambda pair: (pair[0] / max(pair[1], 1), pair[0]))
                for several in references
            ],
            dtype=np.float64,
        )


class CharacterErrorRate(WordErrorRate):
    """Character error rate in percent."""

    name = "CER"
    unit = "character"


def error_rate(sums: Numbers) -> Numbers:
    """Errors per hundred of (M, 2) sums of errors and length; any error against an empty reference is 100 (as TER)."""
    errors, length = sums[:, 0], sums[:, 1]
    result: Numbers = 100 * np.divide(errors, length, out=(errors > 0).astype(np.float64), where=length > 0)
    return result


def percentage_of_sums(sums: Numbers) -> Numbers:
    """100 Σ right / Σ all of (M, 2) sums, or the mean of scores from 0 to 1 with their number."""
    result: Numbers = 100 * sums[:, 0] / sums[:, 1]
    return result


def stripped(text: str, lowercase: bool) -> str:
    """The text without spaces at its ends, in lower case on request."""
    return text.strip().lower() if lowercase else text.strip()


def conditions(references: References, lowercase: bool, **more: object) -> dict[str, object]:
    """The parts of a signature, named as in sacreBLEU."""
    return {
        "nrefs": number_of_references(references),
        "case": "lc" if lowercase else "mixed",
        **more,
        "version": f"sightline-{version()}",
    }
