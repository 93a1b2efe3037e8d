"""Trainings of every task on sentences of a few words, that can begin with one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

import sightline
from watched_runs import Silent

BODY: dict[str, Any] = {
    "kind": "transformer",
    "layers": 2,
    "heads": 2,
    "feedforward": {"kind": "gelu", "width": 24},
    "positions": {"kind": "rotary"},
    "dropout": 0.1,
}
WORDS = ["the", "a", "dog", "cat", "sees", "hears", "old", "big"]
TAGS = {"the": "DET", "a": "DET", "dog": "NOUN", "cat": "NOUN", "old": "ADJ", "big": "ADJ"}


def sentence(number: int) -> list[str]:
    return [WORDS[(number * 7 + place * (3 + number % 3)) % len(WORDS)] for place in range(3 + number % 3)]


def lines(task: str, numbers: range) -> str:
    """A translation is the sentence backwards."""
    made = [sentence(number) for number in numbers]
    if task == "language-model":
        return "".join(" ".join(words) + "\n" for words in made)
    answers = {
        "seq2seq": lambda words: " ".join(reversed(words)),
        "tagging": lambda words: " ".join(TAGS.get(word, "VERB") for word in words),
        "classification": lambda words: "animal" if {"dog", "cat"} & set(words) else "none",
    }
    if task == "tagging":
        rows = [list(zip(words, answers[task](words).split(" "), strict=True)) for words in made]
        return "".join("".join(f"{word} {tag}\n" for word, tag in row) + "\n" for row in rows)
    return "".join(f"{' '.join(words)}\t{answers[task](words)}\n" for words in made)


PARTS: dict[str, dict[str, Any]] = {
    "seq2seq": {"encoder": BODY, "decoder": BODY, "tie": "all"},
    "language-model": {"decoder": BODY},
    "tagging": {"encoder": BODY},
    "classification": {"encoder": BODY, "pooling": {"kind": "mean"}},
}
KINDS = {"seq2seq": "tsv", "language-model": "plain", "tagging": "columns", "classification": "tsv"}


def a_recipe(task: str, steps: int = 4, *, start: Any = None, model: Any = None, **training: Any) -> dict[str, Any]:
    kind, more = KINDS[task], {"label": 2} if task == "tagging" else {}
    recipe: dict[str, Any] = {
        "task": task,
        "data": {
            "train": [{"kind": kind, "file": f"{task}.train", **more}],
            "validation": {"kind": kind, "file": f"{task}.valid", **more},
        },
        "model": {"width": 16, **PARTS[task], **(model or {})},
        "training": {
            "precision": "float32",
            "lr": 5e-3,
            "schedule": {"kind": "constant", "warmup": 0},
            "batches": {"tokens": 60, "context": 16},
            "limits": {"steps": steps},
            "validate_every": 2,
            "stopping": {"monitor": "loss"},
            "log_every": 1,
            "samples": 0,
            "device": "cpu",
            "threads": 1,
            **training,
        },
        "decoding": {"beam": 1, "max_length": 8},
    }
    if start is None:
        recipe["tokenizer"] = {"kind": "word", "min_count": 1}
    else:
        recipe["model"]["init_from"] = start if isinstance(start, dict) else str(start)
    return recipe


class Trainer:
    """Trains recipes on the texts of `folder`."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.display = Silent()

    def __call__(self, recipe: dict[str, Any], *changes: str, out: str = "run", **more: Any) -> Path:
        return sightline.train(
            self.write(recipe), changes, out=self.out / out, **{"display": self.display, **more}
        ).folder

    def write(self, recipe: dict[str, Any]) -> Path:
        path = self.out / "recipe.yaml"
        path.write_text(yaml.safe_dump({**recipe, "data": {"folder": str(self.folder), **recipe["data"]}}))
        return path


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


STAY = {"lr": 1e-12, "limits": {"steps": 1}}  # a training that changes nothing to speak of
