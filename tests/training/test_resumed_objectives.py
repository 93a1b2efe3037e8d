"""A training that was stopped and goes on is the one that was never stopped, whatever it minimizes."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tiny_jobs import assert_equal

import sightline
from sightline.recipe import Recipe
from sightline.training.world import Interrupted
from watched_runs import Silent, records

TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.2}
GATED = {"kind": "convolutional", "layers": 1, "dropout": 0.2}
EXPERTS = {**TRANSFORMER, "feedforward": {"experts": {"count": 3, "top_k": 2}}}
RECURRENT = {"kind": "recurrent", "dropout": 0.2}
CUT_ANEW = {"dropout": 0.3, "variants": 2}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {  # body, tokenizer, training
    "R-Drop over experts": (EXPERTS, {}, {"rdrop": 2.0, "averaging": {"kind": "ema"}}),
    "BPE-dropout": (GATED, CUT_ANEW, {"batches": {"tokens": 60, "accumulate": 3}}),
    "guided by links": (
        RECURRENT,
        CUT_ANEW,
        {"guided_alignment": {"file": "links.txt"}, "averaging": {"kind": "checkpoints", "count": 2}},
    ),
}


def recipe(folder: Path, body: dict[str, Any], tokenizer: dict[str, Any], training: dict[str, Any]) -> Recipe:
    """Over sentences that are turned round, in two epochs of at least four steps each."""
    draw = random.Random(1)
    sentences = [draw.choices(["ab", "cab", "bac", "acca"], k=draw.randint(1, 5)) for _ in range(60)]
    lines = [f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in sentences]
    links = [" ".join(f"{len(row) - 1 - at}-{at}" for at in range(len(row))) for row in sentences]
    (folder / "pairs.tsv").write_text("".join(lines))
    (folder / "links.txt").write_text("".join(f"{row}\n" for row in links))
    return Recipe.model_validate(
        {
            "data": {
                "folder": str(folder),
                "train": [{"kind": "tsv", "file": "pairs.tsv"}],
                "validation": {"kind": "tsv", "file": "pairs.tsv"},
                "validation_limit": 5,
            },
            "tokenizer": {"kind": "bpe", "size": 16, "min_count": 1, **tokenizer},
            "model": {"width": 8, "encoder": body, "decoder": body},
            "training": {
                "precision": "float32",
                "lr": 1e-2,
                "schedule": {"kind": "cosine", "warmup": 3},
                "batches": {"tokens": 100},
                "limits": {"epochs": 2},
                "log_every": 4,
                "save_every": 3,
                "samples": 0,
                "device": "cpu",
                "threads": 1,
                **training,
            },
        }
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_training_equals_the_uninterrupted_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    assert_ends_the_same(recipe(tmp_path, *KINDS[kind]), tmp_path)


def test_a_resumed_language_model_continues_from_its_carried_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    draw = random.Random(1)
    (tmp_path / "text.txt").write_text("".join("".join(draw.choices("abc", k=40)) + "\n" for _ in range(10)))
    text = {"kind": "plain", "file": "text.txt"}
    sections = {
        "task": "language-model",
        "data": {"folder": str(tmp_path), "train": [text], "validation": text},
        "tokenizer": {"kind": "character"},
        "model": {"width": 8, "tie": "none", "decoder": {**RECURRENT, "attention": {"kind": "none"}}},
        "training": {
            "precision": "float32",
            "lr": 1e-2,
            "batches": {"tokens": 32, "context": 8},
            "limits": {"epochs": 1},
            "log_every": 4,
            "samples": 0,
            "device": "cpu",
            "threads": 1,
        },
    }
    assert_ends_the_same(Recipe.model_validate(sections), tmp_path)


def assert_ends_the_same(sections: Recipe, tmp_path: Path) -> None:
    whole = sightline.train(sections, out=tmp_path / "whole", display=Silent()).folder
    assert records(whole)[-1]["step"] > 6
    stop = Silent(at={5: lambda: signal.raise_signal(signal.SIGINT)})
    with pytest.raises(Interrupted):
        sightline.train(sections, out=tmp_path / "stopped", display=stop)
    resumed = sightline.train(sections, out=tmp_path / "stopped", resume=True, display=Silent()).folder
    assert_equal(load_file(resumed / "model.safetensors"), load_file(whole / "model.safetensors"))
    assert records(resumed) == records(whole)
