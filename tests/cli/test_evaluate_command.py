"""`sightline evaluate`, most of all for language models, classifiers and taggers."""

from __future__ import annotations

import json
import shutil
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from sightline.cli import evaluate as module
from sightline.cli.app import app
from sightline.cli.evaluate import _other_search, _print_confusion
from sightline.evaluation.labels import Confusion
from sightline.evaluation.test_set import Report
from sightline.recipe import Decoding
from sightline.run import Run
from sightline.run_folder import seal_run
from untrained_runs import PAIRS, by_folder, untrained

Runs = dict[str, Path]


def evaluate(run: Path, *arguments: str) -> str:
    command = ["evaluate", str(run), *arguments, "--device", "cpu"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_language_model_is_measured_in_tokens_of_text(tasks: Runs, tmp_path: Path) -> None:
    found = evaluate(tasks["lm-gru"], "--on", "validation", "--json", str(tmp_path / "scores.json"))
    run = Run.load(tasks["lm-gru"], device="cpu")
    (text,) = (each.target for each in run.test_examples("validation"))
    assert found.splitlines()[0] == f"validation: {len(text) + 1:,} tokens"  # of one document with its end mark
    assert "beam" not in found and "sentences" not in found
    (record,) = json.loads((tmp_path / "scores.json").read_text())
    assert record["tokens"] == len(text) + 1 and "beam" not in record and "confusion" not in record
    perplexity, bits = (score["value"] for score in record["scores"])
    assert bits == pytest.approx(np.log2(perplexity))  # a character is a token here, and so is the end


def test_examples_that_validations_saw_are_not_taken_for_tokens(tasks: Runs, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tasks["lm-bpe"], tmp_path / "run"))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"]["validation_limit"] = 4
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    seal_run(run)
    head, whole = (evaluate(each, "--on", "validation").splitlines()[0] for each in (run, tasks["lm-bpe"]))
    assert head == f"{whole}, validations in training saw but the first 4 examples (data.validation_limit)"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources and references, for untrained runs whose names stand for folders."""
    monkeypatch.setattr(Run, "load", lambda folder, **how: copy(by_folder(folder)))  # the recipe is changed
    for name, lines in zip(("source", "reference"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]


def test_where_no_metric_looks_at_outputs_nothing_is_decoded(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, own, alone = tmp_path / "written", tmp_path / "own.json", tmp_path / "alone.json"
    both = evaluate(Path("transformer"), *files, "--metrics", "perplexity,bleu", "--json", str(own)).splitlines()
    assert both[0] == "source: 3 sentences, beam 3, at least 3 tokens"
    kept = evaluate(Path("transformer"), *files, "--metrics", "perplexity", "--outputs", str(written), "--beam", "2")
    assert kept.startswith("source: 3 sentences, beam 2, at least 3 tokens\n")
    assert len(written.read_text(encoding="utf-8").splitlines()) == 3

    monkeypatch.setattr(Run, "predict_nbest", lambda *a, **k: pytest.fail("decoded"))
    told = evaluate(Path("transformer"), *files, "--metrics", "perplexity", "--json", str(alone))
    assert told.splitlines() == ["source: 3 sentences", both[1]]
    assert ["decoding" in json.loads(path.read_text())[0] for path in (own, alone)] == [True, False]
    together = evaluate(Path("transformer"), *files, "--metrics", "perplexity", "--with", "recurrent")
    assert together.startswith("source: 3 sentences, ensemble of 2 runs\n  perplexity")


def test_a_metric_that_is_named_twice_is_told_once(files: list[str]) -> None:
    told = evaluate(Path("transformer"), *files, "--metrics", "chrf, bleu,chrf").splitlines()
    assert [line.split()[0] for line in told[1:]] == ["chrF2", "BLEU"]


@pytest.mark.parametrize(
    "option", [["--beam", "3"], ["--lowercase"], ["--min-length", "2"], ["--lowercase", "--outputs", "x"]]
)
def test_what_is_about_outputs_is_refused_where_none_are_needed(option: list[str], files: list[str]) -> None:
    with pytest.raises(ValueError, match=rf"{option[0]} is about outputs, and perplexity uses none; leave it out"):
        evaluate(Path("transformer"), *files, "--metrics", "perplexity", *option)


def test_bits_per_character_are_over_the_whole_text_whatever_its_tokens(tasks: Runs) -> None:
    run = Run.load(tasks["lm-bpe"], device="cpu")
    test = run.test_set("test")
    perplexity, bits = (run.measure(name, test, [], lowercase=False) for name in ("perplexity", "bits-per-character"))
    nll = perplexity.statistics[:, 0].sum()
    assert bits.statistics[:, 0].sum() == pytest.approx(nll)
    assert bits.statistics[:, 1].sum() == sum(len(several[0]) + 1 for several in test.references)
    assert (bits.statistics[:-1, 1] == 256).all() and (bits.statistics[:, 0] > 0).all()


def test_a_text_of_ones_own(tasks: Runs, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("ANNA: the dog\nBOHR: a cat\n")
    assert evaluate(tasks["lm-gru"], "--reference", str(tmp_path / "my.txt")).startswith("my.txt: 26 tokens")
    assert evaluate(tasks["lm-bpe"], "--reference", str(tmp_path / "my.txt")).startswith("my.txt: ")
    with pytest.raises(ValueError, match="give their text with --reference alone"):
        evaluate(tasks["lm-gru"], "--source", "x", "--reference", "y")


def test_a_file_of_blank_lines_is_no_text_to_measure(tasks: Runs, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n   \n\n")
    with pytest.raises(ValueError, match=r"blank\.txt: there are only blank lines"):
        evaluate(tasks["lm-bpe"], "--reference", str(tmp_path / "blank.txt"))


def test_what_of_a_text_is_unknown_is_counted(tasks: Runs, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("ANNA: 犬 dog\na Ωat\n")
    arguments = ["--reference", str(tmp_path / "my.txt"), "--json", str(tmp_path / "scores.json")]
    assert evaluate(tasks["lm-gru"], *arguments).startswith("my.txt: 18 tokens, 2 of them unknown (<unk>)\n")
    assert json.loads((tmp_path / "scores.json").read_text())[0]["unknown"] == 2


@pytest.mark.parametrize(("name", "suffix"), [("tag-gru", "conllu"), ("names-gru", "col")])
def test_a_tagged_file_of_ones_own_is_read_as_those_that_were_learned_from(
    tasks: Runs, tmp_path: Path, name: str, suffix: str
) -> None:
    run = Run.load(tasks[name], device="cpu")
    other = tmp_path / f"other.{suffix}"
    other.write_text((tasks[name].parent.parent / f"test.{suffix}").read_text(encoding="utf-8"), encoding="utf-8")
    mine, own = (evaluate(tasks[name], *how).splitlines() for how in (["--reference", str(other)], ["--on", "test"]))
    assert mine[0].startswith(f"other.{suffix}: {len(run.test_set('test').sources)} sentences") and mine[1:] == own[1:]


def test_labels_that_no_training_has_shown_are_counted(tasks: Runs, tmp_path: Path) -> None:
    learned = (tasks["tag-gru"].parent.parent / "test.conllu").read_text(encoding="utf-8")
    count = learned.count("\tDET\t")
    (tmp_path / "my.conllu").write_text(learned.replace("\tDET\t", "\tSYM\t"), encoding="utf-8")
    how = ["--reference", str(tmp_path / "my.conllu"), "--json", str(tmp_path / "scores.json")]
    told = evaluate(tasks["tag-gru"], *how).splitlines()
    assert told[0] == "my.conllu: 30 sentences, 122 words"
    assert told[1] == f"  {count} of 122 labels are none the model knows, so never right"
    assert json.loads((tmp_path / "scores.json").read_text())[0]["unlearned"] == count > 1

    (tmp_path / "a.txt").write_text("the old dog good\na cat hears bad\n")
    (tmp_path / "b.txt").write_text("positive\nNegative\n")
    files = ["--source", str(tmp_path / "a.txt"), "--reference", str(tmp_path / "b.txt")]
    assert "  1 of 2 labels is none the model knows, so never right\n" in evaluate(tasks["classify-mean"], *files)
    assert "never right" not in evaluate(tasks["classify-mean"], *files, "--lowercase")
    assert "never right" not in evaluate(tasks["classify-mean"])


@pytest.fixture
def two(tasks: Runs, tmp_path: Path) -> Path:
    """A run with two test sets."""
    run = Path(shutil.copytree(tasks["classify-mean"], tmp_path / "two"))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"]["tests"]["other"] = recipe["data"]["validation"]
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    seal_run(run)
    return run


def test_of_several_test_sets_each_has_a_file_of_its_outputs(two: Path, tmp_path: Path) -> None:
    for name in ("test", "other"):
        evaluate(two, "--on", name, "--outputs", str(tmp_path / f"{name}.txt"))
    command = ["evaluate", str(two), "--outputs", str(tmp_path / "all.txt"), "--device", "cpu"]
    written = CliRunner().invoke(app, command, catch_exceptions=False).stderr
    assert written == f"wrote {tmp_path / 'all-test.txt'}\nwrote {tmp_path / 'all-other.txt'}\n"
    texts = {name: (tmp_path / f"{name}.txt").read_text() for name in ("test", "other", "all-test", "all-other")}
    assert texts["all-test"] == texts["test"] != texts["all-other"] == texts["other"]
    assert not (tmp_path / "all.txt").exists()


def test_of_several_test_sets_each_is_told_when_it_is_done_and_errors_name_theirs(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Run.evaluate

    def fails(self: Run, on: Any, options: Decoding | None = None, **how: Any) -> Report:
        if on.name == "other":
            raise ValueError("line 7 has 30 tokens and this model takes 28")
        return honest(self, on, options, **how)

    monkeypatch.setattr(Run, "evaluate", fails)
    result = CliRunner().invoke(app, ["evaluate", str(two), "--device", "cpu"])
    assert str(result.exception) == "other: line 7 has 30 tokens and this model takes 28"
    assert result.stdout.startswith("test: 30 texts")


@pytest.mark.parametrize(("name", "items"), [("classify-mean", "30 texts"), ("tag-gru", "30 sentences, 122 words")])
def test_what_is_taken_for_what_is_printed_drawn_and_written(
    tasks: Runs, name: str, items: str, tmp_path: Path
) -> None:
    picture, scores = tmp_path / "c.png", tmp_path / "scores.json"
    found = evaluate(tasks[name], "--confusion", str(picture), "--json", str(scores))
    assert found.splitlines()[0] == f"test: {items}"
    assert "right ↓ predicted →" in found and "beam" not in found
    assert picture.read_bytes().startswith(b"\x89PNG")
    (record,) = json.loads(scores.read_text())
    assert record["confusion"]["labels"] == sorted(record["confusion"]["labels"])
    assert np.trace(record["confusion"]["counts"]) > 0


def test_of_many_labels_only_the_most_frequent_confusions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    counts = np.diag(np.full(13, 50))
    counts[3, 7], counts[7, 3], counts[1, 2] = 20, 5, 9
    for place in range(12):
        counts[place, 12] = 1
    labels = tuple(f"L{number}" for number in range(13))
    _print_confusion(Confusion(labels, counts), "words")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + module._MISTAKES
    assert [line.split()[1:4] for line in lines[1:4]] == [["L3", "→", "L7"], ["L1", "→", "L2"], ["L7", "→", "L3"]]
    assert lines[1].split()[0] == "20" and lines[1].endswith("(28.2% of L3)")
    _print_confusion(Confusion(labels, np.diag(np.full(13, 5))), "words")
    assert "no confusions among 13 labels" in capsys.readouterr().out


def test_an_evaluation_names_the_search_by_which_validations_chose_the_checkpoint() -> None:
    recipe = untrained("transformer").recipe
    stopping = recipe.training.stopping.model_copy(update={"monitor": "metric"})
    chosen = recipe.model_copy(update={"training": recipe.training.model_copy(update={"stopping": stopping})})
    note = _other_search(chosen, Decoding(beam=5))
    assert note is not None and note.startswith(
        "validations during training, which chose the checkpoint, decoded by greedy search (training.stopping.beam: 1) "
        "and these scores are of beam 5"
    )
    assert _other_search(chosen, Decoding(beam=1)) is None
    assert _other_search(recipe, Decoding(beam=5)) is None  # chosen by the loss


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("lm-gru", ["--confusion", "c.png"], "--confusion is for classifiers and taggers"),
        ("lm-gru", ["--outputs", "o.txt"], "measured by the text itself"),
        ("lm-gru", ["--metrics", "bleu"], "bleu is not for task: language-model"),
        ("tag-gru", ["--confusion", "c.gif"], "a figure is a .png"),
        ("tag-gru", ["--metrics", "accuracy"], "accuracy is not for task: tagging"),
        ("tag-gru", ["--source", "x"], "--source and --reference go together"),
        ("classify-mean", ["--beam", "3"], "--beam applies to models that generate text"),
        ("tag-gru", ["--length-penalty", "0.5"], "--length-penalty applies to models that generate text"),
        ("lm-gru", ["--beam", "3"], "--beam sets the search for outputs, and a model of text is scored on the text"),
        ("lm-gru", ["--no-repeat", "2"], "--no-repeat sets the search for outputs"),
        ("lm-gru", ["--forbid-everywhere", "x"], "--forbid-everywhere sets the search for outputs"),
        ("lm-gru", ["--lowercase"], "--lowercase: a model of text is measured by the text itself"),
        ("tag-gru", ["--ensemble-mean", "logs"], "--ensemble-mean logs needs several models"),
        ("tag-gru", ["--json", "nowhere/scores.json"], "nowhere/scores.json cannot be written: there is no folder"),
        ("tag-gru", ["--outputs", "nowhere/out.txt"], "nowhere/out.txt cannot be written: there is no folder"),
    ],
)
def test_evaluate_refuses(tasks: Runs, name: str, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["evaluate", str(tasks[name]), *arguments, "--device", "cpu"])
    assert result.exit_code != 0
    assert message in str(result.exception) + result.output
