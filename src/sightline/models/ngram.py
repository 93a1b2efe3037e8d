"""An n-gram language model over token ids, with interpolated modified Kneser–Ney smoothing or without smoothing.

Without smoothing, P(w | h) = count(hw) / count(h), which is 0 for unseen n-grams. After an unseen history, the longest
part of it that was seen takes its place. With smoothing, for a history h = w₁…w_{k−1}, h' = w₂…w_{k−1} the same without
its first word, and adjusted counts a(·),

    P(w | h) = (a(hw) − D(a(hw))) / Σ_v a(hv)  +  γ(h) P(w | h')
    γ(h)     = Σ_v D(a(hv)) / Σ_v a(hv)            (1 if nothing follows h)

The empty history backs off to the uniform distribution over all ids except `start`. At the highest order, and for
n-grams that begin with `start`, a is the count; elsewhere it is the number of distinct preceding words, N₁₊(• hw)
(Kneser and Ney 1995; for `start`, Heafield et al. 2013). Discounts are the modified ones of Chen and Goodman (1999),
for each order from n_j, the number of its n-grams with a = j:  Y = n₁ / (n₁ + 2n₂),
D(j) = j − (j + 1) Y n_{j+1} / n_j  for j = 1, 2 and 3 or more, D(0) = 0.

The n-grams of each order are a sorted array. An n-gram's number is its index there, its key the number of its first
k−1 words times V plus its last word: n-grams with the same history are adjacent, and a whole text needs one binary
search per order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.files import write_atomically
from sightline.layers.layout import Layout
from sightline.models.protocol import join_rows, select_hypotheses

Ids = Sequence[int] | NDArray[np.integer]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Smoothing = Literal["kneser-ney", "none"]

_NONE = -1  # number of an unseen n-gram
# For corpora too small or too regular to estimate discounts (the values of KenLM's `--discount_fallback`).
_FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)


class NgramError(ValueError):
    """An n-gram model cannot be trained, loaded or queried."""


@dataclass(frozen=True)
class _Order:
    """All N n-grams of one length; for length 1 all V ids, seen or not."""

    keys: Integers  # (N), ascending
    probability: Floats  # (N), of the last word after the others, smoothed
    weight: Floats  # (N), γ of the n-gram as a history

    def find(self, keys: Integers) -> Integers:
        """Numbers of the n-grams with these keys, _NONE for unseen ones."""
        if not self.keys.size:
            return np.full_like(keys, _NONE)
        places = np.searchsorted(self.keys, keys)
        places[places == self.keys.size] = 0
        return np.where(self.keys[places] == keys, places, _NONE)


@dataclass(frozen=True)
class NgramModel:
    """P(next id | up to `order` − 1 ids before it). Sequences are given without start and end, and end by `end`."""

    vocabulary_size: int
    start: int
    end: int
    _orders: tuple[_Order, ...]

    @property
    def order(self) -> int:
        """Length of the longest n-gram."""
        return len(self._orders)

    @classmethod
    def train(
        cls,
        sequences: Iterable[Ids],
        *,
        order: int,
        vocabulary_size: int,
        start: int,
        end: int,
        smoothing: Smoothing = "kneser-ney",
    ) -> NgramModel:
        """Count and smooth. The ids of all sequences are held in memory, and about 50 bytes for each n-gram."""
        if order < 1:
            raise NgramError(f"order is {order}, and an n-gram has at least one word; set it to 1 or more")
        _check_ends(vocabulary_size, start, end)
        stream, lengths = _stream(sequences, vocabulary_size, start, end)
        if not lengths:
            raise NgramError("there are no sequences to count n-grams in; give at least one")
        counts = _count(stream, order, vocabulary_size, start)
        estimate = {"kneser-ney": _smooth, "none": _relative_frequencies}[smoothing]
        return cls(vocabulary_size, start, end, estimate(counts, start))

    def log_probabilities(self, sequences: Iterable[Ids]) -> list[Floats]:
        """Log-probabilities (T + 1) of the ids of each sequence and of its end; −∞ if unseen and not smoothed."""
        stream, lengths = _stream(sequences, self.vocabulary_size, self.start, self.end)
        if not lengths:
            return []
        numbers = self._numbers(stream)
        probability = self._orders[0].probability[stream]
        for shorter, longer, histories, found in zip(
            self._orders, self._orders[1:], numbers, numbers[1:], strict=False
        ):
            before = _shifted(histories)
            known, seen = before != _NONE, found != _NONE
            probability[known] *= shorter.weight[before[known]]
            probability[seen] = longer.probability[found[seen]]
        with np.errstate(divide="ignore"):
            logs = np.log(probability[stream != self.start])
        return np.split(logs, np.cumsum(lengths)[:-1])

    def distribution(self, history: Ids) -> Floats:
        """The probability (V) of each next id; the history of a whole sequence begins with `start`."""
        recent = np.asarray(history, np.int64)[-self.order :]  # one more than needed is harmless, and never empty
        _check_ids(recent, self.vocabulary_size)
        probability = self._orders[0].probability.copy()
        if not recent.size:
            return probability
        for number, shorter, longer in zip(
            (int(found[-1]) for found in self._numbers(recent)), self._orders, self._orders[1:], strict=False
        ):
            if number == _NONE:  # then no longer history is known either
                break
            first = number * self.vocabulary_size
            low, high = np.searchsorted(longer.keys, (first, first + self.vocabulary_size))
            probability *= shorter.weight[number]
            probability[longer.keys[low:high] - first] = longer.probability[low:high]
        return probability

    def draw(self, generator: np.random.Generator, prompt: Ids = ()) -> Iterator[int]:
        """Sample ids after a prompt until `end`, which is not yielded."""
        history = [self.start, *(int(number) for number in prompt)]
        while True:
            probability = self.distribution(history[-self.order :])
            drawn = int(generator.choice(self.vocabulary_size, p=probability / probability.sum()))
            if drawn == self.end:
                return
            yield drawn
            history.append(drawn)

    def save(self, path: Path) -> None:
        """Write one safetensors file."""
        arrays: dict[str, NDArray[np.generic]] = {
            "ids": np.array([self.vocabulary_size, self.start, self.end], np.int64)
        }
        for length, grams in enumerate(self._orders, 1):
            arrays |= {
                f"{length}.keys": grams.keys,
                f"{length}.probability": grams.probability,
                f"{length}.weight": grams.weight,
            }
        write_atomically(path, safetensors.numpy.save(arrays))

    @classmethod
    def load(cls, path: Path) -> NgramModel:
        """Read what `save` wrote."""
        try:
            arrays = safetensors.numpy.load(path.read_bytes())
            size, start, end = (int(number) for number in arrays["ids"])
            _check_ends(size, start, end)
            orders: list[_Order] = []
            for length in range(1, 1 + sum(name.endswith(".keys") for name in arrays)):
                parts = [arrays[f"{length}.{part}"] for part in ("keys", "probability", "weight")]
                _check_order(parts, length, size * (orders[-1].keys.size if orders else 1))
                orders.append(_Order(*parts))
        except FileNotFoundError as error:
            raise NgramError(f"{path} does not exist; train the model, or check the name") from error
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise NgramError(f"{path} is no n-gram model, or damaged ({error}); train it again") from error
        if not orders or orders[0].keys.size != size:
            raise NgramError(f"{path} is no n-gram model: it does not hold all {size} ids; train it again")
        return cls(size, start, end, tuple(orders))

    def _numbers(self, stream: Integers) -> list[Integers]:
        """For each length the number of the n-gram that ends at each place of a stream (T)."""
        numbers = [stream]
        for grams in self._orders[1:]:
            before = _shifted(numbers[-1])
            reaches = (before != _NONE) & (stream != self.start)
            found = np.full_like(stream, _NONE)
            found[reaches] = grams.find(before[reaches] * self.vocabulary_size + stream[reaches])
            numbers.append(found)
        return numbers


@dataclass(frozen=True)
class _Counts:
    """The n-grams of one length with counts."""

    keys: Integers  # (N), ascending
    count: Integers  # (N)
    prefix: Integers  # (N), the number of all but the last word, among those one shorter
    suffix: Integers  # (N), the number of all but the first
    initial: NDArray[np.bool_]  # (N), True if it begins with start


def _count(stream: Integers, order: int, size: int, start: int) -> list[_Counts]:
    """Count the n-grams of each length in a stream where every sequence begins with start."""
    ids = np.arange(size, dtype=np.int64)
    none = np.zeros(size, np.int64)
    counts = [_Counts(ids, np.bincount(stream, minlength=size), none, none, ids == start)]
    numbers = stream
    for _ in range(1, order):
        before = _shifted(numbers)
        reaches = (before != _NONE) & (stream != start)
        keys, inverse, count = np.unique(
            before[reaches] * size + stream[reaches], return_inverse=True, return_counts=True
        )
        suffix = np.empty_like(keys)
        suffix[inverse] = numbers[reaches]
        prefix = keys // size
        counts.append(_Counts(keys, count, prefix, suffix, counts[-1].initial[prefix]))
        numbers = np.full_like(stream, _NONE)
        numbers[reaches] = inverse
    return counts


def _smooth(counts: list[_Counts], start: int) -> tuple[_Order, ...]:
    """From counts to probabilities, shortest first."""
    uniform = np.full(counts[0].keys.size, 1.0 / (counts[0].keys.size - 1))
    uniform[start] = 0.0
    orders: list[_Order] = []
    for place, grams in enumerate(counts):
        adjusted = grams.count
        if place + 1 < len(counts):
            preceded = np.bincount(counts[place + 1].suffix, minlength=adjusted.size)
            adjusted = np.where(grams.initial, adjusted, preceded)
        if place == 0:
            adjusted = np.where(grams.initial, 0, adjusted)  # start is a history, and never the next word
        discount = np.array([0.0, *_discounts(adjusted)])[np.minimum(adjusted, 3)]
        histories = orders[-1].keys.size if orders else 1
        total = np.bincount(grams.prefix, adjusted, histories)
        given_away = np.bincount(grams.prefix, discount, histories)
        weight: Floats = np.divide(given_away, total, out=np.ones(histories), where=total > 0)
        shorter = orders[-1].probability[grams.suffix] if orders else uniform
        probability = (adjusted - discount) / total[grams.prefix] + weight[grams.prefix] * shorter
        if orders:
            orders[-1] = _Order(orders[-1].keys, orders[-1].probability, weight)
        orders.append(_Order(grams.keys, probability, np.ones(grams.keys.size)))
    return tuple(orders)


def _relative_frequencies(counts: list[_Counts], start: int) -> tuple[_Order, ...]:
    """count(hw) / count(h), shortest first; after a history that was seen, shorter n-grams have no weight."""
    orders: list[_Order] = []
    for grams in counts:
        count = grams.count if orders else np.where(grams.initial, 0, grams.count)  # start is never the next word
        histories = orders[-1].keys.size if orders else 1
        total = np.bincount(grams.prefix, count, histories)
        if orders:
            orders[-1] = replace(orders[-1], weight=np.where(total > 0, 0.0, 1.0))
        orders.append(_Order(grams.keys, count / total[grams.prefix], np.ones(grams.keys.size)))
    return tuple(orders)


def _discounts(adjusted: Integers) -> tuple[float, float, float]:
    """D(1), D(2) and D(3 or more) of one order."""
    n1, n2, n3, n4 = (int((adjusted == j).sum()) for j in range(1, 5))
    if not (n1 and n2 and n3 and n4):  # n₄ = 0 would take all of a count of 3
        return _FALLBACK_DISCOUNTS
    y = n1 / (n1 + 2 * n2)
    estimated = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    # None above its count by the formula; one of zero or less would leave no room for what was never seen.
    return estimated if min(estimated) > 0 else _FALLBACK_DISCOUNTS


def _shifted(numbers: Integers) -> Integers:
    """Values shifted right by one position."""
    return np.concatenate(([_NONE], numbers[:-1]))


def _stream(sequences: Iterable[Ids], size: int, start: int, end: int) -> tuple[Integers, list[int]]:
    """All sequences in a row, each between start and end, and how many ids to predict there are in each."""
    inner = [np.asarray(sequence, np.int64) for sequence in sequences]
    for number, sequence in enumerate(inner, 1):
        try:
            _check_ids(sequence, size)
            if (sequence == start).any():
                raise NgramError(f"id {start} is start, which only comes before a sequence; leave it out")
        except NgramError as error:
            raise NgramError(f"sequence {number:,}: {error}") from error
    first, last = np.array([start]), np.array([end])
    parts = list(chain.from_iterable((first, sequence, last) for sequence in inner))
    stream = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return stream, [sequence.size + 1 for sequence in inner]


def _check_ids(ids: Integers, size: int) -> None:
    if ids.ndim != 1:
        raise NgramError(f"ids of shape {ids.shape} are no sequence; give one dimension")
    wrong = ids[(ids < 0) | (ids >= size)]
    if wrong.size:
        raise NgramError(f"id {wrong[0]} is not in the vocabulary of {size:,}; encode with the model's own tokenizer")


def _check_ends(size: int, start: int, end: int) -> None:
    if start == end or not (0 <= start < size and 0 <= end < size):
        raise NgramError(
            f"start ({start}) and end ({end}) must be two different ids below the vocabulary size ({size})"
        )


def _check_order(parts: list[NDArray[np.generic]], length: int, limit: int) -> None:
    """Return True if arrays of a file can be an order; damaged files then fail when they are loaded."""
    keys = parts[0]
    whole = keys.dtype == np.int64 and all(part.dtype == np.float64 for part in parts[1:])
    if not whole or any(part.shape != (keys.size,) for part in parts):
        raise NgramError(f"the arrays of the {length}-grams do not go together")
    if keys.size and not (keys[0] >= 0 and keys[-1] < limit and (keys[1:] > keys[:-1]).all()):
        raise NgramError(f"the {length}-grams are not in order")


@dataclass(frozen=True)
class NgramState:
    """The last tokens of each hypothesis."""

    recent: Tensor  # (B, W, t), −1 before the first token

    def select(self, parents: Tensor) -> NgramState:
        return NgramState(select_hypotheses(self.recent, parents))

    def keep(self, sentences: Tensor) -> NgramState:
        return NgramState(self.recent.index_select(0, sentences))

    def append(self, other: NgramState) -> NgramState:
        both = join_rows(self.recent.flip(2), other.recent.flip(2), dim=2, fill=_NONE)  # padded before the first token
        return NgramState(both.flip(2))


class CountedModel(nn.Module):
    """p(text) from counts. Features are log-probabilities; there are no parameters."""

    def __init__(self, counts: NgramModel | None = None) -> None:
        super().__init__()
        self.counts = counts
        self.cross_attention_paths: tuple[str, ...] = ()
        self.longest: int | None = None

    @property
    def trained(self) -> NgramModel:
        """The counts; raises a ValueError before training."""
        if self.counts is None:
            raise ValueError("this n-gram model has not been counted yet; train it first")
        return self.counts

    def encode(self, source: Tensor, layout: Layout) -> Tensor:
        return source

    def begin(self, memory: Tensor) -> NgramState:
        return self.begin_empty(len(memory), memory.device)

    def begin_empty(self, batch: int, device: torch.device | str = "cpu") -> NgramState:
        """The state before the first token of a batch of texts."""
        return NgramState(torch.empty(batch, 1, 0, dtype=torch.int64, device=device))

    def advance(self, tokens: Tensor, state: NgramState, layout: Layout | None = None) -> tuple[Tensor, NgramState]:
        """Tokens (B·W, T) → log-probabilities (B·W, T, V) of the next tokens."""
        sentences, width = state.recent.shape[:2]
        past = torch.cat([state.recent.flatten(0, 1), tokens], dim=1)
        order, ends = self.trained.order, range(state.recent.shape[2] + 1, past.shape[1] + 1)
        said = past.cpu().numpy()
        rows = [
            [
                self.trained.distribution(recent[recent != _NONE])
                for recent in (row[max(0, end - order) : end] for end in ends)
            ]
            for row in said
        ]
        with np.errstate(divide="ignore"):
            features = torch.from_numpy(np.log(np.asarray(rows, np.float32))).to(tokens.device)
        recent = past[:, -order:].unflatten(0, (sentences, width))
        return features, NgramState(recent)

    def logits(self, features: Tensor) -> Tensor:
        return features

    def forward(self, *_: Any) -> Tensor:
        raise TypeError("an n-gram model is counted, not trained by gradients")
