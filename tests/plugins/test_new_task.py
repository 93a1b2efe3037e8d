"""A task of a plug-in: one class, one spec, one line to register both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import sightline
from installed_plugins import forget_plugins
from sightline.recipe.loading import RecipeError, load_recipe
from sightline.recipe.tasks import SEQ2SEQ
from sightline.tasks.seq2seq import Seq2SeqTask


class Spelling(Seq2SeqTask):
    """Sequence to sequence, scored by exact matches."""


SPEC = replace(
    SEQ2SEQ,
    name="spelling",
    description="A model that spells",
    default_metrics=("exact",),
    with_noise=None,
    aliases=("spell",),
    model={"encoder": {"kind": "recurrent", "cell": "gru"}, "decoder": {"kind": "recurrent", "cell": "gru"}},
)


def test_a_task_is_registered_with_its_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_plugins(monkeypatch)
    sightline.register("task", "spelling", Spelling, config=SPEC)
    (tmp_path / "pairs.tsv").write_text("ab\ta b\nba\tb a\nabb\ta b b\n" * 8)
    source = {"kind": "tsv", "file": "pairs.tsv"}
    recipe: dict[str, Any] = {
        "task": "spelling",
        "data": {"train": [source], "validation": source},
        "model": {"width": 8},
        "training": {"limits": {"steps": 2}, "device": "cpu", "threads": 1},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    assert load_recipe(path).evaluation.metrics == ("exact",)
    run = sightline.train(str(path), out=tmp_path / "run")
    assert isinstance(run.task, Spelling)
    assert len(run.predict(["ab"])) == 1
    path.write_text(yaml.safe_dump({**recipe, "task": "speling"}))
    with pytest.raises(RecipeError, match="did you mean spelling"):
        load_recipe(path)
    forget_plugins(monkeypatch)
