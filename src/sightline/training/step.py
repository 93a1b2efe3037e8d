"""What every step is made of, whoever takes it: the loss of a batch, its precision, its randomness."""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sightline.data.batches import TrainingBatch
from sightline.layers.devices import autocast, resolve_precision
from sightline.layers.experts import Collected, collect
from sightline.models.seq2seq import CopyingSeq2Seq
from sightline.recipe import Training
from sightline.recipe.training import GuidedAlignment
from sightline.text.tokenizer import PAD
from sightline.training.copying import copying_loss
from sightline.training.guiding import GuidedHead, alignment_loss
from sightline.training.objectives import Loss, cross_entropy
from sightline.training.rdrop import rdrop


def batch_loss(model: Any, batch: TrainingBatch, smoothing: float) -> Loss:
    """The loss of one batch, summed over the answers wanted."""
    if isinstance(model, CopyingSeq2Seq):
        with collect(model) as extra:
            loss = copying_loss(model, batch, smoothing)
        return with_extra(loss, extra, batch.wanted)
    with collect(model) as extra:
        features = model(batch.source, batch.source_layout, batch.given, batch.target_layout)
    loss = cross_entropy(features, model.output.weight, model.output.bias, batch.wanted, smoothing)
    return with_extra(loss, extra, batch.wanted)


def with_extra(loss: Loss, extra: Collected, wanted: Tensor, passes: int = 1) -> Loss:
    """The loss with those that layers have of their own, of so many passes.

    `total` is a sum over answers that will be divided by their number, the loss of a layer one number for the whole
    batch: so it is added as many times. It is minimized, not reported: `nll` stays as it is.
    """
    if not extra.losses:
        return loss
    answers = (wanted != PAD).sum()
    return Loss(loss.total + answers / passes * sum_of(extra.losses), loss.nll, extra.row())


def training_loss(model: Any, batch: TrainingBatch, training: Training) -> Loss:
    """What a step minimizes: the loss of one batch or, with R-Drop, of two passes over it with different dropout."""
    if training.guided_alignment is not None:
        return guided_loss(model, batch, training.guided_alignment, training.label_smoothing)
    if training.rdrop is None:
        return batch_loss(model, batch, training.label_smoothing)
    with collect(model) as extra:
        one, other = (model(batch.source, batch.source_layout, batch.given, batch.target_layout) for _ in range(2))
    output = model.output
    loss = rdrop(one, other, output.weight, output.bias, batch.wanted, training.label_smoothing, training.rdrop)
    return with_extra(loss, extra, batch.wanted, passes=2)


def guided_loss(model: Any, batch: TrainingBatch, guide: GuidedAlignment, smoothing: float) -> Loss:
    """The loss of one batch and that of a head that should look where the batch says (guiding.py)."""
    head = GuidedHead(model, guide)
    with head.listening():
        loss = batch_loss(model, batch, smoothing)
    assert batch.source_layout is not None
    weights = head.weights(batch.source_layout, batch.target_layout)
    apart = 0.0 * weights.sum() if batch.guide is None else alignment_loss(weights, batch.guide)
    return loss._replace(total=loss.total + guide.weight * apart)


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
        assert batch.given is not None
        model = self.language_model
        state = model.blank(len(batch.given))
        if batch.goes_on and self.carried:
            state = state.with_parts(self.carried)
        with collect(model) as extra:
            features, state = model.advance(batch.given, state)
        self.carried = state.parts()
        loss = cross_entropy(features, model.output.weight, model.output.bias, batch.wanted, self.smoothing)
        return with_extra(loss, extra, batch.wanted)


def sum_of(values: Iterable[Tensor]) -> Tensor:
    """One after the other, so that a sum of one is that one."""
    return functools.reduce(operator.add, values)
