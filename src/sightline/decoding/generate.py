"""Decode any number of sentences: batched, sorted by length inside, order restored outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from sightline.decoding.batch import Batch, Heard, Hypothesis, Stepper, Watch
from sightline.decoding.ensemble import rooms
from sightline.decoding.rules import Demands, Edges, Forbidden, Required, Rules
from sightline.decoding.search import search
from sightline.layers.layout import Padded
from sightline.layers.tap import TapModule
from sightline.recipe import Decoding
from sightline.text.tokenizer import END, PAD

Item = TypeVar("Item")
_FEW = 32  # the last of so many sentences of a batch, if they run on, are decoded again with the last of others: a step
# for two costs as much as a step for fifty, since all weights are read
_ROWS = 8  # so many rows are hardly worth a step, however small the batch was


@dataclass(frozen=True)
class Constraints:
    """What is asked of each output."""

    demands: Sequence[Demands]
    edges: Edges
    numbers: Sequence[int]  # which sentence of the whole input each is

    def take(self, indices: Sequence[int]) -> Constraints:
        """The same for some of the sentences."""
        return Constraints([self.demands[index] for index in indices], self.edges, self.numbers_of(indices))

    def numbers_of(self, indices: Sequence[int]) -> list[int]:
        return [self.numbers[index] for index in indices]


def pad_tokens(sequences: Sequence[Sequence[int]], device: torch.device | str) -> Tensor:
    """(B, longest), PAD behind shorter ones."""
    longest = max(len(sequence) for sequence in sequences)
    rows = [list(sequence) + [PAD] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64).to(device)


def length_batches(lengths: Sequence[int], tokens: int, threads: int = 1) -> list[list[int]]:
    """Indices in batches of at most so many padded tokens, longest sentences first.

    Several batches are made a multiple of `threads`, as even as can be.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches = _cut(order, lengths, tokens)
    wanted = -(-len(batches) // threads) * threads
    if len(batches) > 1:
        low, high = 0, tokens  # the smallest budget that gives no more batches
        while high - low > max(1, tokens // 64):
            middle = (low + high) // 2
            if len(_cut(order, lengths, middle)) <= wanted:
                high = middle
            else:
                low = middle
        batches = _cut(order, lengths, high)
    return batches


def _cut(order: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for index in order:
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def make_batch(
    sources: Sequence[Sequence[int]] | None,
    options: Decoding,
    device: torch.device | str,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    numbers: Sequence[int] = (),
    limits_of: Sequence[tuple[int, bool]] = (),
    few: int = 0,
    constraints: Constraints | None = None,
    marks: int = 0,
    scored: bool = True,
) -> Batch:
    """Sources (without end marks) as one batch to search; no output is longer than `limits_of` the model (see `rooms`).

    Without sources it is the prefixes that are gone on with, by up to `max_length` tokens and an end mark. What must be
    said, or must be so long, may go beyond `max_ratio`, never beyond `max_length`.
    """
    begun = prefixes if prefixes is not None else [[] for _ in sources or ()]
    rows = [[END] for _ in begun] if sources is None else [[*source, END] for source in sources]
    if sources is None:
        limits = [len(prefix) + options.max_length + 1 for prefix in begun]
    else:
        least = [options.min_length + 1] * len(rows)
        if constraints is not None:
            pairs = zip(constraints.demands, begun, strict=True)
            least = [max(options.min_length, each.room() + len(prefix)) + 1 for each, prefix in pairs]
        wanted = [max(int(options.max_ratio * len(row)) + 10, floor) for row, floor in zip(rows, least, strict=True)]
        limits = [min(options.max_length, limit) for limit in wanted]
    for longest, in_one in limits_of:
        limits = [min(limit, longest - in_one * len(row)) for limit, row in zip(limits, rows, strict=True)]
    forced = None
    if any(begun):
        forced = pad_tokens(begun, device)
        limits = [max(limit, len(prefix) + 1) for limit, prefix in zip(limits, begun, strict=True)]
    return Batch(
        pad_tokens(rows, device),
        Padded.of([len(row) for row in rows], device),
        torch.tensor(limits, device=device),
        min(limits),
        forced,
        tuple(numbers),
        few,
        _rules(options, begun if sources is None else [[] for _ in begun], constraints, device),
        marks,
        scored,
    )


def _rules(
    options: Decoding,
    given: Sequence[Sequence[int]],
    constraints: Constraints | None,
    device: torch.device | str,
) -> Rules | None:
    """What the outputs must keep to, or None where all is free; `given` is what is no part of an output's length."""
    forbidden = required = shortest = None
    if constraints is not None:
        forbidden = Forbidden.of(constraints.demands, constraints.edges, device)
        required = Required.of(constraints.demands, constraints.edges, device)
    if options.min_length:
        shortest = torch.tensor([len(each) + options.min_length for each in given], device=device)
    if shortest is None and not options.no_repeat and forbidden is None and required is None:
        return None
    return Rules(shortest, options.no_repeat, forbidden, required)


def generate(
    model: Stepper,
    sources: Sequence[Sequence[int]] | None,
    options: Decoding,
    *,
    device: torch.device | str = "cpu",
    prefixes: Sequence[Sequence[int]] | None = None,
    first: int = 0,
    heard: Heard | None = None,
    watch: Watch | None = None,
    constraints: Constraints | None = None,
    marks: int = 0,
    scored: bool = True,
) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first, in the order of the sources; without sources, of each prefix.

    `first` is the number of the first sentence in the whole input, so that sampling does not depend on how the input
    is cut into calls. Nothing is decoded for an empty source: its output is the empty hypothesis. `heard` is told every
    token as it comes (see `walk`), `watch` of every step of a beam, where there is but one sentence. What
    `constraints` require is in every hypothesis; a sentence where that cannot be has none. The first `marks` ids behind
    the specials are in none. Where nobody wants to know how probable outputs are (`scored`), greedy search is spared
    the softmax over the vocabulary: the same words, with NaN for scores.
    """
    asked = sources if sources is not None else prefixes or []
    if (heard is not None or watch is not None) and len(asked) != 1:
        raise ValueError(f"only one sentence can be heard at a time, not {len(asked)}; decode them one by one")
    results: list[list[Hypothesis]] = [[Hypothesis([], 0.0, 0.0)] for _ in asked]
    filled = [index for index, text in enumerate(asked) if len(text) or sources is None]
    late: list[int] = []  # sentences given up as the last of their batches

    def decode(indices: list[int], few: int) -> None:
        batch = make_batch(
            None if sources is None else [sources[index] for index in indices],
            options,
            device,
            prefixes=None if prefixes is None else [prefixes[index] for index in indices],
            numbers=[first + index for index in indices] if constraints is None else constraints.numbers_of(indices),
            limits_of=rooms(model),
            few=few,
            constraints=None if constraints is None else constraints.take(indices),
            marks=marks,
            scored=scored,
        )
        for index, hypotheses in zip(indices, search(model, batch, options, heard, watch), strict=True):
            results[index] = hypotheses
            if not hypotheses and few:
                late.append(index)

    width = options.nbest if options.sample is not None else options.beam
    lengths = [len(asked[index]) + 1 for index in filled]
    budget, threads = max(1, options.batch_tokens // width), _threads(model, device, options)
    batches = [[filled[place] for place in places] for places in length_batches(lengths, budget, threads)]
    patient = len(batches) - threads + 1 if len(batches) > 1 else 0  # the last batches have nobody to give theirs to

    def work(number: int) -> None:
        if number < len(batches):
            decode(batches[number], few_of(len(batches[number]), width) if number < patient else 0)
        elif late:
            decode([late.pop() for _ in range(len(late))], 0)

    side_by_side(work, range(len(batches) + 1), threads=min(threads, len(batches)))
    work(len(batches))  # what a batch that took longer than all after it gave up
    return results


def few_of(sentences: int, width: int) -> int:
    """How many sentences are given up as the last of a batch of so many, with `width` hypotheses each."""
    return max(sentences // _FEW, min(_ROWS // width, sentences // 8))


def _threads(model: Stepper, device: torch.device | str, options: Decoding) -> int:
    """How many batches to decode at a time, at most.

    A step of a search is many small operations. On the CPU, cores that share each of them wait for one another most of
    the time; cores with a batch each do not. Who listens to the model (the coverage penalty does, and whoever records)
    must hear one batch at a time.
    """
    heard = isinstance(model, nn.Module) and any(isinstance(m, TapModule) and m.heard for m in model.modules())
    if torch.device(device).type != "cpu" or options.coverage_penalty or heard:
        return 1
    return torch.get_num_threads()


def side_by_side(work: Callable[[Item], None], items: Sequence[Item], *, threads: int) -> None:
    """Do all the work in so many threads, each with one core; after an error (or Ctrl-C) no more is begun."""
    if threads <= 1:
        for item in items:
            work(item)
        return
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for future in [pool.submit(work, item) for item in items]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
