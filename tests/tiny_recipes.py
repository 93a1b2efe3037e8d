"""Parts of tiny recipes, shared by the tests that train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

GRU = {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0}


def training(steps: int | None = None, **changes: Any) -> dict[str, Any]:
    """A short training on the CPU, in float32 and one thread, without samples."""
    return {
        "precision": "float32",
        "lr": 1e-2,
        "schedule": {"kind": "constant", "warmup": 0},
        "batches": {"tokens": 200},
        "samples": 0,
        "device": "cpu",
        "threads": 1,
        **({} if steps is None else {"limits": {"steps": steps}}),
        **changes,
    }


def tsv_files(**more: Any) -> dict[str, Any]:
    """train.tsv and valid.tsv as training and validation text."""
    return {
        "train": [{"kind": "tsv", "file": "train.tsv"}],
        "validation": {"kind": "tsv", "file": "valid.tsv"},
        **more,
    }


TEST_FILE = {"tests": {"other": {"kind": "tsv", "file": "test.tsv"}}}


def sequences(examples: int, held_out: int) -> dict[str, Any]:
    """Short sequences of four symbols to copy."""
    source = {"kind": "sequences", "operation": "copy", "lengths": [2, 5], "symbols": 4}
    return {
        "train": [{**source, "examples": examples, "split": "train"}],
        "validation": {**source, "examples": held_out, "split": "validation"},
    }


def write_recipe(folder: Path, recipe: dict[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path
