"""Decode any number of sentences: batched, sorted by length inside, order restored outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from sightline.decoding.batch import Heard, Hypothesis, Stepper, Told, Watch
from sightline.decoding.ensemble import rooms
from sightline.decoding.padding import length_batches
from sightline.decoding.request import Request, check_begun, make_batch
from sightline.decoding.search import search
from sightline.layers.tap import TapModule
from sightline.recipe import Decoding

Item = TypeVar("Item")
_FEW = 32  # the last of so many sentences of a batch, if they run on, are decoded again with the last of others: a step
# for two costs as much as a step for fifty, since all weights are read
_ROWS = 8  # so many rows are hardly worth a step, however small the batch was


def generate(
    model: Stepper,
    request: Request,
    options: Decoding,
    *,
    device: torch.device | str = "cpu",
    heard: Heard | None = None,
    watch: Watch | None = None,
    told: Told | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, best first, in the order they were asked for.

    Nothing is decoded for an empty source: its output is the empty hypothesis. What constraints require is in every
    hypothesis; a sentence where that cannot be has none. A request that is not `scored` may get NaN for scores, with
    the same words: greedy search is spared the softmax over the vocabulary. `heard` is told every token as it comes
    (see `walk`), `watch` of every step of a beam, where there is but one sentence; `told` of every batch that is done,
    by whichever thread did it.
    """
    if (heard is not None or watch is not None) and len(request) != 1:
        raise ValueError(f"only one sentence can be heard at a time, not {len(request)}; decode them one by one")
    check_begun(request, rooms(model))
    results = [[Hypothesis([], 0.0, 0.0)] for _ in request.read]
    late: list[int] = []  # sentences given up as the last of their batches

    def decode(indices: list[int], few: int) -> None:
        batch = make_batch(request.take(indices), options, device, limits_of=rooms(model), few=few)
        for index, hypotheses in zip(indices, search(model, batch, options, heard, watch), strict=True):
            results[index] = hypotheses
            if not hypotheses and few:
                late.append(index)
        if told is not None:
            told(sum(not few or bool(results[index]) for index in indices))

    width = options.nbest if options.sample is not None else options.beam
    threads = _threads(model, device, options)
    batches = _batches(request, max(1, options.tokens_at_once(torch.device(device).type) // width), threads)
    patient = len(batches) - threads + 1 if len(batches) > 1 else 0  # the last batches have nobody to give theirs to

    def work(number: int) -> None:
        if number < len(batches):
            decode(batches[number], few_of(len(batches[number]), width) if number < patient else 0)
        elif late:
            decode([late.pop() for _ in range(len(late))], 0)

    with on_tensor_cores(device):
        side_by_side(work, range(len(batches) + 1), threads=min(threads, len(batches)))
        work(len(batches))  # what a batch that took longer than all after it gave up
    _check_found(request, results)
    return results


def _check_found(request: Request, results: Sequence[Sequence[Hypothesis]]) -> None:
    """Refuse a model that finds nothing where nothing is asked for that it could not say."""
    for place, (number, found) in enumerate(zip(request.numbered(), results, strict=True)):
        required = request.constraints is not None and request.constraints.demands[place].required
        if not found and not required:
            raise ValueError(
                f"line {number + 1}: the scores of the model are no numbers (NaN), so there is no output; its weights "
                f"are damaged, or its training went wrong: take another checkpoint, or train it again"
            )


@contextmanager
def on_tensor_cores(device: torch.device | str) -> Iterator[None]:
    """On a GPU, float32 matrix products inside are made of rounded factors (TF32), as they are in training.

    That is several times as fast where thousands of sentences are decoded at once. Nothing changes on a CPU.
    """
    before = torch.get_float32_matmul_precision()
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _batches(request: Request, tokens: int, threads: int) -> list[list[int]]:
    """Which sentences are decoded together; empty sources not at all."""
    filled = [index for index, text in enumerate(request.read) if len(text) or request.sources is None]
    lengths = [len(request.read[index]) + 1 for index in filled]
    return [[filled[place] for place in places] for places in length_batches(lengths, tokens, threads)]


def few_of(sentences: int, width: int) -> int:
    """How many sentences are given up as the last of a batch of so many, with `width` hypotheses each."""
    return max(sentences // _FEW, min(_ROWS // width, sentences // 8))


def _threads(model: Stepper, device: torch.device | str, options: Decoding) -> int:
    """How many batches to decode at a time, at most.

    A step of a search is many small operations. On the CPU, cores that share each of them wait for one another most of
    the time; cores with a batch each do not. Who listens to the model (the coverage penalty does, and whoever records)
    must hear one batch at a time.
    """
    heard = isinstance(model, nn.Module) and any(isinstance(m, TapModule) and m.recorded for m in model.modules())
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
