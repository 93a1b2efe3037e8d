"""Finished runs whose recipes could not be trained today remain usable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import sightline
from sightline.recipe.loading import RecipeError
from sightline.run_folder import seal_run

DRY = {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.0}
OLDER: dict[str, tuple[dict[str, Any], str]] = {
    "R-Drop without dropout": (
        {"model": {"encoder": DRY, "decoder": DRY}, "training": {"rdrop": 5.0}},
        r"training\.rdrop.* makes two passes",
    ),
    "Transformer layers that are not there": (
        {"training": {"gradient_checkpointing": True}},
        r"training\.gradient_checkpointing: true .* is for Transformer layers",
    ),
    "a test set without sources": (
        {"data": {"tests": {"own": {"kind": "plain", "file": "a.txt"}}}},
        r"data\.tests\.own\.kind: plain is text without a source side",
    ),
}


@pytest.mark.parametrize("name", OLDER)
def test_finished_run_with_an_old_recipe_is_usable(name: str, finished: Path) -> None:
    texts = ["3 May 2001", "17 August 2020"]
    before = sightline.load(finished, device="cpu").predict(texts)
    changes, told = OLDER[name]
    recipe = yaml.safe_load((finished / "recipe.yaml").read_text())
    merged = {section: {**recipe[section], **changed} for section, changed in changes.items()}
    (finished / "recipe.yaml").write_text(yaml.safe_dump({**recipe, **merged}))
    seal_run(finished)
    assert sightline.load(finished, device="cpu").predict(texts) == before
    with pytest.raises(RecipeError, match=f"^{finished}: {told}"):
        sightline.train(finished, out=finished.parent / "again")
    assert not (finished.parent / "again").exists()
