"""Token F1 of answers, as SQuAD's evaluation script computes it (Rajpurkar et al. 2016, §6.1)."""

from __future__ import annotations

import re
import string
from collections import Counter

from sightline.evaluation.error_rates import percentage_of_sums
from sightline.evaluation.measurement import Measurement, Metric, References, Texts, fingerprint, number_of_references
from sightline.registry import version

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class TokenF1(Metric):
    """Mean F1 of the words that an answer shares with its best reference, in percent.

    F1 = 2 m / (o + r) with m common words of o in the answer and r in the reference; repeated words count as often as
    both have them. Case, punctuation and the articles a, an and the do not count. If either text has no words, F1 is 1
    if both have none, else 0.
    """

    name = "token F1"

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        scores = [
            max(token_f1(hypothesis, reference) for reference in several)
            for hypothesis, several in zip(hypotheses, references, strict=True)
        ]
        conditions = {
            "nrefs": number_of_references(references),
            "bs": None,
            "seed": None,
            "case": "lc",
            "norm": "squad",
            "mean": "macro",
            "version": f"sightline-{version()}",
        }
        return self.measurement(
            [(score, 1) for score in scores],  # (N, 2)
            percentage_of_sums,
            conditions=conditions,
            against=fingerprint("references", references),
        )


def answer_words(text: str) -> list[str]:
    """The words that count: lower case, without punctuation and English articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def token_f1(answer: str, reference: str) -> float:
    """F1 of the words of an answer, from 0 to 1."""
    ours, theirs = Counter(answer_words(answer)), Counter(answer_words(reference))
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())
