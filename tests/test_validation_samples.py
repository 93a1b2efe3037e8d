"""Samples of a model's output at each validation: what a reader sees of them is all that is decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.data.preparation import prepare_data
from sightline.models.build import build_model
from sightline.recipe import Recipe
from sightline.text.tokenizer import END
from sightline.training.validation import Validator

GRU = {"kind": "recurrent", "cell": "gru", "layers": 1}
LONG = {"beam": 4, "max_length": 800, "min_length": 300, "max_ratio": 200.0}


class Counted:
    """How often a model is asked for the next token, and for how many hypotheses."""

    def __init__(self, model: Any) -> None:
        self.steps, self.rows = 0, 0
        advance = model.advance

        def counted(tokens: torch.Tensor, *rest: Any) -> Any:
            self.steps, self.rows = self.steps + 1, max(self.rows, len(tokens))
            return advance(tokens, *rest)

        model.advance = counted


def sampled(folder: Path, decoding: dict[str, Any], *, end: float) -> tuple[list[str], Counted]:
    """The outputs among the samples of a model, and what they cost."""
    samples, counted = samples_of(folder, "one two three\tone two three\ntwo one\ttwo one\n" * 4, decoding, end=end)
    assert [sample["source"] for sample in samples] == ["one two three", "two one"]
    return [sample["output"] for sample in samples], counted


def samples_of(
    folder: Path, text: str, decoding: dict[str, Any], *, end: float
) -> tuple[list[dict[str, str]], Counted]:
    """The samples of an untrained model that likes end marks so much, and what they cost."""
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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))


def test_of_a_long_output_the_beginning_is_written_and_said_to_be_one(tmp_path: Path) -> None:
    outputs, counted = sampled(tmp_path, LONG, end=-50.0)
    assert all(output.endswith(" …") and len(output.split()) == 127 + 1 for output in outputs)
    assert counted.steps == 128  # not 800, and the last one is the end mark
    assert counted.rows == 2  # two sentences, one hypothesis each


def test_a_least_length_beyond_the_sample_does_not_empty_it(tmp_path: Path) -> None:
    outputs, _ = sampled(tmp_path, LONG, end=50.0)
    assert all(len(output.split()) == 127 + 1 for output in outputs)


def test_a_short_output_is_shown_as_it_is(tmp_path: Path) -> None:
    outputs, counted = sampled(tmp_path, {**LONG, "min_length": 5}, end=50.0)
    assert all(len(output.split()) == 5 and "…" not in output for output in outputs)
    assert counted.steps == 6
    outputs, _ = sampled(tmp_path, {"max_length": 20, "max_ratio": 200.0}, end=-50.0)  # the recipe's own limit
    assert all(len(output.split()) == 19 and "…" not in output for output in outputs)


def test_of_a_long_source_and_its_reference_the_journal_keeps_the_beginnings(tmp_path: Path) -> None:
    article = "one two three " * 400
    text = f"two one\ttwo one\n{article}\t{article}end\n"
    (short, long), _ = samples_of(tmp_path, text, {"max_length": 20}, end=50.0)
    assert (short["source"], short["reference"]) == ("two one", "two one")
    for told in (long["source"], long["reference"]):
        assert told.startswith("one two three one") and told.endswith("…") and len(told) <= 400
