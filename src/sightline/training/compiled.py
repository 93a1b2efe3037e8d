"""The loss of a step, compiled: for packed batches of one static shape, as training on CUDA runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.layers.layout import Packed
from sightline.models.seq2seq import Seq2Seq
from sightline.training.batches import TrainingBatch
from sightline.training.objectives import Loss
from sightline.training.step import batch_loss


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
