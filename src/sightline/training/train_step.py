"""One training step: what is computed (`TrainStep`), and how its gradients are accumulated (`StepRunner`).

`TrainStep` is the one module that is compiled, and that DDP or FSDP2 would wrap. On CUDA, packed batches of one static
shape run compiled and recorded as a CUDA graph: a step of Transformer base is some 500 kernels of 70 µs on average, and
launching them one by one from Python can take longer than running them. A graph launches all at once: 697,000 tokens/s
instead of 362,000 on one H200 (docs/speed.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.collate import TrainingBatch
from sightline.layers.devices import autocast, resolve_precision
from sightline.layers.layout import Packed
from sightline.layers.losses import Loss
from sightline.recipe import Training
from sightline.tasks.losses import sum_of
from sightline.training.objectives import Carried, Objective, build_objective
from sightline.training.world import World

Shape = tuple[int, int]  # sequences, and the longest of them


class TrainStep(nn.Module):
    """The loss of a batch: model, objective, precision."""

    def __init__(
        self, model: nn.Module, training: Training, device: torch.device, objective: Objective | None = None
    ) -> None:
        super().__init__()
        self.model, self.device = model, device
        self.objective = objective or build_objective(training)
        self.precision = resolve_precision(training.precision, device)

    def forward(self, batch: TrainingBatch, carried: Carried | None = None) -> Loss:
        """The loss, summed over the labels of the batch.

        `carried` is the state in which the previous batch of a language model ended; the new one is `Loss.carried`.
        """
        with autocast(self.precision, self.device):
            return self.objective(self.model, batch, carried)


class StepRunner:
    """Runs the forward and backward passes of a step: accumulation, microbatches, loss scaling, carried state."""

    def __init__(
        self,
        step: TrainStep,
        *,
        carry: bool = False,
        forward: Callable[[TrainingBatch], Loss] | None = None,
        world: World | None = None,
    ) -> None:
        self.step, self.world = step, world or World()
        self.forward = forward or step  # e.g. compiled
        fp16 = step.precision == "fp16"
        self.scaler = torch.amp.GradScaler(step.device.type) if fp16 else None  # type: ignore[attr-defined]
        self.carry = carry
        self.carried: Carried = {}  # saved in checkpoints
        self.flops = 0  # of the last step

    def __call__(self, group: Sequence[TrainingBatch]) -> Loss:
        """The loss of the batches of a step, summed over their labels, outside autograd.

        The gradient of the mean over the labels of all processes replaces the gradients of the parameters; in float16
        it is multiplied by the scale of `scaler`.
        """
        self.step.model.zero_grad(set_to_none=True)
        tokens = self.world.total(sum(batch.tokens for batch in group))
        self.flops, losses = 0, []
        for batch in group:
            for part in self.step.objective.microbatches(self.step.model, batch):
                self.flops += part.flops
                losses.append(self._forward_backward(part, tokens))
        counts = [loss.counts for loss in losses if loss.counts is not None]
        total, nll = sum_of(loss.total for loss in losses), sum_of(loss.nll for loss in losses)
        return Loss(total, nll, sum_of(counts) if counts else None)

    def _forward_backward(self, batch: TrainingBatch, tokens: int) -> Loss:
        if self.carry:
            loss = self.step(batch, self.carried)
            self.carried = loss.carried
        else:
            loss = self.forward(batch)
        self.backward(loss.total / tokens)
        detached: Loss = loss.detached()
        return detached

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss, scaled so that small values survive float16."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    @property
    def loss_scale(self) -> tuple[float, int] | None:
        """The loss scale of float16 and the steps since it last changed; None without one. Saved in checkpoints."""
        if self.scaler is None:
            return None
        state = self.scaler.state_dict()
        return float(state["scale"]), int(state["_growth_tracker"])

    @loss_scale.setter
    def loss_scale(self, value: tuple[float, int] | None) -> None:
        if self.scaler is not None and value is not None:
            scale, steps = value
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": scale, "_growth_tracker": steps})


class GraphedRunner(StepRunner):
    """Runs steps of one batch of static shape: the compiled passes are recorded once as a CUDA graph and replayed.

    Parameters and gradients must keep their place in memory from the first step on. Random numbers follow the seed at
    each replay, as they would without the graph.
    """

    def __init__(self, step: TrainStep, *, world: World | None = None) -> None:
        super().__init__(step, forward=compile_step(step), world=world)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, group: Sequence[TrainingBatch]) -> Loss:
        (batch,) = group
        if self.graph is None:
            self.graph = self._record(batch)
        for static, tensor in zip(self.tensors, _tensors(batch), strict=True):
            if static is not None and tensor is not None:
                static.copy_(tensor, non_blocking=True)
        self.tokens.fill_(float(self.world.total(batch.tokens)))
        self.graph.replay()
        self.flops = batch.flops
        return self.result

    def _record(self, batch: TrainingBatch) -> torch.cuda.CUDAGraph:
        model, device = self.step.model, self.step.device
        random = torch.cuda.get_rng_state(device)
        self.tensors = [None if tensor is None else tensor.clone() for tensor in _tensors(batch)]
        self.shapes = _shapes(batch)
        self.tokens = torch.full((), float(batch.tokens), device=device)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles, and lets libraries allocate memory, which a graph cannot
                model.zero_grad(set_to_none=True)
                self._run()
        torch.cuda.current_stream(device).wait_stream(side)
        model.zero_grad(set_to_none=True)  # allocated anew while recording, in the graph's own memory
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread makes batches
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            self.result = self._run()
        torch.cuda.set_rng_state(random, device)
        return graph

    def _run(self) -> Loss:
        loss = self.forward(_from_tensors(self.tensors, self.shapes))
        self.backward(loss.total / self.tokens)
        return loss.detached()


def build_runner(step: TrainStep, training: Training, *, carry: bool, static: bool, world: World) -> StepRunner:
    """The fastest runner for these batches: compiled where they have a static shape, unless the recipe says no."""
    if carry or not static or training.compile is False or not step.objective.compiles:
        return StepRunner(step, carry=carry, world=world)
    if training.batches.accumulate > 1 or step.device.type != "cuda":
        return StepRunner(step, forward=compile_step(step), world=world)
    return GraphedRunner(step, world=world)


def compile_step(step: TrainStep) -> Callable[[TrainingBatch], Loss]:
    """The forward pass over packed batches of one static shape, compiled once."""

    def run(tensors: list[Tensor | None], shapes: tuple[Shape | None, ...]) -> Loss:
        loss: Loss = step.objective(step.model, _from_tensors(tensors, shapes))
        return loss

    # Sums over both sides of a matrix in one kernel: PyTorch 2.10 to 2.13 can leave gradients unwritten there (#193061)
    inner = torch.compile(run, dynamic=False, options={"triton.mix_order_reduction": False})
    warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled")  # nothing a user could act on
    # Layers that are computed twice (models/gradient_checkpointing.py) hand on what they collect the first time only
    once = torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True)  # type: ignore[no-untyped-call]

    def forward(batch: TrainingBatch) -> Loss:
        with once, autocast(step.precision, step.device):
            loss: Loss = inner(_tensors(batch), _shapes(batch))
        return loss

    return forward


def _layouts(batch: TrainingBatch) -> list[Packed | None]:
    layouts = [batch.source_layout, batch.decoder_layout]
    assert all(layout is None or isinstance(layout, Packed) for layout in layouts)
    return layouts  # type: ignore[return-value]


def _tensors(batch: TrainingBatch) -> list[Tensor | None]:
    """Everything of a batch that changes from step to step."""
    parts = (
        (None,) * 4 if each is None else (each.offsets, each.index, each.slots, each.real) for each in _layouts(batch)
    )
    return [batch.source, batch.decoder_input, batch.labels, *(tensor for four in parts for tensor in four)]


def _shapes(batch: TrainingBatch) -> tuple[Shape | None, ...]:
    """Everything of a batch that does not."""
    return tuple(None if each is None else (each.batch, each.longest) for each in _layouts(batch))


def _from_tensors(tensors: list[Tensor | None], shapes: tuple[Shape | None, ...]) -> TrainingBatch:
    """The batch again, as far as a model reads it."""
    source, decoder_input, labels, *rest = tensors
    first, second = (
        None if shape is None else Packed(*four[:3], *shape, four[3])  # type: ignore[arg-type, call-arg, misc]
        for four, shape in zip((rest[:4], rest[4:]), shapes, strict=True)
    )
    assert labels is not None
    return TrainingBatch(source, first, decoder_input, second, labels, 0, np.empty(0))
