"""Preparing data: defaults and notes that depend on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sightline.data.preparation import marks_spans, with_defaults
from sightline.data.sources import training_examples
from sightline.data.text_files import DataError
from sightline.recipe import Recipe


def test_lines_after_the_limit_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\nc\td\nno tab here\n")
    source = {"kind": "tsv", "file": "a.tsv"}
    data = {"folder": str(tmp_path), "train": [source], "validation": source, "limit": 2}
    recipe = Recipe.model_validate({"data": data, "model": {"decoder": {"kind": "transformer"}}})
    assert list(training_examples(recipe)) == [("a", "b"), ("c", "d")]


def test_examples_are_read_in_the_direction_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\nc\td\n")
    source = {"kind": "tsv", "file": "a.tsv"}
    data = {"folder": str(tmp_path), "train": [source], "validation": source, "swap": True}
    recipe = Recipe.model_validate({"data": data, "model": {"decoder": {"kind": "transformer"}}})
    assert list(training_examples(recipe)) == [("b", "a"), ("d", "c")]


def test_tagger_with_uneven_labels_is_an_error_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a dog\tDET NOUN\na dog\tDET\n")
    source = {"kind": "tsv", "file": "a.tsv"}
    data = {"folder": str(tmp_path), "train": [source], "validation": source}
    recipe = Recipe.model_validate({"task": "tagging", "data": data, "model": {"encoder": {"kind": "transformer"}}})
    with pytest.raises(DataError, match=r"a\.tsv, line 2: "):
        list(training_examples(recipe))


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ({"B-PER", "I-PER", "O"}, True),
        ({"B-PER", "O", "S-LOC", "E-PER"}, True),
        ({"O"}, False),
        ({"NOUN", "VERB", "O"}, False),
        ({"B-PER", "I-PER", "O", "NOUN"}, False),
        (set(), False),
    ],
)
def test_tags_that_mark_spans_are_known_by_their_scheme(tags: set[str], spans: bool) -> None:
    assert marks_spans(tags) == spans


def recipe(folder: Path, task: str = "tagging", **evaluation: Any) -> Recipe:
    source = {"kind": "columns", "file": str(folder / "in.col")}
    sections = {"evaluation": evaluation} if evaluation else {}
    return Recipe.model_validate({"task": task, "data": {"train": [source], "validation": source}, **sections})


def test_span_f1_comes_first_where_the_training_labels_mark_spans(tmp_path: Path) -> None:
    (tmp_path / "in.col").write_text("Anna B-PER\nsings O\n\nin O\nNew B-LOC\nYork I-LOC\n")
    filled, notes = with_defaults(recipe(tmp_path))
    assert filled.evaluation.metrics == ("span-f1", "token-accuracy")
    assert any("so the first metric is span F1" in note for note in notes)
    chosen = recipe(tmp_path, metrics=["token-accuracy"])
    assert with_defaults(chosen)[0].evaluation.metrics == ("token-accuracy",)
    saved = Recipe.model_validate(filled.model_dump(mode="json"))
    assert with_defaults(saved) == (saved, [])


def test_parts_of_speech_keep_token_accuracy(tmp_path: Path) -> None:
    (tmp_path / "in.col").write_text("Anna PROPN\nsings VERB\n")
    filled, notes = with_defaults(recipe(tmp_path, bootstrap=10))
    assert filled.evaluation.metrics == ("token-accuracy",)
    assert not any("span F1" in note for note in notes)
