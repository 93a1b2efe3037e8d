"""Weights that other programs are to run: what they cannot compute is refused, not left out."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from sightline.models.seq2seq import CopyingSeq2Seq
from sightline.recipe import Recipe

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
POST = {"kind": "transformer", "layers": 1, "heads": 2, "norm": {"place": "post"}, "positions": {"kind": "sinusoidal"}}


def test_a_decoder_that_copies_is_refused_with_the_key_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    recipe = Recipe.model_validate(
        {
            "data": {"train": [{"kind": "tsv", "file": "a.tsv"}], "validation": {"kind": "tsv", "file": "b.tsv"}},
            "model": {"width": 8, "encoder": POST, "decoder": POST, "tie": "all", "copying": True},
        }
    )
    model = CopyingSeq2Seq(recipe.model, 12)
    with pytest.raises(ValueError, match=r"copies words of its source \(model\.copying: true\).*model\.copying: false"):
        importlib.import_module("exports").to_marian(model.state_dict(), 2)
