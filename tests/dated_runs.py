"""Tiny trainings on written dates: a corpus and a recipe of twelve steps, for several kinds of model."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

LSTM = {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.2}
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.2}
CHARACTERS = {"kind": "character"}


def dates(count: int, start: int) -> list[str]:
    days = (datetime.date(2000, 1, 1) + datetime.timedelta(days=start + 37 * number) for number in range(count))
    return [f"{day.day} {day:%B} {day.year}\t{day.isoformat()}\n" for day in days]


def write_recipe(
    folder: Path,
    body: dict[str, Any] = LSTM,
    tokenizer: dict[str, Any] = CHARACTERS,
    width: int = 16,
    noise: str | None = None,
    **training: Any,
) -> Path:
    """A corpus and a recipe of twelve small steps beside it."""
    (folder / "train.tsv").write_text("".join(dates(60, 0)))
    (folder / "valid.tsv").write_text("".join(dates(6, 11)))
    recipe = {
        "data": {
            "train": [{"kind": "tsv", "file": "train.tsv"}],
            "validation": {"kind": "tsv", "file": "valid.tsv"},
            "clean": {"max_tokens": 32},
        },
        "tokenizer": tokenizer,
        "model": {"width": width, "encoder": body, "decoder": body},
        "training": {
            "precision": "float32",
            "lr": 5e-3,
            "schedule": {"kind": "cosine", "warmup": 3},
            "batches": {"tokens": 200},
            "limits": {"steps": 12},
            "validate_every": 4,
            "save_every": 2,
            "keep": 2,
            "log_every": 3,
            "samples": 1,
            "device": "cpu",
            "threads": 1,
            **training,
        },
        "decoding": {"beam": 2, "max_length": 12},
        "evaluation": {"metrics": ["exact"]},
    }
    if noise is not None:  # the same lines as text
        del recipe["evaluation"]
        recipe["task"] = "masked-lm" if noise == "mask" else "seq2seq"
        recipe["model"] = {"width": width, "encoder": body, **({} if noise == "mask" else {"decoder": body})}
        train, valid = ({"kind": "plain", "file": f"{name}.tsv"} for name in ("train", "valid"))
        recipe["data"] = {"train": [{**train, "weight": 1.5}], "validation": valid, "noise": {"kind": noise}}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


KINDS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "transformer-ema": {"body": TRANSFORMER, "averaging": {"kind": "ema", "decay": 0.9}},
    "bpe-dropout-averaged-accumulated": {
        "body": TRANSFORMER,
        "tokenizer": {"kind": "bpe", "size": 60, "dropout": 0.2, "variants": 2},
        "averaging": {"kind": "checkpoints", "count": 3},
        "batches": {"tokens": 100, "accumulate": 2},
        "stopping": {"monitor": "metric"},
    },
    "masked-words": {"body": TRANSFORMER, "noise": "mask", "batches": {"tokens": 512, "context": 32}},
    "denoising": {"body": TRANSFORMER, "noise": "text-infilling", "batches": {"tokens": 512, "context": 32}},
    "span-corruption": {"body": TRANSFORMER, "noise": "span-corruption", "batches": {"tokens": 512, "context": 32}},
}


@dataclass(frozen=True)
class Trained:
    """A recipe and the run folder of its uninterrupted training."""

    recipe: Path
    run: Path

    def model(self) -> bytes:
        return (self.run / "model.safetensors").read_bytes()
