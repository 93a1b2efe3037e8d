"""ROUGE (Lin 2004) as the library `rouge-score` computes it, with words of every script.

The score of a text is the F of precision and recall against its best reference; that of a corpus is the mean over its
texts. Case never counts. ROUGE-1 and -2 count words and word pairs; ROUGE-L the longest common subsequence of the
whole texts; ROUGE-Lsum the union of those between sentences ("summary level", Lin 2004, §3.2), which papers on news
call ROUGE-L. Sentences end as text/sentences.py says.

Words are runs of letters, digits and their marks in any script (`tok:unicode-words-2`): for plain ASCII the same as
the library's own words, which drop all other letters. Scripts without spaces between words (text/sentences.py) are
split into letters. Words are not stemmed. In version 1 Tibetan was split into letters too, and some rarer characters
(half-width katakana, bopomofo, Han beyond U+20000) were not.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, ClassVar

from sightline.evaluation.error_rates import percentage_of_sums
from sightline.evaluation.measurement import Measurement, Metric, References, Texts, fingerprint, number_of_references
from sightline.text.sentences import RULES, SCRIPTS, UNSPACED, sentences

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

_UNSPACED = re.compile(f"([{UNSPACED}])")


@cache
def _letter_or_space(character: str) -> str:
    return character if unicodedata.category(character)[0] in "LNM" else " "


def rouge_words(text: str) -> list[str]:
    """The words that ROUGE counts."""
    return _UNSPACED.sub(r" \1 ", "".join(map(_letter_or_space, text.lower()))).split()


class _Tokenizer:
    """`rouge_words` in the interface of `rouge-score`."""

    def tokenize(self, text: str) -> list[str]:
        return rouge_words(text)


def rouge_scorer(*kinds: str) -> RougeScorer:
    """A scorer of `rouge-score` (rouge1, rouge2, rougeL, rougeLsum) with our words."""
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(kinds), tokenizer=_Tokenizer())


class Rouge1(Metric):
    """ROUGE-1."""

    name = "ROUGE-1"
    kind: ClassVar[str] = "rouge1"

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        by_sentence = self.kind == "rougeLsum"

        def prepared(text: str) -> str:
            return "\n".join(sentences(text)) if by_sentence else text

        scorer = rouge_scorer(self.kind)
        scores = [
            scorer.score_multi([prepared(reference) for reference in several], prepared(text))[self.kind].fmeasure
            for text, several in zip(hypotheses, references, strict=True)
        ]
        conditions = {
            "nrefs": number_of_references(references),
            "bs": None,
            "seed": None,
            "case": "lc",
            "tok": f"unicode-words-{SCRIPTS}",
            "stem": False,
            "sent": f"rules-{RULES}" if by_sentence else None,
            "score": "f",
            "mean": "macro",
            "version": f"rouge-score-{version('rouge-score')}",
        }
        return self.measurement(
            [(score, 1) for score in scores],  # (N, 2)
            percentage_of_sums,
            conditions=conditions,
            against=fingerprint("references", references),
        )


class Rouge2(Rouge1):
    """ROUGE-2."""

    name = "ROUGE-2"
    kind = "rouge2"


class RougeL(Rouge1):
    """ROUGE-L."""

    name = "ROUGE-L"
    kind = "rougeL"


class RougeLsum(Rouge1):
    """ROUGE-Lsum."""

    name = "ROUGE-Lsum"
    kind = "rougeLsum"
