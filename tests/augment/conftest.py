"""One tiny translator of numbers written in words, trained once for all tests here."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

import sightline
from watched_runs import Silent, own_cache

GRU = {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0}
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "elf"}


def sentences(count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    return [draw.choices(list(WORDS), k=draw.randint(2, 5)) for _ in range(count)]


def write_recipe(folder: Path, *, steps: int = 80) -> Path:
    """A corpus of 50 pairs and a recipe beside it."""
    for name, count, seed in (("train", 50, 1), ("valid", 8, 2)):
        rows = (f"{' '.join(each)}\t{' '.join(WORDS[word] for word in each)}\n" for each in sentences(count, seed))
        (folder / f"{name}.tsv").write_text("".join(rows))
    recipe = {
        "data": {
            "train": [{"kind": "tsv", "file": "train.tsv"}],
            "validation": {"kind": "tsv", "file": "valid.tsv"},
            "clean": {"max_tokens": 32},
        },
        "tokenizer": {"kind": "word", "min_count": 1},
        "model": {"width": 16, "encoder": GRU, "decoder": GRU},
        "training": {
            "precision": "float32",
            "lr": 1e-2,
            "schedule": {"kind": "constant", "warmup": 0},
            "batches": {"tokens": 200},
            "limits": {"steps": steps},
            "validate_every": 40,
            "samples": 0,
            "device": "cpu",
            "threads": 1,
        },
        "decoding": {"beam": 2, "max_length": 12},
        "evaluation": {"metrics": ["exact"]},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run folder; shared, do not change it."""
    with own_cache(tmp_path_factory.mktemp("cache")):
        folder = tmp_path_factory.mktemp("translator")
        yield sightline.train(write_recipe(folder), out=folder / "run", display=Silent()).folder


@pytest.fixture
def recipe_with(tmp_path: Path, translator: Path) -> Callable[[int], Path]:
    """Write a recipe with this number of steps into the test's folder."""
    return lambda steps: write_recipe(tmp_path, steps=steps)
