"""The memory of a training: estimated before its model is built, measured while it runs.

The estimate is a lower bound: weights, gradients and optimizer states in float32, without activations. It builds the
model on the `meta` device, where parameters have shapes and no memory. Of a very deep model only a few layers are
built: the number of parameters is linear in the number of layers.
"""

from __future__ import annotations

import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from sightline.models.build import build_model
from sightline.models.ngram import CountedModel
from sightline.models.seq2seq import parameter_count
from sightline.recipe import Recipe
from sightline.recipe.defaults import SMALLEST_WIDTH, open_keys
from sightline.training.optimizers import freeze_for, trained_count

_DEEP = 64  # deeper models are extrapolated from this depth and half of it
_FLOAT = 4  # bytes of a weight, a gradient, and of each of Adam's two moments
_CGROUP = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class MemoryEstimate:
    """A lower bound for the memory of a training, in numbers of parameters."""

    parameters: int
    trained: int
    averages: int  # of a running average

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by use; averages count as weights."""
        counts = (self.parameters + self.averages, self.trained, 2 * self.trained)
        return {
            name: _FLOAT * count
            for name, count in zip(("weights", "gradients", "optimizer states"), counts, strict=True)
        }

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size(part)}" for name, part in self.parts.items())
        return f"at least {size(self.total)} ({parts})"


def estimate_memory(recipe: Recipe, vocabulary: Any = None) -> MemoryEstimate:
    """The estimate for a recipe; without a vocabulary, before the text is read, a lower bound."""
    if vocabulary is None:
        side: Any = SimpleNamespace(size=5, pieces=lambda ids: [str(number) for number in ids], all_pieces=["a"] * 5)
        vocabulary = SimpleNamespace(source=side, target=side)
        if "model.width" in open_keys(recipe):
            recipe = _with_model(recipe, width=SMALLEST_WIDTH)
    depths = {side: getattr(body, "layers", 0) for side, body in recipe.model.bodies.items()}
    depths = {side: depth for side, depth in depths.items() if depth > _DEEP}
    base, base_trained = _count_parameters(_with_layers(recipe, dict.fromkeys(depths, _DEEP)), vocabulary)
    parameters, trained = base, base_trained
    for side, depth in depths.items():
        shallow = {**dict.fromkeys(depths, _DEEP), side: _DEEP // 2}
        fewer, fewer_trained = _count_parameters(_with_layers(recipe, shallow), vocabulary)
        parameters += (depth - _DEEP) * (base - fewer) // (_DEEP // 2)
        trained += (depth - _DEEP) * (base_trained - fewer_trained) // (_DEEP // 2)
    return MemoryEstimate(parameters, trained, parameters if recipe.training.averaging.kind == "ema" else 0)


def _count_parameters(recipe: Recipe, vocabulary: Any) -> tuple[int, int]:
    """The numbers of all parameters and of trained ones (0 if they depend on the run that initializes the training)."""
    try:
        with torch.device("meta"):
            model = build_model(recipe, vocabulary)
    except RuntimeError as error:
        if (sizes := re.search(r"Storage size calculation overflowed with sizes=\[([\d, ]+)\]", str(error))) is None:
            raise
        numbers = math.prod(map(int, sizes[1].split(",")))
        raise ValueError(
            f"a single weight of this model, of size {sizes[1].replace(', ', ' x ')}, has {numbers:,} parameters and "
            f"needs {size(_FLOAT * numbers)}; lower model.width, the hidden width or the size of the vocabulary"
        ) from None
    if isinstance(model, CountedModel):
        return 0, 0
    if recipe.model.adapters is not None and recipe.model.init_from is not None:
        return parameter_count(model), 0
    try:
        freeze_for(model, recipe)
    except ValueError:  # a pattern that names no parameter is reported when the training starts
        return parameter_count(model), 0
    return parameter_count(model), trained_count(model)


def _with_model(recipe: Recipe, **changes: Any) -> Recipe:
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=changes)})


def _with_layers(recipe: Recipe, layers: dict[str, int]) -> Recipe:
    bodies = {side: getattr(recipe.model, side).model_copy(update={"layers": count}) for side, count in layers.items()}
    return _with_model(recipe, **bodies)


def check_memory(recipe: Recipe, device: torch.device, estimate: MemoryEstimate | None = None) -> MemoryEstimate:
    """Refuse a model that cannot fit into the memory of the device."""
    estimate = estimate or estimate_memory(recipe)
    limit = memory_of(device)
    if limit is not None and estimate.total > limit:
        raise ValueError(
            f"a model with {estimate.parameters:,} parameters needs {estimate} without activations, and {device} has "
            f"{size(limit)}; lower model.width, the number of layers or the size of the vocabulary"
        )
    return estimate


def memory_of(device: torch.device) -> int | None:
    """The bytes of memory of a device; None where the system does not report them."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    try:
        return min(total, int(_CGROUP.read_text(encoding="ascii")))  # of a container
    except (OSError, ValueError):
        return total


def peak_memory(device: torch.device) -> int:
    """The most bytes held at once so far: by tensors on a CUDA device, by the whole process on the CPU.

    The process's peak includes preparing the data; on Windows it is not known, and 0.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if device.type == "mps":
        return int(torch.mps.driver_allocated_memory())
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def size(count: int) -> str:
    """Bytes for a person to read: `512 MiB`, `3.2 GiB`."""
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"
