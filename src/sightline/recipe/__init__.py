"""The recipe: one YAML file that describes a whole experiment.

Each section is a frozen pydantic model; the parts of a model (encoder, decoder, attention, positions, ...) are
discriminated unions on `kind`, so a recipe is put together, not flagged. Unknown keys fail with the nearest right
key and the line they stand on. `files` reads, overrides and saves.
"""

from __future__ import annotations

from sightline.recipe.decoding import Decoding, Evaluation, MetricName, Risk, Sampling
from sightline.recipe.recipe import Recipe
from sightline.recipe.tasks import TaskName, TaskSpec, tasks
from sightline.recipe.training import Reward, Schedule, Training

__all__ = [
    "Decoding",
    "Evaluation",
    "MetricName",
    "Recipe",
    "Reward",
    "Risk",
    "Sampling",
    "Schedule",
    "TaskName",
    "TaskSpec",
    "Training",
    "tasks",
]
