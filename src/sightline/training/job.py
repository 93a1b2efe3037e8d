"""What one training works with, and what it asks of those who hand it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.batches import StaticShape, TrainingBatch
from sightline.data.collate import Sides
from sightline.recipe import Recipe
from sightline.training.display import Display
from sightline.training.step import Gradients


@dataclass(frozen=True)
class Validation:
    """What a validation found."""

    score: float  # what early stopping looks at, lower is better
    record: dict[str, Any] = field(default_factory=dict)


class Plan(Protocol):
    """The batches of any epoch, as a pure function of its number."""

    recipe: Recipe
    layout: str
    shape: StaticShape | None  # of all batches, where they have one

    def epoch(self, number: int) -> Sequence[np.ndarray]: ...
    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch: ...
    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]: ...
    def waste(self, epoch: int = 0) -> float: ...
    def tiny(self, sizes: Sequence[np.ndarray]) -> Sides:
        """Examples with about so many tokens on either side, as the model would be shown them."""
        ...


@dataclass
class Fit:
    """Everything one training works with."""

    recipe: Recipe
    run: Path
    model: nn.Module
    plan: Plan
    device: torch.device
    validate: Callable[[nn.Module], Validation]
    export: Callable[[dict[str, Tensor]], None]  # writes the finished model
    display: Display
    flops: Callable[[TrainingBatch], int]  # what a step over a batch costs
    gradients: Gradients
    rates: Mapping[str, float] = field(default_factory=dict)  # of parameters that learn slower: share of lr, by name
