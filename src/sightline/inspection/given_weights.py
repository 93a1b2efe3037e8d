"""Weights of one's own: matrices in a JSON or YAML file, by name, written into parameters."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[np.float64]


def read_matrices(path: Path) -> dict[str, Matrix]:
    """Read `name: [[…], …]` from a JSON or YAML file (JSON is YAML)."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is neither JSON nor YAML: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: write one matrix per name, e.g. embedding: [[0.1, -0.2], [0.3, 0.4]]")
    return {str(name): _matrix(f"{path}: {name}", value) for name, value in content.items()}


def _matrix(place: str, value: Any) -> Matrix:
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place} is no matrix of numbers; rows of equal length are needed") from error
    if not np.isfinite(matrix).all():
        raise ValueError(f"{place} contains numbers that are not finite")
    return matrix


@torch.no_grad()
def assign(weights: Mapping[str, Tensor], given: Mapping[str, Matrix], place: Path | str) -> None:
    """Write matrices into tensors (parameters, or views of them) of the same names and shapes."""
    for name, matrix in given.items():
        if name not in weights:
            near = get_close_matches(name, weights, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{place}: there is no matrix {name!r}; {hint}there are {', '.join(weights)}")
        if matrix.shape != weights[name].shape:
            shapes = ("×".join(map(str, shape)) or "1" for shape in (matrix.shape, weights[name].shape))
            raise ValueError("{}: {} has the shape {}, and the model's is {}".format(place, name, *shapes))
        weights[name].copy_(torch.from_numpy(matrix))


@torch.no_grad()
def draw_tenths(weights: Mapping[str, Tensor], seed: int, largest: int = 9) -> None:
    """Draw every number from −0.9, −0.8, …, 0.9, in order of the names given."""
    generator = np.random.default_rng(seed)
    for tensor in weights.values():
        tenths = generator.integers(-largest, largest, tuple(tensor.shape), endpoint=True)
        tensor.copy_(torch.from_numpy(tenths / 10.0))
