"""Trainings that begin with what other runs have learned: what they take, refuse and tell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_trainings import BODY, STAY, Trainer, a_recipe, weights

import sightline
from sightline.recipe.loading import RecipeError, load_recipe, save_recipe
from sightline.run_folder import seal_run
from sightline.training.resolve import open_recipe
from watched_runs import records


def test_the_same_task_takes_all_weights_and_the_tokenizer(started: dict[str, Path], train: Trainer) -> None:
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
        ("tagging", "seq2seq", ("encoder.", "source_embedding."), ("output.",)),
        ("classification", "tagging", ("encoder.", "source_embedding."), ("output.", "pooling.")),
        ("seq2seq", "language-model", ("decoder.", "target_embedding.", "output."), ("encoder.", "decoder.layers.")),
        ("seq2seq", "tagging", ("encoder.", "target_embedding."), ("decoder.", "output.")),
        ("language-model", "seq2seq", ("decoder.", "embedding.", "output."), ()),
        ("tagging", "tagging", ("encoder.", "source_embedding.", "output."), ()),
    ],
)
def test_another_task_takes_the_weights_that_fit(
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
    run = train(a_recipe("tagging", start=start, **STAY))
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
        (None, ["model.init_from.run=nowhere"], r"nowhere is not a folder"),
    ],
)
def test_impossible_init_from_settings_are_refused_before_writing(
    parts: Any, changes: list[str], message: str, started: dict[str, Path], train: Trainer, tmp_path: Path
) -> None:
    recipe = a_recipe("tagging", start={"run": str(started["seq2seq"]), "parts": parts})
    with pytest.raises(ValueError, match=message):
        train(recipe, *changes)
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_noise_with_marks_missing_from_the_vocabulary_is_refused(started: dict[str, Path], train: Trainer) -> None:
    recipe = a_recipe("language-model", start=started["seq2seq"])
    recipe |= {"task": "masked-lm", "model": {**recipe["model"], "encoder": BODY}}
    del recipe["model"]["decoder"]
    recipe["data"]["noise"] = {"kind": "mask"}
    with pytest.raises(
        ValueError, match=r"has no <mask>, which data\.noise\.kind: mask puts.*leave model\.init_from out"
    ):
        train(recipe)


def test_differences_beyond_shapes_are_noted(started: dict[str, Path], train: Trainer) -> None:
    recipe = a_recipe("tagging", start=started["seq2seq"], **STAY)
    train(recipe, "model.encoder.dropout=0.3", out="free")
    assert not any("not the same model" in note for note in train.display.notes)
    train(recipe, "model.encoder.heads=4")
    assert any("model.encoder.heads: 2 there, 4 here" in note for note in train.display.notes)


def test_extend_vocabulary_adds_tokens(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("parts", [None, ["encoder"]])
def test_word_vectors_give_way_to_embeddings_of_the_run(
    parts: list[str] | None, started: dict[str, Path], train: Trainer, tmp_path: Path
) -> None:
    (tmp_path / "vectors.txt").write_text("1 16\ndog " + " ".join(["0.5"] * 16) + "\n")
    start = {"run": str(started["tagging"]), "parts": parts}
    vectors = {"word_vectors": {"file": str(tmp_path / "vectors.txt"), "frozen": True}}
    run = train(a_recipe("tagging", start=start, model=vectors, **STAY))
    (told,) = (note for note in train.display.notes if note.startswith("word vectors: "))
    assert told.endswith("name model.init_from.parts without embeddings" if parts is None else ", kept as they are")
    assert told.startswith("word vectors: none taken" if parts is None else "word vectors: 1 of ")
    dog = sightline.load(run).vocabulary.source.encode("dog")[0]
    row, theirs = (weights(each)["source_embedding.weight"][dog] for each in (run, started["tagging"]))
    assert torch.equal(row, theirs) == (parts is None)
    assert bool((row == row[0]).all()) == (parts is not None)


def test_labels_of_the_same_task_keep_their_numbers(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    """Numbers go by frequency: in this text there are more verbs."""
    for name in ("train", "valid"):
        (tmp_path / f"tagging.{name}").write_text("dog NOUN\nsees VERB\nhears VERB\n\n" * 20)
    train.folder = tmp_path
    run = train(a_recipe("tagging", start=started["tagging"], **STAY))
    assert (run / "tokenizer.target.json").read_bytes() == (started["tagging"] / "tokenizer.target.json").read_bytes()
    assert not json.loads((run / "start.json").read_text())["new"]
    (tmp_path / "tagging.train").write_text("dog NOUN\nsees V\nhears V\n\n" * 20)
    run = train(a_recipe("tagging", start=started["tagging"], **STAY), out="other")
    assert json.loads((run / "start.json").read_text())["new"] == ["output.weight", "output.bias"]


def test_an_old_recipe_is_read_under_new_names(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    recipe, run = a_recipe("seq2seq"), str(started["seq2seq"])
    recipe["training"]["start_from"] = run
    assert load_recipe(train.write(recipe)).model.init_from.run == run  # type: ignore[union-attr]
    recipe["training"]["start_from"] = None
    assert load_recipe(train.write(recipe)).model.init_from is None
    recipe["model"]["start_from"] = {"run": run, "parts": ["encoder"]}
    start = load_recipe(train.write(recipe)).model.init_from
    assert start is not None and (start.run, start.parts) == (run, ("encoder",))
    changed = load_recipe(train.write(recipe), ["model.start_from.extend_vocabulary=true"]).model.init_from
    assert changed == start.model_copy(update={"extend_vocabulary": True})
    recipe["model"]["init_from"] = run
    with pytest.raises(RecipeError, match=r"model\.start_from is the old name of model\.init_from, which is given too"):
        load_recipe(train.write(recipe))


def test_start_from_inherits_no_model_section(started: dict[str, Path], train: Trainer) -> None:
    recipe = a_recipe("tagging")
    recipe["model"] = {"encoder": {**BODY, "layers": 1}, "start_from": str(started["tagging"])}
    del recipe["model"]["encoder"]["feedforward"]
    old: Any = load_recipe(train.write(recipe)).model
    assert (old.width, old.encoder.feedforward.kind) == (512, "relu")
    recipe["model"]["init_from"] = recipe["model"].pop("start_from")
    new: Any = load_recipe(train.write(recipe)).model
    assert (new.width, new.encoder.feedforward.kind, new.encoder.layers) == (16, "gelu", 1)


# --- the model section of the run -----------------------------------------------------------------------------------


def short(task: str, run: Any, **model: Any) -> dict[str, Any]:
    """A recipe whose model section names a run and little else."""
    recipe = a_recipe(task, start=run, **STAY)
    recipe["model"] = {"init_from": recipe["model"]["init_from"], **model}
    return recipe


def test_a_recipe_need_not_repeat_the_model_section(started: dict[str, Path], train: Trainer) -> None:
    whole = load_recipe(train.write(a_recipe("seq2seq", start=started["seq2seq"]))).model
    run = train(short("seq2seq", started["seq2seq"]))
    assert load_recipe(run / "recipe.yaml").model == whole
    assert not json.loads((run / "start.json").read_text())["new"]
    other = load_recipe(train.write(a_recipe("seq2seq")), ["model.tie=output", f"model={{init_from: {run}}}"])
    assert other.model.encoder == whole.encoder


def test_inherited_keys_are_overridden_one_by_one(started: dict[str, Path], train: Trainer) -> None:
    recipe = short(
        "seq2seq", started["seq2seq"], encoder={"dropout": 0.25}, decoder={"kind": "recurrent"}, tie="output"
    )
    found = load_recipe(train.write(recipe), ["model.encoder.feedforward.kind=relu", "model.decoder.layers=1"]).model
    assert found.width == 16 and found.tie == "output"
    encoder: Any = found.encoder
    assert (encoder.kind, encoder.layers, encoder.dropout) == ("transformer", 2, 0.25)
    assert (encoder.feedforward.kind, encoder.feedforward.width) == ("relu", 24)
    decoder: Any = found.decoder
    assert (decoder.kind, decoder.layers, decoder.cell) == ("recurrent", 1, "lstm")  # nothing of the Transformer's


def test_another_task_inherits_the_parts_it_has(started: dict[str, Path], train: Trainer) -> None:
    found = load_recipe(train.write(short("tagging", started["seq2seq"]))).model
    assert found.decoder is None and found.encoder == load_recipe(started["seq2seq"] / "recipe.yaml").model.encoder
    path = train.write(short("tagging", started["seq2seq"]))
    with pytest.raises(RecipeError, match=r"task: classification needs model\.pooling"):
        load_recipe(path, ["task=classification"])
    assert load_recipe(path, ["task=classification", "model.pooling.kind=mean"]).model.encoder == found.encoder


def test_errors_in_what_is_inherited_are_located(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    path = train.write(short("seq2seq", tmp_path / "nowhere"))
    with pytest.raises(RecipeError, match=rf"{path}:\d+: model\.init_from: \S+nowhere has no recipe\.yaml"):
        load_recipe(path)
    broken = tmp_path / "broken"
    shutil.copytree(started["seq2seq"], broken)
    text = (broken / "recipe.yaml").read_text()
    (broken / "recipe.yaml").write_text(text.replace("  width: 16", "  width: none"))
    seal_run(broken)
    line = text[: text.index("  width: 16")].count("\n") + 1
    path = train.write(short("seq2seq", broken))
    with pytest.raises(RecipeError, match=rf"{broken}/recipe\.yaml:{line}: model\.width: expected an integer"):
        load_recipe(path)
    (broken / "recipe.yaml").write_text("model: [")
    seal_run(broken)
    with pytest.raises(RecipeError, match=rf"{broken}/recipe\.yaml:1: this is not YAML"):
        load_recipe(path)


def test_a_finished_run_does_not_need_its_initial_run(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    shutil.copytree(started["tagging"], tmp_path / "first")
    run = train(short("tagging", tmp_path / "first"))
    before = load_recipe(run / "recipe.yaml")
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("  tie: all\n", ""))  # as if the key were newer than the run
    seal_run(run)
    first = (tmp_path / "first" / "recipe.yaml").read_text()
    (tmp_path / "first" / "recipe.yaml").write_text(first.replace("  tie: all\n", "  tie: none\n"))
    seal_run(tmp_path / "first")
    assert load_recipe(run / "recipe.yaml") == before
    shutil.rmtree(tmp_path / "first")
    assert len(sightline.load(run).predict(["the old dog"])) == 1


def test_a_recipe_with_a_start_survives_being_saved(started: dict[str, Path], train: Trainer, tmp_path: Path) -> None:
    path = train.write(
        a_recipe("tagging", start=started["seq2seq"], model={"adapters": {"target_modules": ["key", "output"]}})
    )
    recipe, _ = open_recipe(path)
    assert recipe.tokenizer.kind == "word"  # that of the run: this recipe has none
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe
