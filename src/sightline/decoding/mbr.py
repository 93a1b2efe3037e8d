"""Minimum Bayes risk decoding: choose the output with the highest expected utility.

The expected utility of an output y is Σ_i w_i u(y, y_i) over outputs y_i of the model. Samples have equal weights, as
likely outputs are drawn more often (Eikema and Aziz 2020); outputs of a beam have equal weights or are weighted by
probability (Kumar and Byrne 2004). All pairs are compared at once: counts of shared n-grams are a matrix product.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from sightline.recipe.decoding import Evaluation
from sightline.text.bleu_tokenizers import bleu_tokenizer, resolved

_CHARACTERS, _WORDS = 6, 4  # the longest n-grams of chrF and of BLEU
_BETA = 2  # weight of recall relative to precision in chrF
_PUNCTUATION = frozenset(string.punctuation)


def shared_ngrams(sequences: Sequence[Sequence[str] | str], order: int) -> np.ndarray:
    """(U, U) number of n-grams of one order that two sequences share: Σ_g min(count_i(g), count_j(g)).

    Each occurrence is a column: the second "ab" of a text matches the second of another, so min becomes a product.
    """
    columns: dict[tuple[Sequence[str] | str, int], int] = {}
    rows, places = list[int](), list[int]()
    for row, sequence in enumerate(sequences):
        counts = Counter[Sequence[str] | str]()
        for start in range(len(sequence) - order + 1):
            gram = sequence[start : start + order]
            counts[gram] += 1
            rows.append(row)
            places.append(columns.setdefault((gram, counts[gram]), len(columns)))
    table = np.zeros((len(sequences), max(1, len(columns))), np.float32)
    table[rows, places] = 1.0
    shared: np.ndarray = (table @ table.T).astype(np.float64)
    return shared


def _words(text: str) -> tuple[str, ...]:
    """Words with one punctuation mark at an end separated, as in chrF++."""
    words = list[str]()
    for word in text.split():
        if len(word) > 1 and word[-1] in _PUNCTUATION:
            words += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in _PUNCTUATION:
            words += [word[0], word[1:]]
        else:
            words.append(word)
    return tuple(words)


def chrf(texts: Sequence[str], section: Evaluation | None = None) -> np.ndarray:
    """(U, U) sentence chrF of each text (rows) against each as the reference (columns), as in sacreBLEU."""
    word_order = 0 if section is None else section.chrf_word_order
    characters, words = ["".join(text.split()) for text in texts], [_words(text) for text in texts]
    precision, recall = np.zeros((len(texts),) * 2), np.zeros((len(texts),) * 2)
    orders = np.zeros_like(precision)
    cuts: list[tuple[Sequence[Sequence[str] | str], int]] = [(characters, n) for n in range(1, _CHARACTERS + 1)]
    for plain, order in [*cuts, *((words, n) for n in range(1, word_order + 1))]:
        shared = shared_ngrams(plain, order)
        totals = np.maximum(np.array([len(text) for text in plain], np.float64) - order + 1, 0.0)
        both = (totals[:, None] > 0) & (totals[None] > 0)
        precision += np.where(both, shared / np.maximum(totals[:, None], 1), 0.0)
        recall += np.where(both, shared / np.maximum(totals[None], 1), 0.0)
        orders += both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    weighted = _BETA**2 * precision + recall
    return 100 * (1 + _BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1.0)


def bleu(texts: Sequence[str], section: Evaluation | None = None) -> np.ndarray:
    """(U, U) sentence BLEU of each text (rows) against each as the reference, as in sacreBLEU.

    Words are those of its tokenizer (`auto`: by the script of these texts). Only orders that a text has count; matches
    of zero are smoothed to 1/2, 1/4, …
    """
    tokenize = bleu_tokenizer(resolved(section or Evaluation(), texts))
    words = [tuple(tokenize(text.rstrip()).split()) for text in texts]
    lengths = np.array([len(each) for each in words], np.float64)
    logs, orders = np.zeros((len(texts),) * 2), np.zeros((len(texts),) * 2)
    halves, matched = np.ones_like(logs), np.zeros(logs.shape, bool)
    for order in range(1, _WORDS + 1):
        shared = shared_ngrams(words, order)
        totals = np.maximum(lengths - order + 1, 0.0)[:, None]
        present, none = totals > 0, shared == 0
        halves = np.where(present & none, 2 * halves, halves)
        counts = np.where(none, 1 / halves, shared)
        logs += np.where(present, np.log(100 * counts / np.maximum(totals, 1)), 0.0)
        orders += present
        matched |= ~none
    with np.errstate(over="ignore"):
        brevity = np.exp(np.minimum(0.0, 1 - lengths[None] / np.maximum(lengths[:, None], 1e-9)))
    return np.where(matched, brevity * np.exp(logs / np.maximum(orders, 1)), 0.0)


UTILITIES: dict[str, Callable[..., np.ndarray]] = {"chrf": chrf, "bleu": bleu}


def least_risk(
    texts: Sequence[str],
    utility: Callable[[Sequence[str]], np.ndarray],
    log_probabilities: Sequence[float] | None = None,
) -> list[tuple[int, float]]:
    """Index and expected utility of each distinct output of one sentence, highest utility first.

    `utility` compares U texts: (U, U), each row against all as references. Without log-probabilities each of the N
    outputs is compared with the rest: Σ_{j ≠ i} u(y_i, y_j) / (N − 1); with them, with all including itself:
    Σ_j p_j u(y_i, y_j), p_j = exp(l_j) / Σ_k exp(l_k). Repeated texts count as often as they occur.
    """
    places = {text: place for place, text in reversed(list(enumerate(texts)))}  # index of the first occurrence
    different = sorted(places, key=places.__getitem__)
    pairs = utility(different)
    same = np.array([[text == other for other in texts] for text in different], np.float64)  # (U, N)
    if log_probabilities is None:
        expected = (pairs @ same.sum(1) - np.diag(pairs)) / max(1, len(texts) - 1)
    else:
        logs = np.asarray(log_probabilities, np.float64)
        expected = pairs @ (same @ np.exp(logs - np.logaddexp.reduce(logs)))
    order = np.argsort(-expected.round(9), kind="stable")
    return [(places[different[place]], float(expected[place])) for place in order]
