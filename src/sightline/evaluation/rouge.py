"""ROUGE (Lin 2004): how much of a reference a summary says, as the library `rouge-score` counts it.

The score of a text is the F of precision and recall, of the best reference where there are several; that of a corpus
is the mean over its texts. Case never counts. ROUGE-1 and -2 are of words and pairs of words; ROUGE-L of the longest
common subsequence of the whole texts; ROUGE-Lsum of the union of those between sentences ("summary level", Lin 2004,
§3.2), which is what papers on news call ROUGE-L. Sentences end as text/sentences.py says.

Words are runs of letters, digits and the marks that belong to them, of any script (`tok:unicode-words-2`): for plain
ASCII the same as that library's own, which leaves nothing of other letters. Scripts that put no spaces between words
(text/sentences.py) are taken letter by letter. Words are not stemmed. Without the 2, Tibetan was taken so too, and some
rarer characters of those scripts were not (half-width katakana, bopomofo, Han past U+20000).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

import numpy as np

from sightline.evaluation.errors import share
from sightline.evaluation.measurement import Measurement, fingerprint
from sightline.text.sentences import RULES, SCRIPTS, UNSPACED, sentences

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

RougeName = Literal["rouge-1", "rouge-2", "rouge-l", "rouge-lsum"]
LABELS: dict[RougeName, str] = {
    "rouge-1": "ROUGE-1",
    "rouge-2": "ROUGE-2",
    "rouge-l": "ROUGE-L",
    "rouge-lsum": "ROUGE-Lsum",
}
_TYPES = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL", "rouge-lsum": "rougeLsum"}
_UNSPACED = re.compile(f"([{UNSPACED}])")


@cache
def _kept(character: str) -> str:
    """A letter, digit or mark as it is; anything else is a space."""
    return character if unicodedata.category(character)[0] in "LNM" else " "


def words(text: str) -> list[str]:
    """What ROUGE counts in a text."""
    return _UNSPACED.sub(r" \1 ", "".join(map(_kept, text.lower()))).split()


class Words:
    """The same for `rouge-score`."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


def scorer(*names: RougeName) -> RougeScorer:
    """What scores one text against another, with our words."""
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([_TYPES[name] for name in names], tokenizer=Words())


def rouge(
    name: RougeName, hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool
) -> Measurement:
    """Measure with `rouge-score`; `lowercase` changes nothing, for ROUGE always folds case."""
    summing = name == "rouge-lsum"

    def prepared(text: str) -> str:
        return "\n".join(sentences(text)) if summing else text

    counter, kind = scorer(name), _TYPES[name]
    scores = [
        counter.score_multi([prepared(reference) for reference in several], prepared(text))[kind].fmeasure
        for text, several in zip(hypotheses, references, strict=True)
    ]
    counts = sorted({len(several) for several in references})
    conditions = {
        "nrefs": counts[0] if len(counts) == 1 else "var",
        "bs": None,
        "seed": None,
        "case": "lc",
        "tok": f"unicode-words-{SCRIPTS}",
        "stem": False,
        "sent": f"rules-{RULES}" if summing else None,
        "score": "f",
        "mean": "macro",
        "version": f"rouge-score-{version('rouge-score')}",
    }
    return Measurement(
        name=LABELS[name],
        better="higher",
        statistics=np.stack([np.asarray(scores, np.float64), np.ones(len(scores))], axis=1),  # (N, 2)
        values=share,
        conditions=conditions,
        against=fingerprint("references", references),
    )
