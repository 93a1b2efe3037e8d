"""README.md of a run folder."""

from __future__ import annotations

import json
from pathlib import Path

from sightline.model_card import write_model_card
from sightline.recipe import Recipe

TEXT = {"kind": "plain", "file": "text.txt"}


def test_samples_are_rows_of_a_table_whatever_is_written_in_them(tmp_path: Path) -> None:
    body = {"kind": "recurrent", "cell": "gru", "layers": 1, "attention": {"kind": "none"}}
    data = {"train": [TEXT], "validation": TEXT}
    recipe = Recipe.model_validate({"task": "language-model", "data": data, "model": {"width": 8, "decoder": body}})
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
