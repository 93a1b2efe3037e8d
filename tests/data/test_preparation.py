"""From a recipe to examples."""

from __future__ import annotations

from pathlib import Path

from sightline.data.preparation import training_examples
from sightline.recipe import Recipe


def test_what_stands_behind_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\nc\td\nno tab here\n")
    source = {"kind": "tsv", "file": "a.tsv"}
    data = {"folder": str(tmp_path), "train": [source], "validation": source, "limit": 2}
    recipe = Recipe.model_validate({"data": data, "model": {"decoder": {"kind": "transformer"}}})
    assert list(training_examples(recipe)) == [("a", "b"), ("c", "d")]
