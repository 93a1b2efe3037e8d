"""Perplexity and bits per character: metrics of the likelihood that models assign to a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sightline.evaluation.measurement import Measurement, Metric, Numbers, References, Texts, fingerprint
from sightline.recipe import MetricName
from sightline.registry import version
from sightline.terminal import plural
from sightline.text.tokenizer import END, UNK, Tokenizer

WINDOW = 256  # tokens or characters of a text that bootstrap and tests of language models draw together


class LikelihoodMetric(Metric):
    """A metric of log-probabilities that a model assigns to the references; nothing is decoded for it."""

    needs = frozenset({"likelihoods"})
    function: ClassVar[str]  # that measures it

    def score(self, hypotheses: Texts, references: References, sources: Texts | None = None) -> Measurement:
        raise ValueError(f"{self.name} is computed from log-probabilities, not texts; call {self.function} with them")


class Perplexity(LikelihoodMetric):
    """exp of the mean negative log-likelihood of a token."""

    name = "perplexity"
    higher_is_better = False
    function = "measure_perplexity"


class BitsPerCharacter(LikelihoodMetric):
    """Negative log-likelihood in bits per character of the text, however it is tokenized."""

    name = "bits/char"
    higher_is_better = False
    digits = 4
    function = "measure_bits_per_character"


class MaskedAccuracy(LikelihoodMetric):
    """Percentage of masked tokens that the model predicts correctly."""

    name = "masked accuracy"
    function = "measure_denoising"


def measure_perplexity(nll: ArrayLike, tokens: ArrayLike, *, copied: bool = False) -> Measurement:
    """Perplexity from the sum of negative log-likelihoods (nats) and the number of tokens of each sentence.

    `copied`: unknown words of the source had to be predicted by copying, where other models only predict <unk>. The two
    do not compare, and their signatures differ.
    """
    statistics = _losses(nll, tokens, "perplexity", "token", "its end mark")  # (N, 2)
    total, length = statistics.sum(axis=0)
    conditions = {"bs": None, "seed": None, "unit": "token", "base": "e"}
    return Perplexity().measurement(
        statistics,
        _exp_mean,
        conditions=conditions | {"unknown": "copied" if copied else None, "version": f"sightline-{version()}"},
        against=fingerprint("tokens", statistics[:, 1]),  # another tokenizer makes another perplexity
        detail=f"{total / length:.4f} nats per token, {plural(int(length), 'token')}",
    )


def measure_bits_per_character(nll: ArrayLike, characters: ArrayLike, *, text: str | None = None) -> Measurement:
    """Σ nll / ln 2 / Σ characters, from the sum of negative log-likelihoods (nats) and the characters of each row.

    Unlike perplexities, values of models with different tokenizers compare if they are of the same `text` (if it is not
    given, of rows with the same numbers of characters).
    """
    least = "its line end, if that is predicted too"
    statistics = _losses(nll, characters, "bits-per-character", "character", least)  # (N, 2)
    total, length = statistics.sum(axis=0)
    return BitsPerCharacter().measurement(
        statistics,
        _bits,
        conditions={"bs": None, "seed": None, "unit": "character", "base": "2", "version": f"sightline-{version()}"},
        against=fingerprint("characters", statistics[:, 1]) if text is None else fingerprint("texts", [[text]]),
        detail=f"{total / length:.4f} nats per character, {plural(int(length), 'character')}",
    )


def _losses(nll: ArrayLike, counts: ArrayLike, metric: MetricName, unit: str, least: str) -> Numbers:
    """(N, 2) nats of each sentence and the number of its tokens or characters."""
    losses, lengths = np.asarray(nll, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    if losses.shape != lengths.shape or losses.ndim != 1:
        raise ValueError(f"nll {losses.shape} and {unit}s {lengths.shape} must be one number per sentence each")
    if not losses.size or lengths.min() < 1:
        raise ValueError(f"{metric} needs at least one sentence, and at least one {unit} in each ({least})")
    return np.stack([losses, lengths], axis=1)


def _bits(sums: Numbers) -> Numbers:
    result: Numbers = sums[:, 0] / math.log(2) / sums[:, 1]
    return result


def _exp_mean(sums: Numbers) -> Numbers:
    with np.errstate(over="ignore"):
        result: Numbers = np.exp(sums[:, 0] / sums[:, 1])
    return result


# --- language models ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextLikelihood:
    """A text with the negative log-likelihood of each token by a language model."""

    text: str  # the documents as the tokenizer sees them, a newline for each end mark
    stream: np.ndarray  # (T,) ids with end marks
    nll: np.ndarray  # (T,)
    ends: np.ndarray  # (T,) where in the text each token ends

    @property
    def unknown(self) -> int:
        """The number of <unk> tokens."""
        return int((self.stream == UNK).sum())


def text_likelihood(
    documents: Sequence[str], tokenizer: Tokenizer, losses: Callable[[np.ndarray], np.ndarray]
) -> TextLikelihood:
    """Tokenize documents and compute the `losses` of the joined stream of ids."""
    if not documents:
        raise ValueError("there are only blank lines; give a file with text")
    streams = [np.asarray([*tokens, END]) for tokens in tokenizer.encode_many(documents)]
    plain = [tokenizer.normalize(text) + "\n" for text in documents]
    starts = np.cumsum([0, *map(len, plain)])
    ends = [start + _token_ends(ids, text, tokenizer) for start, ids, text in zip(starts, streams, plain, strict=False)]
    joined = np.concatenate(streams)
    return TextLikelihood("".join(plain), joined, losses(joined), np.concatenate(ends))


def _token_ends(ids: np.ndarray, text: str, tokenizer: Tokenizer) -> np.ndarray:
    """Where each token ends in a text whose last character is the end mark.

    From the lengths of the pieces, scaled to the length of the text: unknown pieces and the space before the first word
    are written differently in the text.
    """
    known, places = np.unique(ids[:-1], return_inverse=True)
    lengths = np.asarray([len(piece) for piece in tokenizer.pieces(known.tolist())], np.int64)
    ends = np.cumsum(lengths[places])
    scaled = ends * ((len(text) - 1) / ends[-1]) if len(ends) else ends
    return np.append(scaled, len(text))


def measure_text(metric: MetricName, likelihood: TextLikelihood) -> Measurement:
    """Perplexity or bits per character in windows of the text.

    Windows do not depend on the recipe: models with different contexts have the same windows, and in characters so do
    models with different tokenizers.
    """
    if metric == "perplexity":
        parts = np.split(likelihood.nll, np.arange(WINDOW, len(likelihood.stream), WINDOW))
        return measure_perplexity([float(part.sum()) for part in parts], [len(part) for part in parts])
    count = -(-len(likelihood.text) // WINDOW)
    last = np.ceil(likelihood.ends).astype(np.int64) - 1  # the last character of each token
    nll = np.bincount(np.minimum(last // WINDOW, count - 1), likelihood.nll, minlength=count)
    characters = np.diff([*range(0, len(likelihood.text), WINDOW), len(likelihood.text)])
    return measure_bits_per_character(nll, characters, text=likelihood.text)
