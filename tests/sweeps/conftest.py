"""A small corpus and a recipe of twelve steps, with their own caches."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

BODY = {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of the recipe file."""
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SIGHTLINE_CORPORA", "")
    monkeypatch.chdir(tmp_path)
    lines = [f"{day} May {year}\t{year}-05-{day:02d}\n" for day in range(1, 11) for year in range(2000, 2005)]
    (tmp_path / "train.tsv").write_text("".join(lines[5:]))
    (tmp_path / "valid.tsv").write_text("".join(lines[:5]))
    document = {
        "data": {
            "train": [{"kind": "tsv", "file": "train.tsv"}],
            "validation": {"kind": "tsv", "file": "valid.tsv"},
            "clean": {"max_tokens": 32},
        },
        "tokenizer": {"kind": "character"},
        "model": {"width": 8, "encoder": BODY, "decoder": BODY},
        "training": {
            "schedule": {"kind": "cosine", "warmup": 3},
            "batches": {"tokens": 200},
            "limits": {"steps": 12},
            "validate_every": 6,
            "save_every": 3,
            "log_every": 3,
            "samples": 0,
            "device": "cpu",
        },
        "decoding": {"beam": 1, "max_length": 12},
        "evaluation": {"metrics": ["exact"]},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)
