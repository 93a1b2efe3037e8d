"""What every step is made of, whoever takes it: the loss of a batch, its precision, its randomness."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.recipe import Training
from sightline.training.batches import TrainingBatch
from sightline.training.objectives import Loss, cross_entropy


def batch_loss(model: Any, batch: TrainingBatch, smoothing: float) -> Loss:
    """The loss of one batch, summed over the answers wanted."""
    features = model(batch.source, batch.source_layout, batch.given, batch.target_layout)
    return cross_entropy(features, model.output.weight, model.output.bias, batch.wanted, smoothing)


def step_seed(seed: int, step: int) -> int:
    """The seed of all that is random inside one step."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16, if asked."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


# The batches of a step → their loss, summed over all target tokens, outside autograd. The gradient of its mean over the
# tokens is left in the parameters, in place of what was there.
Gradients = Callable[[Sequence[TrainingBatch]], Loss]


class PlainGradients:
    """`Gradients` by one forward and one backward pass over each batch."""

    def __init__(
        self,
        model: nn.Module,
        training: Training,
        device: torch.device,
        loss: Callable[[TrainingBatch], Loss] | None = None,  # e.g. compiled
    ) -> None:
        self.model, self.precision, self.device = model, training.precision, device
        self.loss = loss or (lambda batch: batch_loss(model, batch, training.label_smoothing))

    def __call__(self, group: Sequence[TrainingBatch]) -> Loss:
        self.model.zero_grad(set_to_none=True)
        tokens = sum(batch.tokens for batch in group)
        losses = [self._add(batch, tokens) for batch in group]
        return Loss(sum_of(loss.total for loss in losses), sum_of(loss.nll for loss in losses))

    def _add(self, batch: TrainingBatch, tokens: int) -> Loss:
        with autocast(self.precision, self.device):
            loss = self.loss(batch)
        (loss.total / tokens).backward()  # type: ignore[no-untyped-call]
        return Loss(loss.total.detach(), loss.nll.detach())


class CarriedGradients(PlainGradients):
    """`Gradients` where each batch goes on from the state the one before it ended in, cut off from what made it.

    The state is part of where a training stands, so checkpoints hold it: `carried`, by name.
    """

    def __init__(self, model: Any, training: Training, device: torch.device) -> None:
        super().__init__(model, training, device, self._loss)
        self.language_model, self.smoothing = model, training.label_smoothing
        self.carried: dict[str, Tensor] = {}

    def _loss(self, batch: TrainingBatch) -> Loss:
        assert batch.given is not None
        model = self.language_model
        state = model.blank(len(batch.given))
        if batch.goes_on and self.carried:
            state = state.with_parts(self.carried)
        features, state = model.advance(batch.given, state)
        self.carried = state.parts()
        return cross_entropy(features, model.output.weight, model.output.bias, batch.wanted, self.smoothing)


def sum_of(values: Iterable[Tensor]) -> Tensor:
    """One after the other, so that a sum of one is that one."""
    return functools.reduce(operator.add, values)
