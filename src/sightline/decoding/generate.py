"""Decode any number of sentences: batched, sorted by length inside, order restored outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sightline.decoding.search import Batch, Hypothesis, Stepper, search
from sightline.layers.layout import Padded
from sightline.recipe import Decoding
from sightline.text.tokenizer import END, PAD


def pad_tokens(sequences: Sequence[Sequence[int]], device: torch.device | str) -> Tensor:
    """(B, longest), PAD behind shorter ones."""
    longest = max(len(sequence) for sequence in sequences)
    rows = [list(sequence) + [PAD] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64).to(device)


def length_batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Indices in batches of at most so many padded tokens, longest sentences first."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def make_batch(
    sources: Sequence[Sequence[int]],
    options: Decoding,
    device: torch.device | str,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    numbers: Sequence[int] = (),
    longest: int | None = None,
) -> Batch:
    """Sources (without end marks) as one batch to search; no output is longer than `longest`, its end mark included."""
    rows = [[*source, END] for source in sources]
    most = options.max_length if longest is None else min(options.max_length, longest)
    limits = [min(most, int(options.max_ratio * len(row)) + 10) for row in rows]
    forced = None
    if prefixes is not None and any(prefixes):
        forced = pad_tokens(prefixes, device)
        limits = [max(limit, len(prefix) + 1) for limit, prefix in zip(limits, prefixes, strict=True)]
    return Batch(
        pad_tokens(rows, device),
        Padded.of([len(row) for row in rows], device),
        torch.tensor(limits, device=device),
        forced,
        tuple(numbers),
    )


def generate(
    model: Stepper,
    sources: Sequence[Sequence[int]],
    options: Decoding,
    *,
    device: torch.device | str = "cpu",
    prefixes: Sequence[Sequence[int]] | None = None,
    first: int = 0,
) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first, in the order of the sources.

    `first` is the number of the first sentence in the whole input, so that sampling does not depend on how the input
    is cut into calls. Nothing is decoded for an empty source: its output is the empty hypothesis.
    """
    width = options.nbest if options.sample is not None else options.beam
    results: list[list[Hypothesis]] = [[Hypothesis([], 0.0, 0.0)] for _ in sources]
    filled = [index for index, source in enumerate(sources) if len(source)]
    lengths = [len(sources[index]) + 1 for index in filled]
    for chosen in length_batches(lengths, max(1, options.batch_tokens // width)):
        indices = [filled[place] for place in chosen]
        batch = make_batch(
            [sources[index] for index in indices],
            options,
            device,
            prefixes=None if prefixes is None else [prefixes[index] for index in indices],
            numbers=[first + index for index in indices],
            longest=model.longest,
        )
        for index, hypotheses in zip(indices, search(model, batch, options), strict=True):
            results[index] = hypotheses
    return results
