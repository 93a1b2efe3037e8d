"""Tiny runs to compare: a word-for-word translator, with and without attention, two seeds each."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import sightline
from sightline.comparison import ComparisonResult
from sightline.run_folder import seal_run
from task_runs import trained_tasks
from watched_runs import Silent, own_cache

WORDS = {
    "hund": "dog",
    "katze": "cat",
    "haus": "house",
    "grün": "green",
    "<skript>": "<script>",
    "كتاب": "كِتاب",
    "läuft": "runs",
    "alt": "old",
}
NAMES = ("dot-seed1", "dot-seed2", "none-seed1", "none-seed2")


def sentences(count: int, seed: int) -> str:
    """Lines of source and target, all sources different."""
    draw = random.Random(seed)
    sources: dict[str, str] = {}
    while len(sources) < count:
        words = draw.choices(list(WORDS), k=draw.randint(3, 7))
        sources[" ".join(words)] = " ".join(WORDS[word] for word in words)
    return "".join(f"{source}\t{target}\n" for source, target in sources.items())


def write_recipe(folder: Path) -> Path:
    """Write a corpus and a recipe."""
    for name, count, seed in (("train", 150, 1), ("valid", 10, 2), ("test", 60, 3), ("other", 20, 4)):
        (folder / f"{name}.tsv").write_text(sentences(count, seed), encoding="utf-8")
    body = {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0}
    recipe = {
        "data": {
            "train": [{"kind": "tsv", "file": "train.tsv"}],
            "validation": {"kind": "tsv", "file": "valid.tsv"},
            "tests": {"test": {"kind": "tsv", "file": "test.tsv"}, "other": {"kind": "tsv", "file": "other.tsv"}},
        },
        "tokenizer": {"kind": "word", "min_count": 1},
        "model": {"width": 24, "encoder": body, "decoder": {**body, "attention": {"kind": "dot"}}},
        "training": {
            "precision": "float32",
            "lr": 0.015,
            "schedule": {"kind": "constant", "warmup": 5},
            "batches": {"tokens": 300},
            "limits": {"steps": 90},
            "label_smoothing": 0.0,
            "validate_every": 30,
            "stopping": {"monitor": "metric"},
            "result": "last",
            "device": "cpu",
            "threads": 1,
        },
        "decoding": {"beam": 2, "max_length": 12},
        "evaluation": {"metrics": ["bleu", "chrf", "exact", "perplexity"], "bootstrap": 100},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Run folders by name; shared, do not change them."""
    folder = tmp_path_factory.mktemp("comparison")
    with own_cache(folder / "cache"):
        recipe = write_recipe(folder)
        runs: dict[str, Path] = {}
        for name in NAMES:
            attention, _, seed = name.partition("-seed")
            overrides = [f"model.decoder.attention.kind={attention}", f"seed={seed}"]
            runs[name] = sightline.train(recipe, overrides, out=folder / "runs" / name, display=Silent()).folder
        yield runs


@pytest.fixture
def copied(trained: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """`copied("dot-seed1", "mine", seed=3)`: a copy of a run with changed recipe keys."""

    def copy(name: str, new: str, **changes: Any) -> Path:
        run = Path(shutil.copytree(trained[name], tmp_path / new))
        recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
        for key, value in changes.items():
            place = recipe
            *way, last = key.split("__")
            for part in way:
                place = place[part]
            place[last] = value
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe, allow_unicode=True, sort_keys=False), encoding="utf-8")
        seal_run(run)
        return run

    return copy


@pytest.fixture(scope="session")
def pair(trained: dict[str, Path]) -> ComparisonResult:
    """Two runs, one system each."""
    return sightline.compare([trained["none-seed1"], trained["dot-seed1"]], device="cpu")


@pytest.fixture(scope="session")
def seeded(trained: dict[str, Path]) -> ComparisonResult:
    """Two systems of two seeds each."""
    return sightline.compare(list(trained.values()), device="cpu")


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Run folders of the other tasks, by name; shared, do not change them."""
    names = ["lm-gru", "lm-transformer", "lm-lines", "lm-bpe", "lm-squeezed", "classify-mean", "classify-max"]
    with trained_tasks(tmp_path_factory.mktemp("tasks"), [*names, "tag-gru", "names-gru", "names-lstm"]) as runs:
        yield runs
