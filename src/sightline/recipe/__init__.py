"""The recipe: one YAML file that describes a whole experiment.

Each section is a frozen pydantic model; the parts of a model (encoder, decoder, attention, positions, ...) are
discriminated unions on `kind`. An unknown key is an error with its line and the nearest valid key. `loading.py` reads,
overrides and saves recipes.
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
