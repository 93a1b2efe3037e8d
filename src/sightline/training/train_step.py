"""What every step is made of, whoever takes it: the loss of a batch, its precision, its randomness."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.collate import TrainingBatch
from sightline.layers.devices import autocast, resolve_precision
from sightline.layers.experts import collect
from sightline.layers.layout import Packed
from sightline.layers.losses import Loss, cross_entropy
from sightline.recipe import Training
from sightline.training.objectives import sum_of, training_loss, with_extra


class Gradients(ABC):
    """How a step finds its gradients.

    Some have what others go without: operations beyond those of the batches, known only once they are made (`spent`;
    whoever counts them sets it back to 0), and state that goes from step to step (`carried`, by name), which is part
    of where a training stands, so checkpoints hold it.
    """

    def __init__(self, model: nn.Module, training: Training, device: torch.device) -> None:
        self.model, self.device = model, device
        self.precision = resolve_precision(training.precision, device)
        self.scaler = torch.amp.GradScaler(device.type) if self.precision == "fp16" else None  # type: ignore[attr-defined]
        self.spent = 0
        self.carried: dict[str, Tensor] = {}

    @abstractmethod
    def __call__(self, group: Sequence[TrainingBatch]) -> Loss:
        """The loss of the batches of a step, summed over all target tokens, outside autograd.

        The gradient of its mean over the tokens is left in the parameters, in place of what was there; in float16 it
        is multiplied by the scale of `scaler`.
        """

    @property
    def loss_scale(self) -> tuple[float, int] | None:
        """The loss scale of float16 and the steps since it last changed; None without one. Part of a checkpoint."""
        if self.scaler is None:
            return None
        state = self.scaler.state_dict()
        return float(state["scale"]), int(state["_growth_tracker"])

    @loss_scale.setter
    def loss_scale(self, value: tuple[float, int] | None) -> None:
        if self.scaler is not None and value is not None:
            scale, steps = value
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": scale, "_growth_tracker": steps})

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss, scaled so that small values survive float16."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]


class PlainGradients(Gradients):
    """`Gradients` by one forward and one backward pass over each batch."""

    def __init__(
        self,
        model: nn.Module,
        training: Training,
        device: torch.device,
        loss: Callable[[TrainingBatch], Loss] | None = None,  # e.g. compiled
    ) -> None:
        super().__init__(model, training, device)
        self.loss = loss or (lambda batch: training_loss(model, batch, training))

    def __call__(self, group: Sequence[TrainingBatch]) -> Loss:
        self.model.zero_grad(set_to_none=True)
        tokens = sum(batch.tokens for batch in group)
        losses = [self._add(batch, tokens) for batch in group]
        counts = [loss.counts for loss in losses if loss.counts is not None]
        total, nll = sum_of(loss.total for loss in losses), sum_of(loss.nll for loss in losses)
        return Loss(total, nll, sum_of(counts) if counts else None)

    def _add(self, batch: TrainingBatch, tokens: int) -> Loss:
        with autocast(self.precision, self.device):
            loss = self.loss(batch)
        self.backward(loss.total / tokens)
        return loss.detached()


class CarriedGradients(PlainGradients):
    """`Gradients` where each batch goes on from the state the one before it ended in, cut off from what made it."""

    def __init__(self, model: Any, training: Training, device: torch.device) -> None:
        super().__init__(model, training, device, self._loss)
        self.language_model, self.smoothing = model, training.label_smoothing

    def _loss(self, batch: TrainingBatch) -> Loss:
        assert batch.decoder_input is not None
        model = self.language_model
        state = model.begin_empty(len(batch.decoder_input))
        if batch.continues and self.carried:
            state = state.with_parts(self.carried)
        with collect(model) as extra:
            features, state = model.advance(batch.decoder_input, state)
        self.carried = state.parts()
        loss = cross_entropy(features, model.output.weight, model.output.bias, batch.labels, self.smoothing)
        return with_extra(loss, extra, batch.labels)


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
    layouts = [batch.source_layout, batch.decoder_layout]
    assert all(layout is None or isinstance(layout, Packed) for layout in layouts)
    return layouts  # type: ignore[return-value]


def _tensors(batch: TrainingBatch) -> list[Tensor | None]:
    """Everything of a batch that differs from step to step."""
    parts = (
        (None,) * 4 if each is None else (each.offsets, each.index, each.slots, each.real) for each in _layouts(batch)
    )
    return [batch.source, batch.decoder_input, batch.labels, *(tensor for four in parts for tensor in four)]


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
