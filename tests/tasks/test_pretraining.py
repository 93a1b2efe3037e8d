"""Masked language models and denoising: training, evaluation, filling gaps, and recipes that are refused."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

import sightline
from sightline.cli import errors
from sightline.cli.app import app
from sightline.comparison import compare
from sightline.inspection.corpus import corpus_losses
from sightline.inspection.samples import sample_batches
from sightline.inspection.views import Subject, tokens_view
from sightline.models.build import build_model
from sightline.models.heads import Tagger
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Decoding, Recipe
from sightline.recipe.checks import check_trainable
from sightline.run import Run
from sightline.run_folder import RunError
from sightline.tasks.losses import batch_loss
from sightline.tasks.masked_lm import best_fillings
from sightline.text.vocabulary import Vocabulary
from tiny_recipes import training
from watched_runs import Silent, own_cache

BODY = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0, "positions": {"kind": "rotary"}}
NOISES: dict[str, dict[str, Any]] = {
    "mask": {"kind": "mask", "rate": 0.2, "masked": 1.0, "random": 0.0},
    "denoise": {"kind": "text-infilling", "rate": 0.2},
    "span-corruption": {"kind": "span-corruption", "rate": 0.2, "mean_span_length": 2.0, "sentinels": 8},
}


def lines(count: int, seed: int) -> str:
    """Counting from a random number on, so that a masked number follows from its neighbours."""
    draw = random.Random(seed)
    names = ["one", "two", "three", "four", "five", "six", "seven"]
    starts = [draw.randrange(7) for _ in range(count)]
    return "".join(" ".join(names[(start + at) % 7] for at in range(8)) + " .\n" for start in starts)


def recipe(kind: str, **changes: Any) -> dict[str, Any]:
    masked = kind == "mask"
    made: dict[str, Any] = {
        "task": "masked-lm" if masked else "seq2seq",
        "seed": 2 if masked else 1,
        "data": {
            "train": [{"kind": "plain", "file": "train.txt"}],
            "validation": {"kind": "plain", "file": "valid.txt"},
            "tests": {"test": {"kind": "plain", "file": "test.txt"}},
            "noise": NOISES[kind],
        },
        "tokenizer": {"kind": "word", "min_count": 1},
        "model": {"width": 32, "encoder": BODY, **({} if masked else {"decoder": BODY})},
        "training": training(
            240 if masked else 160,
            schedule={"kind": "cosine" if masked else "constant", "warmup": 10},
            batches={"tokens": 512, "context": 24},
            label_smoothing=0.0,
            validate_every=40,
            samples=2,
        ),
        "decoding": {"beam": 2, "max_length": 30},
        "evaluation": {"bootstrap": 50},
    }
    return {**made, **changes}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A run of each kind; shared, do not modify."""
    folder = tmp_path_factory.mktemp("pretraining")
    for name, count, seed in (("train", 300, 1), ("valid", 20, 2), ("test", 30, 3)):
        (folder / f"{name}.txt").write_text(lines(count, seed))
    with own_cache(folder / "cache"):
        found = {}
        for kind in NOISES:
            (folder / f"{kind}.yaml").write_text(yaml.safe_dump(recipe(kind)))
            found[kind] = sightline.train(folder / f"{kind}.yaml", out=folder / "runs" / kind, display=Silent()).folder
        yield found


def validations(run: Path) -> list[dict[str, Any]]:
    records = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "validation"]


@pytest.mark.parametrize("kind", NOISES)
def test_the_loss_falls(kind: str, runs: dict[str, Path]) -> None:
    found = [record["loss"] for record in validations(runs[kind])]
    assert found[-1] < 0.75 * found[0]
    assert found[-1] < 0.5 * np.log(8)  # of a uniform choice among eight words


def test_masked_words_are_predicted_from_both_sides(runs: dict[str, Path]) -> None:
    run = sightline.load(runs["mask"])
    assert validations(runs["mask"])[-1]["masked-accuracy"] > 80
    assert run.predict(["five six [MASK] one two ."]) == ["five six seven one two ."]
    assert run.predict(["five six seven one [MASK] three four five ."]) == ["five six seven one two three four five ."]


def test_nbest_fillings_have_probabilities(runs: dict[str, Path]) -> None:
    run = sightline.load(runs["mask"])
    (guesses,) = run.predict_nbest(["five six [MASK] one two ."], run.options(nbest=3))
    assert guesses[0].text == "five six seven one two ."
    assert len({guess.text for guess in guesses}) == 3
    scores = [guess.score for guess in guesses]
    assert scores == sorted(scores, reverse=True)
    every = run.predict_nbest(["five six [MASK] one two ."], run.options(nbest=99))[0]
    assert sum(np.exp(guess.score) for guess in every) == pytest.approx(1, abs=1e-4)  # special tokens excluded


def test_an_ensemble_of_one_model_twice_equals_the_model(runs: dict[str, Path]) -> None:
    one, twice = Run.load(runs["mask"]), Run.ensemble([runs["mask"], runs["mask"]])
    texts = ["five six [MASK] one [MASK] .", "no gap"]
    expected, found = (each.predict_nbest(texts, each.options(nbest=2)) for each in (one, twice))
    assert [[guess.text for guess in guesses] for guesses in found] == [
        [g.text for g in guesses] for guesses in expected
    ]
    assert found[0][1].score == pytest.approx(expected[0][1].score, abs=1e-4)
    with pytest.raises(ValueError, match="do not support masked-LM or denoising evaluation"):
        twice.evaluate("test")


def test_text_without_gaps_is_returned_unchanged(runs: dict[str, Path]) -> None:
    run = sightline.load(runs["mask"])
    assert run.predict(["one two", "", "one [MASK]"])[:2] == ["one two", ""]


def test_the_best_fillings_of_several_gaps_equal_exhaustive_search() -> None:
    logs = np.log(np.random.default_rng(1).dirichlet(np.ones(5), 3))
    every = sorted(
        (float(logs[0, a] + logs[1, b] + logs[2, c]) for a in range(5) for b in range(5) for c in range(5)),
        reverse=True,
    )
    assert [score for _, score in best_fillings(logs, 7)] == pytest.approx(every[:7])
    chosen, score = best_fillings(logs, 7, first=10)[3]
    assert sum(logs[row, token - 10] for row, token in enumerate(chosen)) == pytest.approx(score)


def test_denoising_restores_a_text(runs: dict[str, Path]) -> None:
    run = sightline.load(runs["denoise"])
    (found,) = run.predict(["five six [MASK] one two three four five ."])
    assert "<mask>" not in found
    assert "six seven one" in found


def test_span_corruption_fills_every_gap_and_keeps_the_rest(runs: dict[str, Path]) -> None:
    run = sightline.load(runs["span-corruption"])
    (found,) = run.predict(["five six [MASK] one two three four [MASK] six seven one"])
    assert found.startswith("five six ")
    assert found.endswith(" six seven one")
    assert " one two three four " in found
    assert "<gap" not in found


@pytest.mark.parametrize("kind", NOISES)
def test_evaluation_is_reproducible_and_its_signature_names_the_noise(kind: str, runs: dict[str, Path]) -> None:
    run = Run.load(runs[kind])
    one, other = run.evaluate("test"), Run.load(runs[kind]).evaluate("test")
    assert [score.value for score in one.scores] == [score.value for score in other.scores]
    assert one.tokens == other.tokens and one.tokens is not None and one.tokens > 20
    assert f"noise:{run.recipe.data.noise.kind}-0.2" in one.scores[0].signature  # type: ignore[union-attr]
    assert ("|sent:rules-2|" in one.scores[0].signature) == (kind == "denoise")  # which permutes sentences
    assert ("|words:scripts-2|" in one.scores[0].signature) == (kind != "span-corruption")  # which masks any tokens
    assert one.scores[0].value < 4
    validation = run.evaluate("validation").scores[0].value
    assert validation == pytest.approx(validations(runs[kind])[-1]["perplexity"], rel=1e-4)


@pytest.mark.parametrize("kind", ["mask", "denoise"])
def test_runs_are_compared_with_the_same_noise(kind: str, runs: dict[str, Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs[kind], tmp_path / "copy"))
    found = compare([runs[kind], copy], on="test")
    assert {system.name for system in found.systems} == {kind, "copy"}
    with pytest.raises(RunError, match="ensembles do not support masked-LM or denoising evaluation; compare the runs"):
        compare([copy, (runs[kind], copy)], on="test")


def test_the_command_line_fills_gaps_and_refuses_a_beam(runs: dict[str, Path]) -> None:
    runner = CliRunner()
    asked = "five six [MASK] one two .\n\n"
    result = runner.invoke(app, ["predict", str(runs["mask"]), "-", "--nbest", "2"], input=asked)
    assert result.exit_code == 0, result.output
    first, second = result.stdout.split("\n")[:2]
    assert first.split("\t")[1] == "five six seven one two ."
    assert float(first.split("\t")[0]) < 0
    assert second.split("\t") == ["0.0000", ""]
    assert "unknown" not in result.stderr
    refused = runner.invoke(app, ["predict", str(runs["mask"]), "-", "--beam", "2"], input="one\n")
    assert refused.exit_code != 0


def test_denoisers_score_given_outputs_and_span_corruption_refuses(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "target.txt").write_text("five six seven one two .\n")
    options = ["-", "--target", str(tmp_path / "target.txt"), "--nbest", "1"]
    text = "five six [MASK] one two .\n"
    scored = CliRunner().invoke(app, ["predict", str(runs["denoise"]), *options], input=text, catch_exceptions=False)
    assert -20 < float(scored.stdout.split("\t")[0]) < 0
    refused = CliRunner().invoke(app, ["predict", str(runs["span-corruption"]), *options], input=text)
    assert "this model writes what stood in each gap" in str(refused.exception) and not refused.stdout


def test_a_trace_shows_the_predictions_for_the_gaps(runs: dict[str, Path]) -> None:
    run = sightline.load(runs["mask"])
    text = "five six [MASK] one two ."
    trace, (guesses,) = run.trace(text), run.predict_nbest([text])
    assert trace.about["output"] == guesses[0].text
    assert float(trace["loss"]) == pytest.approx(-guesses[0].score, abs=0.02)  # its softmax includes <mask>
    assert [choice["place"] for choice in tokens_view(Subject(run, text)).record()] == trace.about["places"]
    assert len(trace.about["places"]) == 1
    with pytest.raises(ValueError, match=r"no gap to fill; put \[MASK\]"):
        run.trace("five six")
    with pytest.raises(ValueError, match="answers only where a text is corrupted"):
        corpus_losses(run, "test")


@pytest.mark.parametrize("kind", NOISES)
def test_sample_batches_have_the_noise_of_evaluation(kind: str, runs: dict[str, Path]) -> None:
    run = Run.load(runs[kind])
    batches = sample_batches(run.recipe, run.vocabulary, list(run.test_examples("test")), sentences=4)
    marks = torch.tensor(list(run.vocabulary.source.marks.values()))
    assert all(batch.source is not None and torch.isin(batch.source, marks).any() for batch in batches)
    assert all(float(batch_loss(run.model, batch, 0.0).nll.detach()) / batch.tokens < 2 for batch in batches)


def test_the_model_card_names_the_noise(runs: dict[str, Path]) -> None:
    card = (runs["mask"] / "README.md").read_text()
    assert "A masked language model" in card
    assert "| noise | mask, 20% |" in card


def test_weights_have_the_names_of_taggers_and_translators(runs: dict[str, Path]) -> None:
    loaded = Run.load(runs["denoise"])
    model = loaded.recipe.model
    names = set(load_file(runs["mask"] / "model.safetensors"))
    tagger = {name for name, _ in Tagger(model, ["a"] * 9, 3).named_parameters()}
    translator = {name for name, _ in Seq2Seq(model.model_copy(update={"tie": "output"}), 9, 9).named_parameters()}
    assert {name for name in names if name.startswith("encoder.")} == {n for n in tagger if n.startswith("encoder.")}
    assert {name for name in names if not name.startswith("output.")} <= tagger
    assert {name for name in names if not name.startswith("output.")} <= translator
    assert set(load_file(runs["denoise"] / "model.safetensors")) == set(
        dict(Seq2Seq(model, 9, 9).named_parameters(remove_duplicate=True))
    )


@pytest.mark.parametrize("decoding", [{"beam": 2}, {"beam": 1, "sample": {"temperature": 5.0}}, {"forbid": ["seven"]}])
def test_a_model_initialized_from_span_corruption_never_writes_marks(
    decoding: dict[str, Any], runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "pairs.tsv").write_text("one two three four\tfive six\n" * 4)
    pairs = {"kind": "tsv", "file": "pairs.tsv"}
    made = recipe("span-corruption", data={"train": [pairs], "validation": pairs})
    made["model"]["init_from"] = str(runs["span-corruption"])
    made["training"] |= {"limits": {"steps": 1}, "lr": 1e-9}  # keeps the tendency to write marks
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(made))
    run = Run.load(sightline.train(tmp_path / "recipe.yaml", out=tmp_path / "run", display=Silent()))
    options = Decoding.model_validate({**run.recipe.decoding.model_dump(), **decoding})
    found = run.predict_nbest(["one two three", "four five six seven"] * 4, options)
    assert not any("<gap-" in guess.text for guesses in found for guess in guesses)
    assert any(guess.text for guesses in found for guess in guesses)


@pytest.mark.parametrize(
    ("phrase", "reason"),
    [
        ("six", "it is in the input, which is not changed"),
        ("six {filling}", "a gap makes it together with the input beside it, which is not changed"),
        ("six one", None),  # on two sides of a gap
    ],
)
def test_forbidden_phrases_around_the_gaps_are_reported(runs: dict[str, Path], phrase: str, reason: str | None) -> None:
    lines = "two three\nfive six [MASK] one two .\n"

    def predicted(*options: str) -> Result:
        command = ["predict", str(runs["span-corruption"]), "--device", "cpu", *options]
        with errors.error_boundary():  # as the command does
            return CliRunner().invoke(app, command, input=lines, catch_exceptions=False)

    plain = predicted()
    phrase = phrase.format(filling=plain.stdout.splitlines()[1].split()[2])
    found = predicted(f"decoding.forbid=[{phrase}]")
    assert found.stdout == plain.stdout and not plain.stderr
    message = f"sightline: line 2: the output contains {phrase!r} all the same: {reason}\n"
    assert found.stderr == (message if reason is not None else "")


def test_forbidden_words_are_not_written_into_gaps(runs: dict[str, Path]) -> None:
    run, text = Run.load(runs["span-corruption"]), "five six [MASK] one two ."
    words = sorted(set(run.predict([text])[0].split()) - set(text.split()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = run.predict([text], forbid=words)
    assert words and not set(words) & set(found.split())
    assert found.startswith("five six ")


def test_a_loaded_vocabulary_has_its_marks(runs: dict[str, Path]) -> None:
    assert list(Vocabulary.load(runs["mask"]).source.marks) == ["<mask>"]
    assert len(Vocabulary.load(runs["span-corruption"]).source.marks) == 8
    assert build_model(Run.load(runs["mask"]).recipe, Vocabulary.load(runs["mask"])) is not None


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mask", {"task": "seq2seq", "model": {"encoder": BODY, "decoder": BODY}}, "mask is for task: masked-lm"),
        ("denoise", {"task": "masked-lm", "model": {"encoder": BODY}}, "kind: text-infilling is for task: seq2seq"),
        ("denoise", {"model": {"decoder": BODY}}, "needs a model with an encoder"),
        (
            "denoise",
            {"evaluation": {"metrics": ["bleu"]}},
            "seq2seq with data.noise; use perplexity",
        ),
        ("denoise", {"tokenizer": {"kind": "bpe", "shared": False}}, r"tokenizer\.shared: true"),
        ("span-corruption", {"tokenizer": {"kind": "bpe", "size": 12}}, r"no room for text beside .*sentinels \(8\)"),
        ("mask", {"evaluation": {"metrics": ["bleu"]}}, "bleu is not for task: masked-lm"),
        ("mask", {"training": {"batches": {"context": 4}}}, r"context \(4\) leaves too little"),
    ],
)
def test_unsuitable_recipes_are_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_trainable(Recipe.model_validate(recipe(kind, **changes)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"noise": None}, r"masked-lm learns to undo noise; add data\.noise: \{kind: mask\}"),
        ({"clean": {"max_tokens": 9}}, r"data\.clean is for pairs"),
        ({"noise": {"kind": "mask", "masked": 0.9, "random": 0.2}}, "more than 1 together"),
    ],
)
def test_unsuitable_data_is_refused(data: dict[str, Any], message: str) -> None:
    made = recipe("mask")
    with pytest.raises(ValueError, match=message):
        check_trainable(Recipe.model_validate({**made, "data": {**made["data"], **data}}))
