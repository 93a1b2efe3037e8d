"""Exact match, word and character error rate: how often, and by how much, an output differs from what was wanted.

Error rates are micro-averages, (substitutions + deletions + insertions) / reference length over the whole set. A "word"
is what stands between spaces, so phonemes are words too. With several references the nearest counts (lowest rate).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from sightline.evaluation.intervals import Numbers
from sightline.evaluation.measurement import Measurement, fingerprint
from sightline.registry import version
from sightline.terminal import plural


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool) -> Measurement:
    """Percentage of outputs equal to one of their references, spaces at the ends aside.

    The interval is Wilson's whatever the number of resamples: resampling a set without errors never shows one.
    """
    right = [
        even(hypothesis, lowercase) in {even(reference, lowercase) for reference in several}
        for hypothesis, several in zip(hypotheses, references, strict=True)
    ]
    return Measurement(
        name="exact",
        better="higher",
        statistics=np.array([(each, 1) for each in right], dtype=np.float64),  # (N, 2)
        values=share,
        conditions=conditions(references, lowercase, spaces="strip", ci=None),
        against=fingerprint("references", references),
        detail=f"{sum(right)} of {len(right)}",
        spread="wilson",
        outcomes=np.array(right, dtype=np.bool_),
    )


def error_rate(
    name: Literal["wer", "cer"],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool,
) -> Measurement:
    """Word (`wer`) or character (`cer`) error rate in percent; it can exceed 100."""
    statistics = _errors(name, hypotheses, references, lowercase)
    errors, length = statistics.sum(axis=0)
    return Measurement(
        name=name.upper(),
        better="lower",
        statistics=statistics,
        values=rate,
        conditions=conditions(references, lowercase, bs=None, seed=None, spaces="squeeze", refs="nearest"),
        against=fingerprint("references", references),
        detail=f"{plural(int(errors), 'error')} in {plural(int(length), 'word' if name == 'wer' else 'character')}",
    )


def _errors(
    name: Literal["wer", "cer"], hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool
) -> Numbers:
    """Errors and reference length of each sentence against its nearest reference: (N, 2)."""
    import jiwer

    pairs = [
        (_squeezed(reference, lowercase), _squeezed(hypothesis, lowercase))
        for hypothesis, several in zip(hypotheses, references, strict=True)
        for reference in several
    ]
    process = jiwer.process_words if name == "wer" else jiwer.process_characters
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


def rate(sums: Numbers) -> Numbers:
    """Errors per hundred of (M, 2) sums, errors and length; against nothing at all, any error is 100 (as in TER)."""
    errors, length = sums[:, 0], sums[:, 1]
    result: Numbers = 100 * np.divide(errors, length, out=(errors > 0).astype(np.float64), where=length > 0)
    return result


def share(sums: Numbers) -> Numbers:
    """100 Σ right / Σ all of (M, 2) sums; also the mean of scores from 0 to 1, where all is how many there are."""
    result: Numbers = 100 * sums[:, 0] / sums[:, 1]
    return result


def even(text: str, lowercase: bool) -> str:
    """The text without spaces at its ends, in lower case where that is asked for."""
    return text.strip().lower() if lowercase else text.strip()


def _squeezed(text: str, lowercase: bool) -> str:
    return " ".join(even(text, lowercase).split())


def conditions(references: Sequence[Sequence[str]], lowercase: bool, **more: object) -> dict[str, object]:
    """The parts of the signature, named as sacreBLEU names them."""
    several = {len(each) for each in references}
    return {
        "nrefs": several.pop() if len(several) == 1 else "var",
        "case": "lc" if lowercase else "mixed",
        **more,
        "version": f"sightline-{version()}",
    }
