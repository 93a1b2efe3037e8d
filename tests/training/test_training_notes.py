"""Notes that a training prints before its first step, and the model card of its run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline
from sightline.recipe import Recipe
from sightline.training.model_card import write_model_card
from task_cases import LSTM, case, write
from watched_runs import Silent, own_cache

CLASSIFIER = case("classification", {"encoder": LSTM, "pooling": {"kind": "mean"}})
TAGGER = case("tagging", {"encoder": LSTM})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with own_cache(tmp_path / "cache") as folder:
        yield folder


def notes(recipe: Path, *changes: str) -> list[str]:
    display = Silent()
    sightline.train(recipe, ["training.limits.steps=1", *changes], out=recipe.parent / "run", display=display)
    return display.notes


@pytest.mark.parametrize("label", ["no thing", ""])
def test_validation_labels_missing_from_the_training_text_are_counted(label: str, tmp_path: Path) -> None:
    recipe = write(tmp_path, CLASSIFIER)
    (tmp_path / "valid.txt").write_text(f"the cat sat .\tthat thing\na dog ran .\t{label}\n")
    (note,) = [note for note in notes(recipe) if "never right" in note]
    assert note.startswith("1 of 2 validation labels not among the 2 of the training text")


def test_labels_that_differ_only_in_spaces_are_named(tmp_path: Path) -> None:
    recipe = write(tmp_path, CLASSIFIER)
    with (tmp_path / "train.txt").open("a") as file:
        file.write("a bird sang .\tthat thing \n")
    (note,) = [note for note in notes(recipe) if "spaces" in note]
    assert note.startswith("labels 'that thing', 'that thing ': only spaces tell them apart, so they are learned as 2")


def test_missing_word_labels_are_counted_once_per_word(tmp_path: Path) -> None:
    recipe = write(tmp_path, TAGGER)
    (tmp_path / "valid.txt").write_text("the cat sat .\tDET NOUN VERB SYM\n")
    (note,) = [note for note in notes(recipe) if "never right" in note]
    assert note.startswith("1 of 4 validation labels not among the 4 of the training text")


def test_a_missing_test_set_is_reported_and_does_not_stop_training(tmp_path: Path) -> None:
    recipe = write(tmp_path, CLASSIFIER)
    (tmp_path / "test.txt").unlink()
    found = [note for note in notes(recipe) if note.startswith("data.tests.other: ")]
    assert len(found) == 1 and "test.txt does not exist; check its name in the recipe" in found[0]


def test_an_ignored_compile_option_is_reported(tmp_path: Path) -> None:
    found = [note for note in notes(write(tmp_path, TAGGER), "training.compile=true") if "compile" in note]
    assert len(found) == 1 and found[0].startswith("training.compile: true has no effect: a step is compiled where")


def test_no_notes_without_problems(tmp_path: Path) -> None:
    assert not [
        note
        for note in notes(write(tmp_path, TAGGER))
        if any(said in note for said in ("never right", "spaces", "data.tests"))
    ]


@pytest.mark.parametrize("supported", [True, False])
def test_a_cpu_without_bfloat16_trains_in_float32_and_reports_it(
    supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.layers.devices.cpu_multiplies_bfloat16", lambda: supported)
    recipe, asked = write(tmp_path, CLASSIFIER), []
    autocast = torch.autocast
    monkeypatch.setattr("torch.autocast", lambda *words, **more: asked.append(words) or autocast(*words, **more))
    found = [note for note in notes(recipe, "training.precision=bf16", "training.device=cpu") if "bfloat16" in note]
    left = "training.precision: bf16 is not used: this CPU has no instructions for bfloat16; using float32"
    assert found == ([] if supported else [left])
    assert (("cpu", torch.bfloat16) in asked) == supported


# --- README.md of the run folder -----------------------------------------------------------------------------------

TEXT = {"kind": "plain", "file": "text.txt"}


def recipe_of(**training: Any) -> Recipe:
    body = {"kind": "recurrent", "cell": "gru", "layers": 1, "attention": {"kind": "none"}}
    data, model = {"train": [TEXT], "validation": TEXT}, {"width": 8, "decoder": body}
    training["limits"] = {"steps": 5}
    return Recipe.model_validate({"task": "language-model", "data": data, "model": model, "training": training})


def test_samples_are_escaped_and_shortened_in_the_table(tmp_path: Path) -> None:
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


def test_averaged_weights_are_described(tmp_path: Path) -> None:
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
