"""Trainings that begin with what other runs have learned: what they take, freeze and adapt."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.cli.train import _show
from sightline.experiment import dry_run, open_recipe
from sightline.merging import merge_run
from sightline.recipe.changes import section_differences
from sightline.recipe.files import load_recipe, save_recipe
from sightline.training.interruption import Interrupted
from watched_runs import Silent, records

BODY: dict[str, Any] = {
    "kind": "transformer",
    "layers": 2,
    "heads": 2,
    "feedforward": {"kind": "gelu", "width": 24},
    "positions": {"kind": "rotary"},
    "dropout": 0.1,
}
WORDS = ["the", "a", "dog", "cat", "sees", "hears", "old", "big"]
TAGS = {"the": "DET", "a": "DET", "dog": "NOUN", "cat": "NOUN", "old": "ADJ", "big": "ADJ"}


def sentence(number: int) -> list[str]:
    return [WORDS[(number * 7 + place * (3 + number % 3)) % len(WORDS)] for place in range(3 + number % 3)]


def lines(task: str, numbers: range) -> str:
    """A translation is the sentence backwards."""
    made = [sentence(number) for number in numbers]
    if task == "language-model":
        return "".join(" ".join(words) + "\n" for words in made)
    answers = {
        "seq2seq": lambda words: " ".join(reversed(words)),
        "tag": lambda words: " ".join(TAGS.get(word, "VERB") for word in words),
        "classify": lambda words: "animal" if {"dog", "cat"} & set(words) else "none",
    }
    if task == "tag":
        rows = [list(zip(words, answers[task](words).split(" "), strict=True)) for words in made]
        return "".join("".join(f"{word} {tag}\n" for word, tag in row) + "\n" for row in rows)
    return "".join(f"{' '.join(words)}\t{answers[task](words)}\n" for words in made)


PARTS: dict[str, dict[str, Any]] = {
    "seq2seq": {"encoder": BODY, "decoder": BODY, "tie": "all"},
    "language-model": {"decoder": BODY},
    "tag": {"encoder": BODY},
    "classify": {"encoder": BODY, "pooling": {"kind": "mean"}},
}
KINDS = {"seq2seq": "tsv", "language-model": "plain", "tag": "columns", "classify": "tsv"}


def a_recipe(task: str, steps: int = 4, *, start: Any = None, model: Any = None, **training: Any) -> dict[str, Any]:
    kind, more = KINDS[task], {"label": 2} if task == "tag" else {}
    recipe: dict[str, Any] = {
        "task": task,
        "data": {
            "train": [{"kind": kind, "file": f"{task}.train", **more}],
            "validation": {"kind": kind, "file": f"{task}.valid", **more},
        },
        "model": {"width": 16, **PARTS[task], **(model or {})},
        "training": {
            "lr": 5e-3,
            "schedule": {"kind": "constant", "warmup": 0},
            "batches": {"tokens": 60, "context": 16},
            "limits": {"steps": steps},
            "validate_every": 2,
            "log_every": 1,
            "samples": 0,
            "device": "cpu",
            "threads": 1,
            **training,
        },
        "decoding": {"beam": 1, "max_length": 8},
    }
    if start is None:
        recipe["tokenizer"] = {"kind": "word", "min_count": 1}
    else:
        recipe["model"]["start_from"] = start if isinstance(start, dict) else str(start)
    return recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the texts are."""
    folder = tmp_path_factory.mktemp("texts")
    for task in KINDS:
        (folder / f"{task}.train").write_text(lines(task, range(60)))
        (folder / f"{task}.valid").write_text(lines(task, range(60, 70)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIGHTLINE_CACHE", str(folder / "cache"))
        yield folder


class Trainer:
    """Trains recipes on the texts of `folder`."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.display = Silent()

    def __call__(self, recipe: dict[str, Any], *changes: str, out: str = "run", **more: Any) -> Path:
        return sightline.train(self.write(recipe), changes, out=self.out / out, **{"display": self.display, **more})

    def write(self, recipe: dict[str, Any]) -> Path:
        path = self.out / "recipe.yaml"
        path.write_text(yaml.safe_dump({**recipe, "data": {"folder": str(self.folder), **recipe["data"]}}))
        return path


@pytest.fixture
def train(folder: Path, tmp_path: Path) -> Trainer:
    return Trainer(folder, tmp_path)


@pytest.fixture(scope="module")
def started(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each task; shared, so not to be changed."""
    trainer = Trainer(folder, tmp_path_factory.mktemp("started"))
    return {task: trainer(a_recipe(task), out=task) for task in ("seq2seq", "language-model", "tag")}


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


STAY = {"lr": 1e-12, "limits": {"steps": 1}}  # a training that changes nothing to speak of


# --- what is taken ------------------------------------------------------------------------------------------------


def test_the_same_task_goes_on_with_all_weights_and_the_tokenizer(started: dict[str, Path], train: Trainer) -> None:
    run = train(a_recipe("seq2seq", start=started["seq2seq"], **STAY))
    assert any(note.startswith(f"starting from {started['seq2seq']}: ") for note in train.display.notes)
    assert not any(note.startswith(("new weights", "weights left")) for note in train.display.notes)
    assert (run / "tokenizer.json").read_bytes() == (started["seq2seq"] / "tokenizer.json").read_bytes()
    first = records(run, "validation")[0]
    best = min(record["loss"] for record in records(started["seq2seq"], "validation"))
    assert first["step"] == 0
    assert first["loss"] == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize(
    ("task", "source", "taken", "new"),
    [
        ("tag", "seq2seq", ("encoder.", "source_embedding."), ("output.",)),
        ("classify", "tag", ("encoder.", "source_embedding."), ("output.", "pooling.")),
        ("seq2seq", "language-model", ("decoder.", "target_embedding.", "output."), ("encoder.", "decoder.layers.")),
        ("seq2seq", "tag", ("encoder.", "target_embedding."), ("decoder.", "output.")),
        ("language-model", "seq2seq", ("decoder.", "embedding.", "output."), ()),
        ("tag", "tag", ("encoder.", "source_embedding.", "output."), ()),
    ],
)
def test_another_task_takes_what_fits_and_says_so(
    task: str, source: str, taken: tuple[str, ...], new: tuple[str, ...], started: dict[str, Path], train: Trainer
) -> None:
    run = train(a_recipe(task, start=started[source], **STAY))
    told = json.loads((run / "start.json").read_text())
    assert {name.split(".")[0] for name in told["taken"]} == {prefix.split(".")[0] for prefix in taken}
    assert all(name.startswith(new) for name in told["new"])
    assert bool(told["new"]) == bool(new)
    own, theirs = weights(run), weights(started[source])
    for name in told["taken"]:
        if name in theirs and own[name].shape == theirs[name].shape:
            torch.testing.assert_close(own[name], theirs[name], rtol=0, atol=1e-8)
    card = (run / "README.md").read_text()
    assert f"starting from {started[source]}: weights taken: {len(told['taken'])}, " in card
    assert len(sightline.load(run).predict(["the old dog"])) == 1


def test_named_parts_alone_are_taken(started: dict[str, Path], train: Trainer) -> None:
    start = {"run": str(started["seq2seq"]), "parts": ["encoder"]}
    run = train(a_recipe("tag", start=start, **STAY))
    told = json.loads((run / "start.json").read_text())
    assert {name.split(".")[0] for name in told["taken"]} == {"encoder"}
    assert "source_embedding.weight" in told["new"]


@pytest.mark.parametrize(
    ("parts", "changes", "message"),
    [
        (
            ["encoder"],
            ["model.encoder.layers=3"],
            r"the encoder of .* does not fit this model whole: encoder\.layers\.2",
        ),
        (["encoder"], ["model.encoder.feedforward.width=32"], r"\(24, 16\) there and \(32, 16\) here"),
        (["decoder"], [], r"this model has no decoder"),
        (["head"], [], r"output\.weight is not there; output\.bias is \(12,\) there and \(8,\) here"),
        (None, ["model.width=12"], r"nothing of .* fits this model; use the model section"),
        (None, ["tokenizer.kind=character"], r"tokenizer\.kind: 'word' there, 'character' here.*or none"),
        (None, ["model.start_from.run=nowhere"], r"nowhere is not a folder"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_is_written(
    parts: Any, changes: list[str], message: str, started: dict[str, Path], train: Trainer, tmp_path: Path
) -> None:
    recipe = a_recipe("tag", start={"run": str(started["seq2seq"]), "parts": parts})
    with pytest.raises(ValueError, match=message):
        train(recipe, *changes)
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_what_shapes_do_not_show_is_told(started: dict[str, Path], train: Trainer) -> None:
    recipe = a_recipe("tag", start=started["seq2seq"], **STAY)
    train(recipe, "model.encoder.dropout=0.3", out="free")
    assert not any("not the same model" in note for note in train.display.notes)
    train(recipe, "model.encoder.heads=4")
    assert any("model.encoder.heads: 2 there, 4 here" in note for note in train.display.notes)


def test_a_vocabulary_is_extended_if_asked(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    (tmp_path / "seq2seq.train").write_text("the horse\thorse the\n" * 30)
    recipe = a_recipe("seq2seq", start={"run": str(started["seq2seq"]), "extend_vocabulary": True}, **STAY)
    recipe["data"]["folder"] = str(tmp_path)
    shutil.copy(train.folder / "seq2seq.valid", tmp_path)
    train.folder = tmp_path
    run = train(recipe)
    own, theirs = sightline.load(run), sightline.load(started["seq2seq"])
    count = theirs.vocabulary.source.size
    assert own.vocabulary.source.pieces(range(count)) == theirs.vocabulary.source.pieces(range(count))
    assert own.vocabulary.source.pieces([count]) == ["▁horse"]
    assert own.vocabulary.source.size == count + 1
    table = weights(run)["target_embedding.weight"]
    torch.testing.assert_close(table[:count], weights(started["seq2seq"])["target_embedding.weight"])
    assert any("and 1 new row for new tokens" in note for note in train.display.notes)


def test_labels_of_the_same_task_keep_their_numbers(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    """Numbers go by frequency: in this text there are more verbs."""
    for name in ("train", "valid"):
        (tmp_path / f"tag.{name}").write_text("dog NOUN\nsees VERB\nhears VERB\n\n" * 20)
    train.folder = tmp_path
    run = train(a_recipe("tag", start=started["tag"], **STAY))
    assert (run / "tokenizer.target.json").read_bytes() == (started["tag"] / "tokenizer.target.json").read_bytes()
    assert not json.loads((run / "start.json").read_text())["new"]
    (tmp_path / "tag.train").write_text("dog NOUN\nsees V\nhears V\n\n" * 20)
    run = train(a_recipe("tag", start=started["tag"], **STAY), out="other")
    assert json.loads((run / "start.json").read_text())["new"] == ["output.weight", "output.bias"]


def test_a_recipe_of_before_is_read_as_one_of_today(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    recipe = a_recipe("seq2seq")
    recipe["training"]["start_from"] = str(started["seq2seq"])
    assert load_recipe(train.write(recipe)).model.start_from.run == str(started["seq2seq"])  # type: ignore[union-attr]
    recipe["training"]["start_from"] = None
    assert load_recipe(train.write(recipe)).model.start_from is None


def test_a_recipe_with_a_start_survives_being_saved(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    path = train.write(a_recipe("tag", start=started["seq2seq"], model={"adapters": {"on": ["key", "output"]}}))
    recipe, _ = open_recipe(path)
    assert recipe.tokenizer.kind == "word"  # that of the run: this recipe has none
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe


# --- resuming -----------------------------------------------------------------------------------------------------

ADAPTED = {"adapters": {"rank": 2, "on": ["query", "value", "feedforward"], "dropout": 0.1}}


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({}, {}),
        ({}, {"freeze": ["embeddings", "encoder.0"], "layer_lr_decay": 0.5}),
        (ADAPTED, {"layer_lr_decay": 0.5, "averaging": {"kind": "ema"}}),
    ],
    ids=["plain", "frozen", "adapters"],
)
def test_a_resumed_training_is_the_uninterrupted_one_even_when_the_start_is_gone(
    model: Any, training: dict[str, Any], started: dict[str, Path], train: Trainer, tmp_path: Path
) -> None:
    start = Path(shutil.copytree(started["seq2seq"], tmp_path / "start"))
    recipe = a_recipe("tag", 8, start=start, model=model, **training)
    whole = train(recipe, out="whole")
    stop = Silent({5: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    with pytest.raises(Interrupted):
        train(recipe, display=stop)
    shutil.rmtree(start)
    run = sightline.train(tmp_path / "run", resume=True, display=Silent())
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert records(run, "train") == records(whole, "train")
    assert (run / "start.json").read_bytes() == (whole / "start.json").read_bytes()


# --- freezing, rates and adapters ---------------------------------------------------------------------------------


def test_frozen_layers_stay_as_the_run_had_them(started: dict[str, Path], train: Trainer) -> None:
    run = train(a_recipe("tag", start=started["seq2seq"], freeze=["embeddings", "encoder.0"], result="last"))
    own, theirs = weights(run), weights(started["seq2seq"])
    for name, weight in own.items():
        if name.startswith("encoder."):
            assert torch.equal(weight, theirs[name]) == name.startswith("encoder.layers.0."), name
    assert torch.equal(own["source_embedding.weight"], theirs["target_embedding.weight"])
    assert any("trained, the others frozen" in note for note in train.display.notes)
    state = load_file(max((run / "checkpoints").iterdir()) / "optimizer.safetensors")
    assert state.keys()
    assert not any(name.startswith(("encoder.layers.0.", "source_embedding.")) for name in state)


def test_freezing_what_is_not_there_is_refused(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training\.freeze: nothing in this model is called 'encoder\.7'"):
        train(a_recipe("tag", start=started["seq2seq"], freeze=["encoder.7"]))
    with pytest.raises(ValueError, match=r"training\.freeze leaves nothing to learn"):
        train(a_recipe("tag", start=started["seq2seq"], freeze=["embeddings", "encoder", "output"]))
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_adapters_and_what_is_new_are_trained_alone(started: dict[str, Path], train: Trainer) -> None:
    run = train(a_recipe("tag", start=started["seq2seq"], model=ADAPTED, result="last"))
    own, theirs = weights(run), weights(started["seq2seq"])
    fresh = [name for name in own if ".adapters." in name and name.endswith(".up")]
    assert len(fresh) == 2 * 4
    assert all(own[name].abs().sum() > 0 for name in fresh)  # they begin at zero
    for name in own:
        if name in theirs and name.startswith("encoder."):
            assert torch.equal(own[name], theirs[name]), name
    assert own["output.bias"].abs().sum() > 0
    also = {"adapters": {**ADAPTED["adapters"], "also": ["encoder.norm"]}}
    other = weights(train(a_recipe("tag", start=started["seq2seq"], model=also, result="last"), out="also"))
    changed = {name for name in other if name in theirs and not torch.equal(other[name], theirs[name])}
    assert {name for name in changed if name.startswith("encoder.")} == {"encoder.norm.weight", "encoder.norm.bias"}


def test_a_merged_run_is_plain_and_answers_the_same(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    recipe = {
        **a_recipe("seq2seq", 12, start=started["seq2seq"], model=ADAPTED, result="last"),
        "evaluation": {"metrics": ["perplexity"]},
    }
    recipe["model"]["adapters"] = {**ADAPTED["adapters"], "also": ["output"]}
    run = train(recipe)
    found = CliRunner().invoke(app, ["merge", str(run), "--out", str(tmp_path / "merged")])
    assert found.exit_code == 0, found.output
    merged = tmp_path / "merged"
    assert not any(".adapters." in name for name in weights(merged))
    assert load_recipe(merged / "recipe.yaml").model.adapters is None
    assert "adapters | rank 2" in (merged / "README.md").read_text()
    texts = [" ".join(sentence(number)) for number in range(20)]
    plain, adapted = sightline.load(merged), sightline.load(run)
    assert plain.predict(texts) == adapted.predict(texts)
    measured = records(run, "validation")  # by the model with its adapters
    assert measured[0]["perplexity"] - measured[-1]["perplexity"] > 0.01
    score = plain.evaluate("validation").scores[0].value
    assert score == pytest.approx(measured[-1]["perplexity"], rel=1e-5)
    with pytest.raises(ValueError, match=r"has no adapters \(model\.adapters\) to merge"):
        merge_run(merged, tmp_path / "again")
    with pytest.raises(ValueError, match=r"has adapters beside its weights.*sightline merge"):
        train(a_recipe("tag", start=run), out="from-adapted")
    train(a_recipe("tag", start=merged, **STAY), out="from-merged")
    with pytest.raises(ValueError, match=r"was merged from .* has nothing to go on with"):
        sightline.train(merged, resume=True, display=Silent())


def test_a_dry_run_tells_what_is_trained_and_what_is_taken(
    started: dict[str, Path], train: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, _ = open_recipe(train.write(a_recipe("tag", start=started["seq2seq"], model=ADAPTED)))
    found = dry_run(recipe)
    assert found.trained[""] == found.trained["encoder"] + found.parts["output"]
    assert found.trained["source_embedding"] == 0
    _show(found)
    shown = capsys.readouterr().out
    assert f"{found.trained['']:,} trained, {found.parameters - found.trained['']:,} frozen" in shown
    assert f"starting from {started['seq2seq']}" in shown


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("ewt/from-masked-words", "masked-words"),
        ("sst2/from-masked-words", "masked-words"),
        ("debian-synopsis/from-denoising", "denoising"),
        ("debian-synopsis/from-span-corruption", "span-corruption"),
        ("multi30k/from-denoising", "denoising"),
    ],
)
def test_recipes_that_adapt_have_the_model_of_the_one_they_start_from(name: str, first: str) -> None:
    own, theirs = load_recipe(name), load_recipe(f"pretraining/{first}")
    free = frozenset({"dropout", "attention_dropout", "variants"})
    assert section_differences(theirs.tokenizer, own.tokenizer, "tokenizer", free) == []
    assert (own.model.width, own.model.tie) == (theirs.model.width, theirs.model.tie)
    for side, body in own.model.bodies.items():
        assert section_differences(theirs.model.bodies[side], body, f"model.{side}", free) == []
