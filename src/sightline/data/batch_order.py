"""Batch order: which examples form a batch, as pure functions of lengths, seed and epoch.

A position in a training run is two numbers (epoch, batch), and a resumed run meets the same batches as one that was
never interrupted. Lengths are tokens without specials; each side of an example takes one more position in a batch, for
its end (or start) token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer]
Indices = NDArray[np.int64]

_ORDER, _TIES, _BATCHES, _PARTS = range(4)  # streams of random numbers
_OPEN = 24  # unfinished batches to which packing can add


def order(origin: Integers, weights: Sequence[float], *, seed: int, epoch: int) -> Indices:
    """The examples of an epoch in random order; examples of source i occur weights[i] times.

    With a weight of 2.25 all examples occur twice, and a quarter of them once more: a different quarter in each epoch,
    so that after four epochs each example was seen nine times.
    """
    chosen = []
    for number, weight in enumerate(weights):
        members = np.flatnonzero(origin == number)
        whole = int(weight)
        chosen += [members] * whole
        part = (weight - whole) * len(members)
        start, stop = round(part * epoch), round(part * (epoch + 1))
        if stop > start:
            turns = members[shuffled(len(members), _PARTS, number, seed)]
            chosen.append(turns[np.arange(start, stop) % len(members)])
    examples = np.concatenate(chosen) if chosen else np.empty(0, np.int64)
    return examples[shuffled(len(examples), _ORDER, seed, epoch)]


def padded_batches(
    source_lengths: Integers,
    target_lengths: Integers,
    *,
    tokens: int,
    seed: int,
    epoch: int,
    examples: Indices | None = None,
) -> list[Indices]:
    """Batches of examples of similar lengths: size times longest side, with end tokens, is at most `tokens`.

    `examples` is the epoch's `order` (by default every example once). Both sides matter for padding, so examples are
    sorted into stripes by target length and, inside a stripe, by source length, ascending and descending in turn, so
    that neighbours are similar. Equal examples are in random order, and so are the batches.
    """
    examples, source, target = _chosen(source_lengths, target_lengths, tokens, examples)
    if not len(examples):
        return []
    examples_in_line, stops = _best_line(source, target, tokens, random_numbers(len(examples), _TIES, seed, epoch))
    batches = np.split(examples[examples_in_line], stops[:-1])
    return [batches[number] for number in shuffled(len(batches), _BATCHES, seed, epoch)]


def packed_batches(
    source_lengths: Integers,
    target_lengths: Integers,
    *,
    tokens: int,
    seed: int,
    epoch: int,
    longest_batch: int | None = None,
    examples: Indices | None = None,
) -> list[Indices]:
    """Batches without padding: each side of a batch, with end tokens, sums to at most `tokens`.

    A batch has at most `longest_batch` examples. In random order, each example is added to the first of a few
    unfinished batches with enough room on both sides, so batches are nearly full and as mixed as the corpus.
    """
    examples, source, target = _chosen(source_lengths, target_lengths, tokens, examples)
    line = shuffled(len(examples), _TIES, seed, epoch)
    most = longest_batch or len(examples)
    done: list[list[int]] = []
    open_: list[_Bin] = []
    for at, left, right in zip(line.tolist(), source[line].tolist(), target[line].tolist(), strict=True):
        for bin_ in open_:
            if bin_.source >= left and bin_.target >= right:
                break
        else:
            if len(open_) == _OPEN:
                done.append(open_.pop(0).members)
            bin_ = _Bin(tokens)
            open_.append(bin_)
        bin_.source -= left
        bin_.target -= right
        bin_.members.append(at)
        if len(bin_.members) == most or bin_.source < 2 or bin_.target < 2:
            open_.remove(bin_)
            done.append(bin_.members)
    done += [bin_.members for bin_ in open_]
    return [examples[done[number]] for number in shuffled(len(done), _BATCHES, seed, epoch)]


def padding_waste(batches: Sequence[Indices], source_lengths: Integers, target_lengths: Integers) -> float:
    """The share of padding among all positions of padded batches."""
    places = used = 0
    for batch in batches:
        for lengths in (source_lengths, target_lengths):
            side = lengths[batch].astype(np.int64) + 1
            places += len(side) * int(side.max())
            used += int(side.sum())
    return 1 - used / places if places else 0.0


def packing_waste(
    batches: Sequence[Indices], source_lengths: Integers, target_lengths: Integers, *, tokens: int
) -> float:
    """The share of unused positions of packed batches of `tokens` on each side."""
    sides = (source_lengths, target_lengths)
    used = sum(int(lengths[batch].sum()) + len(batch) for batch in batches for lengths in sides)
    return 1 - used / (2 * tokens * len(batches)) if batches else 0.0


class _Bin:
    """A batch that is being packed: the room left on each side, and its examples."""

    __slots__ = ("members", "source", "target")

    def __init__(self, tokens: int) -> None:
        self.source = self.target = tokens
        self.members: list[int] = []


def _chosen(
    source_lengths: Integers, target_lengths: Integers, tokens: int, examples: Indices | None
) -> tuple[Indices, Indices, Indices]:
    """The examples, and the positions that each needs on either side; an error if one does not fit into a batch."""
    if examples is None:
        examples = np.arange(len(source_lengths))
    source = source_lengths[examples].astype(np.int64) + 1
    target = target_lengths[examples].astype(np.int64) + 1
    longest = np.maximum(source, target)
    if len(examples) and longest.max() > tokens:
        worst = int(np.argmax(longest))
        raise ValueError(
            f"example {examples[worst]} takes {longest[worst]} places, and a batch has {tokens}; give more"
        )
    return examples, source, target


def _best_line(source: Indices, target: Indices, tokens: int, ties: NDArray[np.uint64]) -> tuple[Indices, list[int]]:
    """The order of examples and the ends of batches: of a few stripe widths, the one with the least padding."""
    best: tuple[int, Indices, list[int]] | None = None
    worse = 0
    for width in (1, 2, 3, 4, 6, 8, 12, 16):
        stripe = target // width
        up_and_down = np.where(stripe % 2 == 0, source, -source)
        line = np.lexsort((ties, up_and_down, stripe))
        stops, places = _cut(source[line], target[line], tokens)
        if best is None or places < best[0]:
            best, worse = (places, line, stops), 0
        else:
            worse += 1
        if worse == 2:
            break  # padding falls with the width and then rises, but not smoothly
    assert best is not None
    return best[1:]


def _cut(source: Indices, target: Indices, tokens: int) -> tuple[list[int], int]:
    """The ends of batches that are as large as possible, in this order of examples, and the positions they need."""
    stops = []
    places = 0
    start = left = right = 0
    for at, (s, t) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        wider, taller = max(left, s), max(right, t)
        if max(wider, taller) * (at + 1 - start) > tokens:
            stops.append(at)
            places += (left + right) * (at - start)
            start, wider, taller = at, s, t
        left, right = wider, taller
    stops.append(len(source))
    return stops, places + (left + right) * (len(source) - start)


def random_numbers(count: int, *key: int) -> NDArray[np.uint64]:
    """Random numbers as a pure function of the key (raw output, which NumPy guarantees never to change)."""
    return np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)


def shuffled(count: int, *key: int) -> Indices:
    """A permutation of range(count) as a pure function of the key."""
    return np.argsort(random_numbers(count, *key), kind="stable")
