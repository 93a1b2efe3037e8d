"""A step compiled, and recorded as a CUDA graph: for packed batches of one static shape, as training on CUDA runs them.

A step of Transformer base is some 500 kernels of 70 µs on average; launching them one by one from Python can take
longer than running them. A CUDA graph launches all at once: 697,000 tokens/s where 362,000 were, on one H200
(docs/speed.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.layers.layout import Packed
from sightline.models.seq2seq import Seq2Seq
from sightline.training.batches import TrainingBatch
from sightline.training.objectives import Loss
from sightline.training.step import autocast, batch_loss


def compiled_loss(model: Seq2Seq, smoothing: float) -> Callable[[TrainingBatch], Loss]:
    """`batch_loss` over packed batches of one static shape, compiled once."""

    def run(
        source: Tensor, given: Tensor, wanted: Tensor, first: list[Tensor], second: list[Tensor], shape: Any
    ) -> Loss:
        source_layout, target_layout = (
            Packed(offsets, index, slots, *shape) for offsets, index, slots in (first, second)
        )
        empty = np.empty(0)
        return batch_loss(
            model, TrainingBatch(source, source_layout, given, wanted, target_layout, 0, empty), smoothing
        )

    compiled = torch.compile(run, dynamic=False)

    def loss(batch: TrainingBatch) -> Loss:
        source, target = batch.source_layout, batch.target_layout
        assert isinstance(source, Packed) and isinstance(target, Packed)
        result: Loss = compiled(
            batch.source,
            batch.given,
            batch.wanted,
            [source.offsets, source.index, source.slots],
            [target.offsets, target.index, target.slots],
            (source.batch, source.longest),
        )
        return result

    return loss


class GraphedGradients:
    """`Gradients` of one batch of static shape: the compiled forward and backward pass, recorded once and replayed.

    Parameters and gradients must stay where they are in memory from the first step on. What is random follows the
    seed at each replay, as it would without the graph.
    """

    def __init__(self, model: Seq2Seq, smoothing: float, precision: str, device: torch.device) -> None:
        self.model, self.precision, self.device = model, precision, device
        self.loss = compiled_loss(model, smoothing)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, group: Sequence[TrainingBatch]) -> Loss:
        (batch,) = group
        if self.graph is None:
            self.graph = self._record(batch)
        for mine, given in zip(self.tensors, _tensors(batch), strict=True):
            mine.copy_(given, non_blocking=True)
        self.tokens.fill_(float(batch.tokens))
        self.graph.replay()
        return self.result

    def _record(self, batch: TrainingBatch) -> torch.cuda.CUDAGraph:
        layout = batch.target_layout
        assert isinstance(layout, Packed)
        random = torch.cuda.get_rng_state(self.device)
        self.tensors = [tensor.clone() for tensor in _tensors(batch)]
        self.shape = (layout.batch, layout.longest)
        self.tokens = torch.full((), float(batch.tokens), device=self.device)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles, and lets libraries take the memory they want, which a graph cannot
                self.model.zero_grad(set_to_none=True)
                self._run()
        torch.cuda.current_stream(self.device).wait_stream(side)
        self.model.zero_grad(set_to_none=True)  # made anew while recording, in the graph's own memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, stream=side, capture_error_mode="thread_local"
        ):  # batches come from another thread
            self.result = self._run()
        torch.cuda.set_rng_state(random, self.device)
        return graph

    def _run(self) -> Loss:
        source, given, wanted, *layouts = self.tensors
        first, second = (Packed(*three, *self.shape) for three in (layouts[:3], layouts[3:]))  # type: ignore[call-arg, arg-type]
        with autocast(self.precision, self.device):
            loss = self.loss(TrainingBatch(source, first, given, wanted, second, 0, np.empty(0)))
        (loss.total / self.tokens).backward()  # type: ignore[no-untyped-call]
        return Loss(loss.total.detach(), loss.nll.detach())


def _tensors(batch: TrainingBatch) -> list[Tensor]:
    """Everything of a batch that differs from step to step."""
    source, target = batch.source_layout, batch.target_layout
    assert isinstance(source, Packed) and isinstance(target, Packed)
    layouts = [source.offsets, source.index, source.slots, target.offsets, target.index, target.slots]
    return [batch.source, batch.given, batch.wanted, *layouts]
