"""`data.clean.truncate_source`: sources are truncated everywhere, and truncated sources are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.data.preparation import prepare_data
from sightline.decoding.unknown_words import read_dictionary
from sightline.recipe.loading import RecipeError, load_recipe
from sightline.run import Run
from sightline.training.summary import describe
from sightline.training.train import plan_for

LONG = "b " * 30 + "c"


def recipe(**clean: Any) -> dict[str, Any]:
    files = {part: {"kind": "tsv", "file": f"{part}.tsv"} for part in ("train", "valid", "test")}
    return {
        "data": {
            "train": [files["train"]],
            "validation": files["valid"],
            "tests": {"other": files["test"]},
            "clean": {"max_tokens": 12, **clean},
        },
        "tokenizer": {"kind": "word", "min_count": 1},
        "model": {
            "width": 8,
            "encoder": {"kind": "recurrent", "dropout": 0.0},
            "decoder": {"kind": "recurrent", "dropout": 0.0},
        },
        "training": {"batches": {"tokens": 64}, "limits": {"steps": 2}, "samples": 1, "device": "cpu", "threads": 1},
    }


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.tsv").write_text("".join(f"a b {n}\tb a\n{LONG} {n}\ta c\n" for n in range(5)))
    return tmp_path


def write(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def run_of(folder: Path, **clean: Any) -> Run:
    return sightline.load(sightline.train(write(folder, recipe(**clean)), out=folder / "run"))


def test_long_sources_are_cut_counted_and_reported(corpus: Path) -> None:
    loaded = load_recipe(write(corpus, recipe(truncate_source=7)), [f"data.folder={corpus}"])
    prepared = prepare_data(loaded)
    for store in (prepared.train(0), prepared.validation):
        assert len(store) == 10 and store.counts["source cut"] == 5 and store.counts["too long"] == 0
        assert sorted(store.source_lengths.tolist()) == [3] * 5 + [7] * 5
    summary = describe(prepared, plan_for(prepared, torch.device("cpu")), torch.nn.Linear(1, 1), torch.device("cpu"))
    assert summary[0] == "10 training and 10 validation examples; 5 sources cut to 7 tokens"


def test_dropped_pairs_do_not_count_as_cut(corpus: Path) -> None:
    with (corpus / "train.tsv").open("a") as file:
        file.write(f"{LONG}\t{LONG}\n")  # the target is too long, so the pair is dropped
    loaded = load_recipe(write(corpus, recipe(truncate_source=7)), [f"data.folder={corpus}"])
    store = prepare_data(loaded).train(0)
    assert len(store) == 10 and store.counts["source cut"] == 5 and store.counts["too long"] == 1


def test_long_pairs_are_dropped_by_default(corpus: Path) -> None:
    loaded = load_recipe(write(corpus, recipe()), [f"data.folder={corpus}"])
    store = prepare_data(loaded).train(0)
    assert len(store) == 5 and store.counts["too long"] == 5 and store.counts["source cut"] == 0


def test_prediction_ignores_what_follows_the_cut(corpus: Path) -> None:
    run = run_of(corpus, truncate_source=7)
    assert [len(ids) for ids in run.encode_sources([LONG, "a b"])] == [7, 2]
    short, long, other = run.predict_nbest(["b " * 7, LONG, "a " + LONG])
    assert short[0].score == long[0].score != other[0].score
    report = run.evaluate("other")
    assert report.cut == 5 and report.to_dict()["cut"] == 5


def test_predict_embed_and_evaluate_report_cut_lines(corpus: Path) -> None:
    run = run_of(corpus, truncate_source=7)
    (corpus / "new.txt").write_text(f"a b\n{LONG}\n")
    predicted = CliRunner().invoke(app, ["predict", str(run.folder), str(corpus / "new.txt")], catch_exceptions=False)
    assert "sightline: 1 line cut short (data.clean.truncate_source)" in predicted.stderr
    asked = ["embed", str(run.folder), str(corpus / "new.txt"), "--words", "--out", str(corpus / "new.npy")]
    assert "sightline: 1 line cut short (data.clean.truncate_source)" in CliRunner().invoke(app, asked).stderr
    evaluated = CliRunner().invoke(app, ["evaluate", str(run.folder)], catch_exceptions=False)
    assert "5 sources cut short (data.clean.truncate_source)" in evaluated.stdout


def test_the_longest_sequence_of_a_decoder_only_model_counts_the_cut_source(corpus: Path) -> None:
    content = recipe(truncate_source=7)
    content["model"] = {"width": 8, "decoder": {"kind": "transformer", "layers": 1, "heads": 2}}
    assert load_recipe(write(corpus, content)).longest_sequence()[0] == 8 + 13


def test_taggers_refuse_to_cut_sources(corpus: Path) -> None:
    content = recipe(truncate_source=7) | {"task": "tagging"}
    del content["model"]["decoder"]
    with pytest.raises(RecipeError, match="would leave words without their tags"):
        load_recipe(write(corpus, content))


def test_language_models_refuse_to_cut_sources(corpus: Path) -> None:
    content = recipe(truncate_source=7) | {"task": "language-model"}
    del content["model"]["encoder"]
    content["evaluation"] = {"metrics": ["perplexity"]}
    with pytest.raises(RecipeError, match=r"data.clean.truncate_source: 7 .* cuts sources, and plain text has none"):
        load_recipe(write(corpus, content))


def test_the_dictionary_is_learned_from_cut_sources(corpus: Path) -> None:
    (corpus / "train.tsv").write_text("a b\tb a\n" + ("z " * 30 + "\ta c\n") * 5)
    content = {**recipe(truncate_source=3), "decoding": {"replace_unknown": "dictionary"}}
    run = sightline.train(write(corpus, content), out=corpus / "run").folder
    assert "z" in (read_dictionary(run) or {})  # uncut, its pairs would be dropped
