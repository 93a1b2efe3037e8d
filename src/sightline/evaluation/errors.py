"""Exact match, word and character error rate: how often, and by how much, an output differs from what was wanted.

Error rates are micro-averages, (substitutions + deletions + insertions) / reference length over the whole set. A "word"
is what stands between spaces, so phonemes are words too. With several references the nearest counts (lowest rate).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from sightline.evaluation.intervals import Numbers, Score, interval, wilson
from sightline.version import version


def exact_match(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool, bootstrap: int, seed: int
) -> Score:
    """Percentage of outputs equal to one of their references, spaces at the ends aside.

    The interval is Wilson's whatever the number of resamples: resampling a set without errors never shows one.
    """
    del seed
    right = sum(
        _even(hypothesis, lowercase) in {_even(reference, lowercase) for reference in several}
        for hypothesis, several in zip(hypotheses, references, strict=True)
    )
    count = len(hypotheses)
    low, high = wilson(right, count) if bootstrap else (float("nan"), float("nan"))
    return Score(
        name="exact",
        value=100 * right / count,
        low=100 * low,
        high=100 * high,
        signature=_signature(references, lowercase, spaces="strip", ci="wilson" if bootstrap else None),
        count=count,
        better="higher",
        detail=f"{right} of {count}",
    )


def error_rate(
    name: Literal["wer", "cer"],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool,
    bootstrap: int,
    seed: int,
) -> Score:
    """Word (`wer`) or character (`cer`) error rate in percent; it can exceed 100."""
    errors = _errors(name, hypotheses, references, lowercase)
    low, high = interval(errors, _rate, bootstrap=bootstrap, seed=seed)
    drawn = {"bs": bootstrap, "seed": seed} if bootstrap else {}
    total = errors.sum(axis=0)
    return Score(
        name=name.upper(),
        value=float(_rate(total[None])[0]),
        low=low,
        high=high,
        signature=_signature(references, lowercase, **drawn, spaces="squeeze", refs="nearest"),
        count=len(hypotheses),
        better="lower",
        detail=f"{int(total[0])} errors in {int(total[1])} {'words' if name == 'wer' else 'characters'}",
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


def _rate(sums: Numbers) -> Numbers:
    """Errors per hundred; against nothing at all, any error is 100 (as sacreBLEU's TER has it)."""
    errors, length = sums[:, 0], sums[:, 1]
    result: Numbers = 100 * np.where(length > 0, errors / np.maximum(length, 1), errors > 0)
    return result


def _even(text: str, lowercase: bool) -> str:
    return text.strip().lower() if lowercase else text.strip()


def _squeezed(text: str, lowercase: bool) -> str:
    return " ".join(_even(text, lowercase).split())


def _signature(references: Sequence[Sequence[str]], lowercase: bool, **more: object) -> str:
    """In sacreBLEU's form, so that the same tools read it."""
    several = {len(each) for each in references}
    parts = {
        "nrefs": several.pop() if len(several) == 1 else "var",
        "case": "lc" if lowercase else "mixed",
        **more,
        "version": f"sightline-{version()}",
    }
    return "|".join(f"{key}:{value}" for key, value in parts.items() if value is not None)
