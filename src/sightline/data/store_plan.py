"""What every plan of batches has, whatever an example is to it: a recipe, a store for each epoch, a layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sightline.data.batches import StaticShape, TrainingBatch, packed_batch, padded_batch
from sightline.data.collate import Sides
from sightline.data.store import Store
from sightline.recipe import Recipe
from sightline.text.tokenizer import Vocabulary


@dataclass
class StorePlan:
    """What the batches of a training are made from; which they are is for others to say (see `job.Plan`)."""

    recipe: Recipe
    vocabulary: Vocabulary
    layout: str
    store_for: Callable[[int], Store]  # epoch → store
    shape: StaticShape | None = field(init=False, default=None)

    def laid_out(self, sides: Sides, examples: np.ndarray) -> TrainingBatch:
        """These examples as a batch of the layout."""
        return padded_batch(sides, examples) if self.layout == "padded" else packed_batch(sides, examples, self.shape)
