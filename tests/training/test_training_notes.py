"""What a training says before its first step, so that nobody learns of it after the last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import sightline
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


def test_labels_of_the_validation_that_were_never_learned_are_counted(tmp_path: Path) -> None:
    recipe = write(tmp_path, CLASSIFIER)
    (tmp_path / "valid.txt").write_text("the cat sat .\tthat thing\na dog ran .\tno thing\n")
    (said,) = [note for note in notes(recipe) if "never right" in note]
    assert said.startswith("1 of 2 validation labels not among the 2 of the training text")


def test_a_text_of_the_validation_without_a_label_is_counted_too(tmp_path: Path) -> None:
    recipe = write(tmp_path, CLASSIFIER)
    (tmp_path / "valid.txt").write_text("the cat sat .\tthat thing\na dog ran .\t\n")
    (said,) = [note for note in notes(recipe) if "never right" in note]
    assert said.startswith("1 of 2 validation labels not among the 2 of the training text")


def test_labels_that_only_spaces_tell_apart_are_named(tmp_path: Path) -> None:
    recipe = write(tmp_path, CLASSIFIER)
    with (tmp_path / "train.txt").open("a") as file:
        file.write("a bird sang .\tthat thing \n")
    (said,) = [note for note in notes(recipe) if "spaces" in note]
    assert said.startswith("labels 'that thing', 'that thing ': only spaces tell them apart, so they are learned as 2")


def test_labels_of_words_are_counted_once_for_all_their_pieces(tmp_path: Path) -> None:
    recipe = write(tmp_path, TAGGER)
    (tmp_path / "valid.txt").write_text("the cat sat .\tDET NOUN VERB SYM\n")
    (said,) = [note for note in notes(recipe) if "never right" in note]
    assert said.startswith("1 of 4 validation labels not among the 4 of the training text")


def test_a_test_set_that_is_not_there_is_told_and_the_training_goes_on(tmp_path: Path) -> None:
    recipe = write(tmp_path, CLASSIFIER)
    (tmp_path / "test.txt").unlink()
    said = [note for note in notes(recipe) if note.startswith("data.tests.other: ")]
    assert len(said) == 1 and "test.txt does not exist; check its name in the recipe" in said[0]


def test_a_step_that_cannot_be_compiled_is_told(tmp_path: Path) -> None:
    said = [note for note in notes(write(tmp_path, TAGGER), "training.compile=true") if "compile" in note]
    assert len(said) == 1 and said[0].startswith("training.compile: true is left undone: a step is compiled where")


def test_where_nothing_is_amiss_nothing_is_said(tmp_path: Path) -> None:
    assert not [
        note
        for note in notes(write(tmp_path, TAGGER))
        if any(said in note for said in ("never right", "spaces", "data.tests"))
    ]


@pytest.mark.parametrize("has", [True, False])
def test_a_cpu_without_products_of_bfloat16_trains_in_float32_and_says_so(
    has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.layers.devices.cpu_multiplies_bfloat16", lambda: has)
    recipe, asked = write(tmp_path, CLASSIFIER), []
    autocast = torch.autocast
    monkeypatch.setattr("torch.autocast", lambda *words, **more: asked.append(words) or autocast(*words, **more))
    told = [note for note in notes(recipe, "training.precision=bf16", "training.device=cpu") if "bfloat16" in note]
    left = "training.precision: bf16 is not used: this CPU has no instructions for bfloat16; using float32"
    assert told == ([] if has else [left])
    assert (("cpu", torch.bfloat16) in asked) == has
