"""README.md of a run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sightline.recipe import Recipe
from sightline.training.model_card import write_model_card

TEXT = {"kind": "plain", "file": "text.txt"}


def recipe_of(**training: Any) -> Recipe:
    body = {"kind": "recurrent", "cell": "gru", "layers": 1, "attention": {"kind": "none"}}
    data, model = {"train": [TEXT], "validation": TEXT}, {"width": 8, "decoder": body}
    training["limits"] = {"steps": 5}
    return Recipe.model_validate({"task": "language-model", "data": data, "model": model, "training": training})


def test_samples_are_rows_of_a_table_whatever_is_written_in_them(tmp_path: Path) -> None:
    recipe = recipe_of()
    samples = [
        {"source": "ROMEO:\n", "reference": "ROMEO:\nO love", "output": "ROMEO:\r\nthe | old"},
        {"source": "word " * 5_000, "reference": "word " * 5_000 + "\n", "output": "said …"},
    ]
    record = {"kind": "validation", "step": 5, "tokens": 50, "seconds": 3.0, "best": True, "samples": samples}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    write_model_card(tmp_path, recipe, 1_000)
    first, second = (tmp_path / "README.md").read_text().split("|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert first == r"| ROMEO:⏎ | ROMEO:⏎O love | ROMEO:⏎the \| old |"
    assert second.endswith(" word… | said … |")
    assert len(second) < 850


def test_weights_that_are_not_of_one_step_are_said_to_be_so(tmp_path: Path) -> None:
    def row(**averaging: Any) -> list[str]:
        write_model_card(tmp_path, recipe_of(averaging=averaging), 1_000)
        return [line for line in (tmp_path / "README.md").read_text().splitlines() if line.startswith("| weights |")]

    assert row() == []
    assert row(kind="ema", decay=0.99) == [
        "| weights | a running average (decay 0.99), which validations were of, too |"
    ]
    mean = {"kind": "checkpoints", "count": 3}
    single = "; no validation or sample is of it |"
    assert row(**mean) == [f"| weights | the mean of the newest 3 checkpoints{single}"]
    (tmp_path / "checkpoints" / "step-00000008").mkdir(parents=True)
    progress = tmp_path / "checkpoints" / "step-00000008" / "progress.json"
    progress.write_text(json.dumps({"step": 8, "recent": [4, 6, 8]}))
    assert row(**mean) == [f"| weights | the mean of the checkpoints of step 4, 6, 8{single}"]
