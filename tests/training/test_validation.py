"""Validation during training: the loss over batches of similar lengths, and samples of outputs."""

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
from sightline.text.tokenizer import END
from sightline.training.validation import Validator

GRU = {"kind": "recurrent", "cell": "gru", "layers": 1}
LONG = {"beam": 4, "max_length": 800, "min_length": 300, "max_ratio": 200.0}
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
    """The loss of an untrained classifier, and its validator."""
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
def test_examples_with_empty_labels_do_not_change_the_loss(tmp_path: Path, body: str) -> None:
    expected, _ = validated(tmp_path, body, LABELLED)
    found, _ = validated(tmp_path, body, [*LABELLED, *EMPTY])
    assert found == pytest.approx(expected, rel=1e-6)  # float32, in other batches


def test_the_loss_without_any_label_is_nan(tmp_path: Path) -> None:
    loss, _ = validated(tmp_path, "recurrent", EMPTY)
    assert math.isnan(loss)


def test_batches_hold_texts_of_similar_lengths(tmp_path: Path) -> None:
    _, validator = validated(tmp_path, "recurrent", LABELLED * 4)
    show = collate_fn(validator.recipe)
    spans = []
    for part in validator._by_length():
        side = show([validator.sources[at] for at in part], [validator.targets[at] for at in part]).source
        assert side is not None
        spans.append((min(side.lengths()), max(side.lengths())))
    assert len(spans) > 2
    assert all(before[1] <= behind[0] for before, behind in pairwise(spans))


# --- samples -----------------------------------------------------------------------------------------------------


class Counted:
    """Count the decoding steps of a model and the most rows in one step."""

    def __init__(self, model: Any) -> None:
        self.steps, self.rows = 0, 0
        advance = model.advance

        def counted(tokens: torch.Tensor, *rest: Any) -> Any:
            self.steps, self.rows = self.steps + 1, max(self.rows, len(tokens))
            return advance(tokens, *rest)

        model.advance = counted


def sampled(folder: Path, decoding: dict[str, Any], *, end: float) -> tuple[list[str], Counted]:
    """The outputs of a model's samples, and the counted steps."""
    samples, counted = samples_of(folder, "one two three\tone two three\ntwo one\ttwo one\n" * 4, decoding, end=end)
    assert [sample["source"] for sample in samples] == ["one two three", "two one"]
    return [sample["output"] for sample in samples], counted


def samples_of(
    folder: Path, text: str, decoding: dict[str, Any], *, end: float
) -> tuple[list[dict[str, str]], Counted]:
    """The samples of an untrained model with this bias for the end token, and the counted steps."""
    (folder / "pairs.tsv").write_text(text)
    pairs = {"kind": "tsv", "file": "pairs.tsv"}
    recipe = Recipe.model_validate(
        {
            "data": {"folder": str(folder), "train": [pairs], "validation": pairs},
            "tokenizer": {"kind": "word", "min_count": 1},
            "model": {"width": 8, "encoder": GRU, "decoder": GRU},
            "training": {"samples": 2},
            "decoding": decoding,
        }
    )
    prepared = prepare_data(recipe)
    torch.manual_seed(1)
    model = build_model(recipe, prepared.vocabulary).eval()
    with torch.no_grad():
        model.output.bias[END] = end
    counted = Counted(model)
    return Validator(prepared, torch.device("cpu")).samples(model), counted


def test_long_outputs_are_decoded_only_as_far_as_they_are_shown(tmp_path: Path) -> None:
    outputs, counted = sampled(tmp_path, LONG, end=-50.0)
    assert all(output.endswith(" …") and len(output.split()) == 127 + 1 for output in outputs)
    assert counted.steps == 128  # not 800, and the last one is the end mark
    assert counted.rows == 2  # two sentences, one hypothesis each


def test_a_minimum_length_beyond_the_sample_does_not_empty_it(tmp_path: Path) -> None:
    outputs, _ = sampled(tmp_path, LONG, end=50.0)
    assert all(len(output.split()) == 127 + 1 for output in outputs)


def test_short_outputs_are_shown_whole(tmp_path: Path) -> None:
    outputs, counted = sampled(tmp_path, {**LONG, "min_length": 5}, end=50.0)
    assert all(len(output.split()) == 5 and "…" not in output for output in outputs)
    assert counted.steps == 6
    outputs, _ = sampled(tmp_path, {"max_length": 20, "max_ratio": 200.0}, end=-50.0)  # the recipe's own limit
    assert all(len(output.split()) == 19 and "…" not in output for output in outputs)


def test_long_sources_and_references_are_shortened(tmp_path: Path) -> None:
    article = "one two three " * 400
    text = f"two one\ttwo one\n{article}\t{article}end\n"
    (short, long), _ = samples_of(tmp_path, text, {"max_length": 20}, end=50.0)
    assert (short["source"], short["reference"]) == ("two one", "two one")
    for shown in (long["source"], long["reference"]):
        assert shown.startswith("one two three one") and shown.endswith("…") and len(shown) <= 400
