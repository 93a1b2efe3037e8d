"""Incomplete run folders, and folders that are no run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import sightline
from sightline.run_folder import RunError


@pytest.fixture
def finished(finished: Path) -> Path:
    """A run as older versions wrote it, whose files nothing describes (test_manifest.py has those of this version)."""
    (finished / "manifest.json").unlink()
    return finished


def test_file_is_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nothing is not a folder; give the folder that `sightline train` wrote"):
        sightline.load(tmp_path / "nothing")


def test_folder_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(RunError, match=r"is not a run folder: it has no recipe\.yaml and no config\.json"):
        sightline.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("config.json", "has no config.json"),
        ("recipe.yaml", "has no recipe.yaml; it is part of every run folder; copy the whole folder"),
        ("tokenizer.json", "tokenizer.json"),
        ("model.safetensors", "has no model.safetensors; finish its training with: sightline train .* --resume"),
    ],
)
def test_missing_file_is_an_error_with_remedy(finished: Path, name: str, told: str) -> None:
    (finished / name).unlink()
    with pytest.raises(ValueError, match=told):
        sightline.load(finished, device="cpu")


def test_a_run_folder_of_a_newer_version_says_how_to_update(finished: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    (finished / "config.json").write_text(json.dumps({**config, "format": 99, "sightline": "9.9"}))
    with pytest.raises(RunError, match=r"written by Sightline 9\.9 in format 99.*pip install -U sightline"):
        sightline.load(finished)


@pytest.mark.parametrize("content", [b'{"format": 1,\n oops', b"\xff\xfe\x00", b"[1, 2]", b""])
def test_a_damaged_config_says_so(finished: Path, content: bytes) -> None:
    (finished / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=r"config\.json is damaged"):
        sightline.load(finished)


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"", lambda data: b"x" * len(data)])
def test_a_damaged_model_says_so(finished: Path, damage: Callable[[bytes], bytes]) -> None:
    weights = finished / "model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(RunError, match=r"model\.safetensors is damaged .* copy it again, or resume the training"):
        sightline.load(finished, device="cpu")


def test_the_weights_of_another_model_are_refused(finished: Path) -> None:
    weights = finished / "model.safetensors"
    save_file({"other.weight": torch.zeros(2)}, weights)
    with pytest.raises(ValueError, match=r"these weights belong to another model: missing .* not expected"):
        sightline.load(finished, device="cpu")
