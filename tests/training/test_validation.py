"""The loss of a validation set: examples are put together by length, and empty labels ask for nothing."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.data.collate import collate_fn
from sightline.data.preparation import prepare_data
from sightline.models.build import build_model
from sightline.recipe import Recipe
from sightline.training.validation import Validator

BODIES: dict[str, dict[str, Any]] = {
    "recurrent": {"kind": "recurrent", "dropout": 0.0},
    "transformer": {"kind": "transformer", "layers": 1, "heads": 2},
}
LABELLED = [f"a day of {'many ' * (number % 7)}words\t{'yes' if number % 2 else 'no'}\n" for number in range(90)]
EMPTY = [f"nobody knows {number}\t\n" for number in range(90)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))


def validated(folder: Path, body: str, lines: list[str]) -> tuple[float, Validator]:
    """The loss of an untrained classifier, and the validator that found it."""
    (folder / "train.tsv").write_text("".join(LABELLED))
    (folder / "valid.tsv").write_text("".join(lines))
    recipe = Recipe.model_validate(
        {
            "task": "classification",
            "data": {
                "folder": str(folder),
                "train": [{"kind": "tsv", "file": "train.tsv"}],
                "validation": {"kind": "tsv", "file": "valid.tsv"},
            },
            "tokenizer": {"kind": "word", "min_count": 1},
            "model": {"width": 8, "encoder": BODIES[body], "pooling": {"kind": "mean"}},
        }
    )
    prepared = prepare_data(recipe)
    validator = Validator(prepared, torch.device("cpu"))
    with torch.inference_mode():
        return validator.loss(build_model(recipe, prepared.vocabulary).eval()), validator


@pytest.mark.parametrize("body", BODIES)
def test_labels_that_are_empty_ask_for_nothing_however_many_there_are(tmp_path: Path, body: str) -> None:
    wanted, _ = validated(tmp_path, body, LABELLED)
    found, _ = validated(tmp_path, body, [*LABELLED, *EMPTY])
    assert found == pytest.approx(wanted, rel=1e-6)  # float32, put together otherwise


def test_where_no_label_is_given_the_loss_is_no_number(tmp_path: Path) -> None:
    loss, _ = validated(tmp_path, "recurrent", EMPTY)
    assert math.isnan(loss)


def test_texts_of_like_lengths_are_read_together(tmp_path: Path) -> None:
    _, validator = validated(tmp_path, "recurrent", LABELLED * 4)
    show = collate_fn(validator.recipe)
    spans = []
    for part in validator._by_length():
        side = show([validator.sources[at] for at in part], [validator.targets[at] for at in part]).source
        assert side is not None
        spans.append((min(side.lengths()), max(side.lengths())))
    assert len(spans) > 2
    assert all(before[1] <= behind[0] for before, behind in pairwise(spans))
