"""Models that copy words of the source: training, prediction, alignment, scores, and recipes that are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.data.locate import load_run_recipe
from sightline.decoding.scoring import log_probabilities
from sightline.inspection.alignment import align_outputs
from sightline.inspection.operations import recompute
from sightline.recipe.loading import RecipeError
from sightline.run import Run
from sightline.run_folder import RunError
from sightline.tasks.seq2seq import Seq2SeqTask
from sightline.text.copying import CopyForms, with_unknown
from sightline.training.resolve import open_recipe
from tiny_recipes import TEST_FILE, training, tsv_files, write_recipe

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SAID = ["my name is {} you know", "they call me {} around here", "well {} is how i am known"]
LSTM = {"kind": "recurrent", "cell": "lstm", "dropout": 0.0}


def name(number: int) -> str:
    """A different word for each number."""
    return "".join(LETTERS[(number * 7 + place * (number % 23 + 1)) % 26] for place in range(6)) + LETTERS[number % 26]


def lines(numbers: range) -> str:
    return "".join(f"{SAID[n % 3].format(name(n))}\thello {name(n)} !\n" for n in numbers)


def recipe(**model: Any) -> dict[str, Any]:
    return {
        "data": tsv_files(**TEST_FILE),
        "tokenizer": {"kind": "word", "min_count": 3},
        "model": {
            "width": 24,
            "encoder": LSTM,
            "decoder": {**LSTM, "attention": {"kind": "additive"}},
            "copying": True,
            **model,
        },
        "training": training(60, lr=2e-2, batches={"tokens": 256}, validate_every=60, label_smoothing=0.0, samples=1),
        "evaluation": {"metrics": ["exact", "perplexity"]},
        "decoding": {"beam": 2, "max_length": 8},
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    for part, numbers in (("train", range(300)), ("valid", range(300, 320)), ("test", range(320, 360))):
        (folder / f"{part}.tsv").write_text(lines(numbers))
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path) -> Run:
    return sightline.load(sightline.train(write_recipe(corpus, recipe()), out=corpus / "run"))


def test_unseen_words_are_copied(run: Run) -> None:
    assert run.vocabulary.source.unknown("they call me zorbaquux around here") == ["zorbaquux"]
    found = run.predict(["they call me zorbaquux around here", "my name is qwertyuiop you know"])
    assert found == ["hello zorbaquux!", "hello qwertyuiop!"] or found == ["hello zorbaquux !", "hello qwertyuiop !"]
    report = run.evaluate("other")
    assert report.scores[0].value > 90
    assert report.scores[1].value < 2 and "unknown:copied" in report.scores[1].signature


def test_predictions_with_copied_words_can_be_aligned_and_traced(run: Run) -> None:
    text = "they call me zorbaquux around here"
    (best, *_) = run.predict_nbest([text])[0]
    assert all(token < run.vocabulary.target.size for token in best.tokens)
    found = run.align(text)
    assert found is not None and found.weights.shape[1] == 7
    trace = run.trace(text)
    steps = {step.name: step for step in trace.records}
    assert {"copying.weights", "copying.p_gen", "mixture"} <= set(steps)
    again = recompute(trace)["mixture"]  # by the formula, in NumPy
    np.testing.assert_allclose(np.exp(again), steps["mixture"].tensor.exp().numpy(), atol=1e-5)


def test_embeddings_do_not_depend_on_the_batch(run: Run) -> None:
    found = run.embed(["they call me zorbaquux around here", "my name is zed"])
    np.testing.assert_allclose(found[1:], run.embed(["my name is zed"]), atol=1e-5)
    assert found[0].any() and not np.allclose(found[0], found[1])


def test_a_prefix_may_contain_an_unknown_word_of_the_source(run: Run) -> None:
    text = "they call me zorbaquux around here"
    (best, *_) = run.predict_nbest([text], prefixes=["zorbaquux"])[0]
    assert best.text.startswith("zorbaquux")


def test_alignments_include_copied_words(run: Run) -> None:
    text = "they call me zorbaquux around here"
    (best, *_) = run.predict_nbest([text])[0]
    (found,) = align_outputs(run, [text], [best.tokens])
    assert len(found.target) == len(best.text.split()) == 3


def test_words_of_the_source_are_not_unknown_in_a_given_output(run: Run) -> None:
    assert isinstance(run.task, Seq2SeqTask)
    text = "they call me zorbaquux around here"
    assert run.task.unknown_in("hello zorbaquux and qwertyuiop !", text) == ["and", "qwertyuiop"]
    assert run.task.unknown_in("hello !", text) == []


def test_a_long_source_is_refused_by_line_even_with_unknown_target_words(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"kind": "transformer", "layers": 1, "heads": 2, "positions": {"kind": "learned", "max_positions": 12}}
    content = recipe(encoder=body, decoder=body)
    content["data"] |= {"folder": str(corpus), "clean": {"max_tokens": 11}}
    content["training"]["limits"] = {"steps": 1}
    made = sightline.train(write_recipe(tmp_path, content), out=tmp_path / "run").folder
    texts = {"source": "my name is zed\n" * 2 + "word " * 13 + "\n", "target": "hello qwertyuiop !\n" * 3}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("sightline.cli.lines.WINDOW", 2)
    asked = ["predict", str(made), str(tmp_path / "source"), "--target", str(tmp_path / "target")]
    with pytest.raises(ValueError, match="line 3 has 13 tokens"):
        CliRunner().invoke(app, [*asked, "--device", "cpu"], catch_exceptions=False)


def test_a_given_output_with_another_unknown_word_scores_lower(run: Run) -> None:
    text = "they call me zorbaquux around here"
    assert isinstance(run.task, Seq2SeqTask)
    ((right,), (wrong,)) = run.task.score_outputs([text, text], ["hello zorbaquux !", "hello quuxzorba !"])
    ((best, *_),) = run.predict_nbest([text], run.options(beam=1, length_penalty=0))
    assert best.text == right.text == "hello zorbaquux !"
    assert right.score == pytest.approx(best.score, abs=1e-5)
    assert wrong.score < right.score - 1
    assert right.tokens == best.tokens


def test_perplexity_counts_copied_words_as_in_training(run: Run) -> None:
    test, vocabulary = run.test_set("other"), run.vocabulary
    pairs = [(source, reference) for source, (reference,) in zip(test.sources, test.references, strict=True)]
    texts = [list(side) for side in zip(*pairs, strict=True)]
    read, written = vocabulary.source.encode_many(texts[0]), vocabulary.target.encode_many(texts[1])
    forms = CopyForms.of(vocabulary.source.all_pieces)
    read, written = with_unknown(vocabulary.source, pairs, read, written, forms)  # as in data/store.py
    assert any(number >= vocabulary.target.size for ids in written for number in ids)
    logs = log_probabilities(run.model, read, written)
    expected = np.exp(-logs.sum() / sum(len(ids) + 1 for ids in written))
    assert run.measure("perplexity", test, [], lowercase=False).score().value == pytest.approx(expected, rel=1e-5)


def test_a_resumed_training_equals_an_uninterrupted_one(corpus: Path) -> None:
    path, few = write_recipe(corpus, recipe()), ["training.limits.steps=4", "training.validate_every=2"]
    whole = sightline.train(path, few, out=corpus / "whole").folder
    sightline.train(path, ["training.limits.steps=2", "training.validate_every=2"], out=corpus / "parts")
    saved = corpus / "parts" / "recipe.yaml"
    saved.write_text(saved.read_text().replace("steps: 2", "steps: 4"))
    (corpus / "parts" / "manifest.json").unlink()
    parts = sightline.train(corpus / "parts", resume=True).folder
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()


def test_word_pieces_are_copied(corpus: Path) -> None:
    content = recipe() | {"tokenizer": {"kind": "bpe", "size": 60}}
    content["training"]["limits"] = {"steps": 2}
    own = sightline.load(sightline.train(write_recipe(corpus, content), out=corpus / "pieces"))
    assert len(own.predict(["they call me zorbaquux around here"])) == 1
    assert "unknown:copied" in own.evaluate("other").scores[1].signature
    assert own.predict(["they call me zorbaquux around here"], forbid=["hello"]) != [""]


def quoted(numbers: range) -> str:
    return "".join(f"{SAID[n % 3].format(name(n))}\thello '{name(n)}' ({name(n)})\n" for n in numbers)


@pytest.mark.parametrize("tokenizer", [{"kind": "word", "min_count": 3}, {"kind": "bpe", "size": 50}], ids=str)
def test_a_word_after_a_space_is_copied_after_a_quote(tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    for part, numbers in (("train", range(300)), ("valid", range(300, 320)), ("test", range(320, 340))):
        (tmp_path / f"{part}.tsv").write_text(quoted(numbers))
    content = recipe() | {"tokenizer": tokenizer, "decoding": {"beam": 1}}
    content["training"]["limits"] = {"steps": 100 if tokenizer["kind"] == "word" else 160}
    run = sightline.load(sightline.train(write_recipe(tmp_path, content), out=tmp_path / "run"))
    found = run.predict_nbest(run.test_set("other").sources)
    right = [reference for (reference,) in run.test_set("other").references]
    assert sum(guess.text == wanted for (guess,), wanted in zip(found, right, strict=True)) >= 18
    assert not any("<unk>" in guess.text or guess.unknown for (guess,) in found)
    report = run.evaluate("other")
    assert "outputs_with_unknown" not in report.to_dict()
    assert run.align(run.test_set("other").sources[0]) is not None


def test_older_runs_copy_exact_forms(run: Run, tmp_path: Path) -> None:
    older = Path(shutil.copytree(run.folder, tmp_path / "run"))
    config = json.loads((older / "config.json").read_text())
    assert config.pop("copying") == "forms" and run.recipe.copies_forms
    (older / "config.json").write_text(json.dumps(config))
    (older / "manifest.json").unlink()  # older runs have none
    assert load_run_recipe(older).model.copying == "exact" and not load_run_recipe(older).copies_forms


def test_options_for_fixed_vocabularies_are_refused(run: Run) -> None:
    with pytest.raises(ValueError, match=r"decoding\.forbid \('hello'\)"):
        run.options(forbid=["hello"])
    with pytest.raises(ValueError, match=r"replace_unknown.* has nothing to do"):
        run.options(replace_unknown="copy")


def test_an_ensemble_needs_the_same_kind_of_copying(run: Run, corpus: Path) -> None:
    plain = sightline.train(
        write_recipe(corpus, recipe(copying=False)), ["training.limits.steps=2"], out=corpus / "plain"
    ).folder
    with pytest.raises(RunError, match="not given the same tokens"):
        Run.ensemble([run.folder, plain])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.encoder=null", "model.decoder.attention.kind=none"], "looks at the states of an encoder"),
        (["model.decoder.attention.kind=none"], "is for decoders with attention"),
        (["tokenizer.shared=false", "model.tie=output"], "both sides need one vocabulary"),
        (["training.rdrop=5"], "cannot be combined with training.rdrop"),
        (
            ["training.batches.layout=packed"],
            "cannot be combined with training.batches.layout: packed: .* over padded batches",
        ),
    ],
)
def test_recipes_that_cannot_copy_are_refused(corpus: Path, changes: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        open_recipe(write_recipe(corpus, recipe()), changes)
