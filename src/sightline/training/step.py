"""What every step is made of, whoever takes it: the loss of a batch, its precision, its randomness."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from sightline.training.batches import TrainingBatch
from sightline.training.objectives import Loss, cross_entropy


def batch_loss(model: Any, batch: TrainingBatch, smoothing: float) -> Loss:
    """The loss of one batch, summed over its target tokens."""
    features = model(batch.source, batch.source_layout, batch.given, batch.target_layout)
    return cross_entropy(features, model.output.weight, model.output.bias, batch.wanted, smoothing)


def step_seed(seed: int, step: int) -> int:
    """The seed of all that is random inside one step."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16, if asked."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
