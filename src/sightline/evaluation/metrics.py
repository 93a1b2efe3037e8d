"""Every metric under the name recipes give it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from sightline.evaluation.errors import error_rate, exact_match
from sightline.evaluation.intervals import Numbers, Score
from sightline.evaluation.labels import accuracy, macro_f1, span_f1, token_accuracy
from sightline.evaluation.measurement import Measurement, fingerprint
from sightline.evaluation.overlap import overlap
from sightline.evaluation.rouge import LABELS as ROUGE
from sightline.evaluation.rouge import rouge
from sightline.recipe import Evaluation, MetricName
from sightline.registry import version
from sightline.terminal import plural
from sightline.text.bleu_tokenizers import resolved

__all__ = [
    "METRICS",
    "Measurement",
    "Metric",
    "Score",
    "measure",
    "measure_bits_per_character",
    "measure_perplexity",
    "score",
]


class Measurer(Protocol):
    """Measures texts against texts."""

    def __call__(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool
    ) -> Measurement: ...


@dataclass(frozen=True)
class Metric:
    """A metric: its name in tables, which way is up, and how texts are measured (None: it does not look at texts)."""

    label: str
    better: Literal["higher", "lower"]
    measure: Measurer | None
    digits: int = 2  # behind the point, where a person reads a score

    @property
    def needs_outputs(self) -> bool:
        """Whether something has to be decoded for it; what is made of losses looks at references alone."""
        return self.measure is not None


METRICS: dict[MetricName, Metric] = {
    "bleu": Metric("BLEU", "higher", partial(overlap, "bleu")),
    "chrf": Metric("chrF2", "higher", partial(overlap, "chrf")),
    "ter": Metric("TER", "lower", partial(overlap, "ter")),
    "exact": Metric("exact", "higher", exact_match),
    "wer": Metric("WER", "lower", partial(error_rate, "wer")),
    "cer": Metric("CER", "lower", partial(error_rate, "cer")),
    "perplexity": Metric("perplexity", "lower", None),
    "accuracy": Metric("accuracy", "higher", accuracy),
    "macro-f1": Metric("macro-F1", "higher", macro_f1),
    "token-accuracy": Metric("token accuracy", "higher", token_accuracy),
    "span-f1": Metric("span F1", "higher", span_f1),
    "rouge-1": Metric(ROUGE["rouge-1"], "higher", partial(rouge, "rouge-1")),
    "rouge-2": Metric(ROUGE["rouge-2"], "higher", partial(rouge, "rouge-2")),
    "rouge-l": Metric(ROUGE["rouge-l"], "higher", partial(rouge, "rouge-l")),
    "rouge-lsum": Metric(ROUGE["rouge-lsum"], "higher", partial(rouge, "rouge-lsum")),
    "bits-per-character": Metric("bits/char", "lower", None, digits=4),
    "masked-accuracy": Metric("masked accuracy", "higher", None),
}


def look_at_outputs(names: Iterable[MetricName]) -> bool:
    """Whether something has to be decoded for one of these metrics."""
    return any(METRICS[name].needs_outputs for name in names)


def check_outputs_wanted(names: Sequence[MetricName], asked: Mapping[str, Any]) -> None:
    """Refuse options about outputs that are set (not None) where no metric looks at outputs."""
    for option, value in asked.items():
        if value is not None and not look_at_outputs(names):
            raise ValueError(
                f"{option} is about outputs, and {', '.join(names)} looks at none; leave it out, or add a metric that "
                f"does (--metrics)"
            )


def measure(
    name: MetricName,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    section: Evaluation | None = None,
) -> Measurement:
    """Measure outputs against their references (one list per output, of any length from one up), sentence by sentence.

    Scores, intervals and significance tests all follow from a measurement. `section` says how BLEU and chrF cut texts.
    """
    if name not in METRICS:
        raise ValueError(f"there is no metric {name!r}; choose from {', '.join(METRICS)}")
    measurer = METRICS[name].measure
    if measurer is None:
        call = {"perplexity": "measure_perplexity", "bits-per-character": "measure_bits_per_character"}
        raise ValueError(
            f"{name} is made of log-probabilities, not of texts; call {call.get(name, 'measure_mended')} with those"
        )
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{plural(len(hypotheses), 'output')} and references for {len(references)}: "
            "each output needs its own list of references"
        )
    if not hypotheses:
        raise ValueError(f"there are no outputs, so there is no {METRICS[name].label} to compute")
    for number, several in enumerate(references, start=1):
        if isinstance(several, str):
            raise TypeError(f"the references of output {number} are a text; write a list of texts: [{several!r}]")
        if not several:
            raise ValueError(f"output {number} has no reference; leave it out or give it one")
    section = section or Evaluation()
    if name == "bleu":
        tokenize = resolved(section, chain.from_iterable(references))
        return overlap("bleu", hypotheses, references, lowercase=lowercase, tokenize=tokenize)
    if name == "chrf":
        return overlap("chrf", hypotheses, references, lowercase=lowercase, word_order=section.chrf_word_order)
    return measurer(hypotheses, references, lowercase=lowercase)


def score(
    name: MetricName,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    section: Evaluation | None = None,
    bootstrap: int = 1000,
    seed: int = 12345,
) -> Score:
    """Score outputs against their references (one list per output, of any length from one up).

    `bootstrap=0` leaves the interval out (nan), which is what a validation during training wants.
    """
    measured = measure(name, hypotheses, references, lowercase=lowercase, section=section)
    return measured.score(bootstrap=bootstrap, seed=seed)


def measure_perplexity(nll: ArrayLike, tokens: ArrayLike, *, copied: bool = False) -> Measurement:
    """Perplexity as a measurement, from the sum of negative log-likelihoods (nats) and the tokens of each sentence.

    `copied`: unknown words that stand in the source had to be named, where others need say no more than <unk>; so the
    two do not compare.
    """
    statistics = _losses(nll, tokens, "perplexity", "token", "its end mark")  # (N, 2)
    total, length = statistics.sum(axis=0)
    conditions = {"bs": None, "seed": None, "unit": "token", "base": "e"}
    conditions |= {"unknown": "copied" if copied else None, "version": f"sightline-{version()}"}
    return Measurement(
        name=METRICS["perplexity"].label,
        better="lower",
        statistics=statistics,
        values=_exponential,
        conditions=conditions,
        against=fingerprint("tokens", statistics[:, 1]),  # a tokenizer that cuts otherwise makes another perplexity
        detail=f"{total / length:.4f} nats per token, {plural(int(length), 'token')}",
    )


def measure_bits_per_character(nll: ArrayLike, characters: ArrayLike, *, text: str | None = None) -> Measurement:
    """Σ nll / ln 2 / Σ characters, from the sum of negative log-likelihoods (nats) and the characters of each row.

    What a language model needs to write down a character of the text, whatever it cuts the text into: unlike
    perplexities, those of models with different tokenizers compare, if they are of the same `text` (where it is not
    given, as many characters in each row have to do).
    """
    name: MetricName = "bits-per-character"
    statistics = _losses(nll, characters, name, "character", "its line end, if that is predicted too")  # (N, 2)
    total, length = statistics.sum(axis=0)
    conditions = {"bs": None, "seed": None, "unit": "character", "base": "2", "version": f"sightline-{version()}"}
    return Measurement(
        name=METRICS[name].label,
        better="lower",
        statistics=statistics,
        values=_bits,
        conditions=conditions,
        against=fingerprint("characters", statistics[:, 1]) if text is None else fingerprint("texts", [[text]]),
        digits=METRICS[name].digits,
        detail=f"{total / length:.4f} nats per character, {plural(int(length), 'character')}",
    )


def _losses(nll: ArrayLike, counts: ArrayLike, metric: MetricName, unit: str, least: str) -> Numbers:
    """Nats and the tokens or characters they are shared by, for each sentence: (N, 2)."""
    losses, lengths = np.asarray(nll, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    if losses.shape != lengths.shape or losses.ndim != 1:
        raise ValueError(f"nll {losses.shape} and {unit}s {lengths.shape} must be one number per sentence each")
    if not losses.size or lengths.min() < 1:
        raise ValueError(f"{metric} needs at least one sentence, and at least one {unit} in each ({least})")
    return np.stack([losses, lengths], axis=1)


def _bits(sums: Numbers) -> Numbers:
    result: Numbers = sums[:, 0] / math.log(2) / sums[:, 1]
    return result


def _exponential(sums: Numbers) -> Numbers:
    with np.errstate(over="ignore"):
        result: Numbers = np.exp(sums[:, 0] / sums[:, 1])
    return result
