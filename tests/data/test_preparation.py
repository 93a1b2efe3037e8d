"""From a recipe to examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from sightline.data.sources import training_examples
from sightline.data.text_files import DataError
from sightline.recipe import Recipe


def test_what_stands_behind_the_limit_is_not_read(tmp_path: Path) -> None:
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


def test_a_tagger_has_a_label_for_each_word_or_the_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a dog\tDET NOUN\na dog\tDET\n")
    source = {"kind": "tsv", "file": "a.tsv"}
    data = {"folder": str(tmp_path), "train": [source], "validation": source}
    recipe = Recipe.model_validate({"task": "tagging", "data": data, "model": {"encoder": {"kind": "transformer"}}})
    with pytest.raises(DataError, match=r"a\.tsv, line 2: "):
        list(training_examples(recipe))
