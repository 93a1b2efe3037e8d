"""Prediction applies the preprocessing of the training sources to raw text."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

import sightline
from ordered_commands import Server
from sightline.data.locate import load_run_recipe
from sightline.run import Run, UnevenSources
from sightline.text.vocabulary import Vocabulary
from watched_runs import Silent

WORDS = ["Abandon", "Bead", "Dab", "Ebb on", "Noah", "Band"]
PATTERN = {"kind": "pattern", "pattern": r"(?P<source>[^|]+)\|(?P<target>.*)", "skip": "^;"}
GRU = {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0}


def write(folder: Path, *spell: bool, **data: Any) -> Path:
    """A recipe with a training source for each value of `spell`, and test sets that spell."""
    lines = [f"{word}|{'-'.join(word.lower())}\n" for word in WORDS]
    (folder / "words.txt").write_text(";;; comment\n" + "".join(lines))
    source = {**PATTERN, "file": "words.txt"}
    recipe = {
        "data": {
            "train": [{**source, "spell": each} for each in spell],
            "validation": {**source, "spell": True},
            "tests": {"test": {**source, "spell": True}},
            **data,
        },
        "tokenizer": {"kind": "word", "min_count": 1, "shared": True, "lowercase": True},
        "model": {"width": 8, "encoder": GRU, "decoder": {**GRU, "attention": {"kind": "dot"}}},
        "training": {"limits": {"steps": 8}, "lr": 0.1, "schedule": {"kind": "constant", "warmup": 0}, "threads": 1},
        "decoding": {"beam": 1, "max_length": 16},
        "evaluation": {"metrics": ["cer", "perplexity"], "bootstrap": 10},
    }
    recipe["training"] |= {"device": "cpu", "validate_every": 8, "samples": 0}  # type: ignore[operator]
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def run(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spelled")
    sightline.train(write(folder, True, True), out=folder / "run", display=Silent())
    return folder / "run"


def test_raw_text_gets_the_preprocessing_of_training(run: Path, command: Server, tmp_path: Path) -> None:
    loaded = sightline.load(run, device="cpu")
    apart = [" ".join(word) for word in WORDS]
    assert loaded.predict(WORDS) == loaded.predict(apart) == loaded.predict([word.upper() for word in WORDS])
    assert all(loaded.predict(WORDS))
    assert loaded.encode_sources(WORDS) == loaded.encode_sources([each.source for each in loaded.test_examples("test")])
    alignment = loaded.align("Dab", "d-a-b")
    assert alignment is not None and alignment.source[:-1] == ["▁d", "▁a", "▁b"]
    result = command("predict", run, "--device", "cpu", lines_in="".join(f"{word}\n" for word in WORDS).encode())
    assert result.out.splitlines() == loaded.predict(WORDS)
    assert "unknown" not in result.err


def test_a_file_of_raw_words_scores_like_the_test_set(run: Path, command: Server, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("".join(f"{word}\n" for word in WORDS))
    (tmp_path / "out").write_text("".join(f"{'-'.join(word.lower())}\n" for word in WORDS))
    files = ["--source", tmp_path / "in", "--reference", tmp_path / "out"]
    scores = [
        command("evaluate", run, *how, "--device", "cpu").out.splitlines()[1:] for how in (files, ["--on", "test"])
    ]
    assert scores[0] == scores[1] and len(scores[0]) == 2


def test_a_run_whose_tokenizer_does_not_spell_takes_it_from_its_recipe(run: Path, tmp_path: Path) -> None:
    older = Path(shutil.copytree(run, tmp_path / "run"))
    assert not Vocabulary.load(older).source.spells  # as earlier versions saved it
    assert load_run_recipe(older).data.spelled_side == "source"
    assert Run.load(older, device="cpu").vocabulary.source.spells


def test_swapped_corpus_spells_out_the_target(cache: Path, tmp_path: Path) -> None:
    turned = sightline.train(write(tmp_path, True, swap=True), out=tmp_path / "run", display=Silent())
    loaded = sightline.load(turned, device="cpu")
    assert not loaded.vocabulary.source.spells
    assert loaded.vocabulary.target.encode("Dab") == loaded.vocabulary.target.encode("D a b")


def test_sources_that_disagree_are_reported(cache: Path, tmp_path: Path) -> None:
    display = Silent()
    sightline.train(write(tmp_path, False, True), out=tmp_path / "run", display=display)
    said = r"data\.train\[1\] has spell: true and data\.train\[0\] has not, so texts are read as they are given"
    assert any("data.train[1] has spell: true" in note for note in display.notes)
    with pytest.warns(UnevenSources, match=said):
        loaded = sightline.load(tmp_path / "run", device="cpu")
    assert not loaded.vocabulary.source.spells


def test_sources_that_agree_raise_no_warning(run: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sightline.load(run, device="cpu")
