"""A step compiled, and recorded as a CUDA graph: for packed batches of one static shape, as training on CUDA runs them.

A step of Transformer base is some 500 kernels of 70 µs on average; launching them one by one from Python can take
longer than running them. A CUDA graph launches all at once: 697,000 tokens/s where 362,000 were, on one H200
(docs/speed.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.batches import TrainingBatch
from sightline.layers.devices import autocast
from sightline.layers.layout import Packed
from sightline.recipe import Training
from sightline.training.objectives import Loss
from sightline.training.step import Gradients, training_loss

Shape = tuple[int, int]  # sequences, and the longest of them


def compiled_loss(model: nn.Module, training: Training) -> Callable[[TrainingBatch], Loss]:
    """`training_loss` over packed batches of one static shape, compiled once."""

    def run(tensors: list[Tensor | None], shapes: tuple[Shape | None, ...]) -> Loss:
        return training_loss(model, _from_tensors(tensors, shapes), training)

    # Sums over both sides of a matrix in one kernel: PyTorch 2.10 to 2.13 can leave gradients unwritten there (#193061)
    compiled = torch.compile(run, dynamic=False, options={"triton.mix_order_reduction": False})
    warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled")  # nothing a user could act on
    # Layers that are computed twice (models/gradient_checkpointing.py) hand what they collect on the first time alone
    once = torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True)  # type: ignore[no-untyped-call]

    def loss(batch: TrainingBatch) -> Loss:
        with once:
            result: Loss = compiled(_tensors(batch), _shapes(batch))
        return result

    return loss


class GraphedGradients(Gradients):
    """`Gradients` of one batch of static shape: the compiled forward and backward pass, recorded once and replayed.

    Parameters and gradients must stay where they are in memory from the first step on. What is random follows the
    seed at each replay, as it would without the graph.
    """

    def __init__(self, model: nn.Module, training: Training, device: torch.device) -> None:
        super().__init__(model, training, device)
        self.loss = compiled_loss(model, training)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, group: Sequence[TrainingBatch]) -> Loss:
        (batch,) = group
        if self.graph is None:
            self.graph = self._record(batch)
        for mine, given in zip(self.tensors, _tensors(batch), strict=True):
            if mine is not None and given is not None:
                mine.copy_(given, non_blocking=True)
        self.tokens.fill_(float(batch.tokens))
        self.graph.replay()
        return self.result

    def _record(self, batch: TrainingBatch) -> torch.cuda.CUDAGraph:
        random = torch.cuda.get_rng_state(self.device)
        self.tensors = [None if tensor is None else tensor.clone() for tensor in _tensors(batch)]
        self.shapes = _shapes(batch)
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
        with autocast(self.precision, self.device):
            loss = self.loss(_from_tensors(self.tensors, self.shapes))
        self.backward(loss.total / self.tokens)
        return loss.detached()


def _layouts(batch: TrainingBatch) -> list[Packed | None]:
    layouts = [batch.source_layout, batch.target_layout]
    assert all(layout is None or isinstance(layout, Packed) for layout in layouts)
    return layouts  # type: ignore[return-value]


def _tensors(batch: TrainingBatch) -> list[Tensor | None]:
    """Everything of a batch that differs from step to step."""
    parts = (
        (None,) * 4 if each is None else (each.offsets, each.index, each.slots, each.real) for each in _layouts(batch)
    )
    return [batch.source, batch.given, batch.wanted, *(tensor for four in parts for tensor in four)]


def _shapes(batch: TrainingBatch) -> tuple[Shape | None, ...]:
    """Everything that does not."""
    return tuple(None if each is None else (each.batch, each.longest) for each in _layouts(batch))


def _from_tensors(tensors: list[Tensor | None], shapes: tuple[Shape | None, ...]) -> TrainingBatch:
    """The batch again, as far as a model looks at it."""
    source, given, wanted, *rest = tensors
    first, second = (
        None if shape is None else Packed(*four[:3], *shape, four[3])  # type: ignore[arg-type, call-arg, misc]
        for four, shape in zip((rest[:4], rest[4:]), shapes, strict=True)
    )
    assert wanted is not None
    return TrainingBatch(source, first, given, second, wanted, 0, np.empty(0))
