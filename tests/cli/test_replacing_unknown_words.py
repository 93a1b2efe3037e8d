"""Unknown words from the training to the command line: the dictionary of a run, and what predict makes of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.decoding.unknown_words import read_dictionary
from sightline.run_folder import seal_run
from sightline.text.tokenizer import UNK
from watched_runs import Silent, own_cache

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}
RARE = {f"Ding{number}": f"thing{number}" for number in range(20)}  # each seen once, so unknown
LINE = "zwei Zürich Ding3"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deep-att in small that cannot but write unknown words; trained without a dictionary."""
    folder = tmp_path_factory.mktemp("unknown")
    cycled = zip(RARE, cycle(WORDS), strict=False)
    pairs = [(f"{word} {rare}", f"{WORDS[word]} {RARE[rare]}") for rare, word in cycled]
    for side, name in enumerate(("a", "b")):
        (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    source = {"kind": "text", "source": "a", "target": "b"}
    lstm = {"kind": "recurrent", "layers": 2, "skip_connections": "fast-forward", "dropout": 0.0}
    recipe = {
        "data": {"folder": str(folder), "train": [source], "validation": source, "tests": {"test": source}},
        "tokenizer": {"kind": "word", "min_count": 2, "shared": False},
        "model": {
            "width": 8,
            "encoder": {**lstm, "directions": "alternating"},
            "decoder": {**lstm, "attention_from": "bottom"},
            "tie": "output",
        },
        "training": {
            "limits": {"steps": 2},
            "batches": {"tokens": 64},
            "device": "cpu",
            "stopping": {"monitor": "metric"},
        },
        "decoding": {"beam": 2, "max_length": 4},
        "evaluation": {"metrics": ["bleu"], "bootstrap": 2},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with own_cache(folder / "cache"):
        trained = sightline.train(folder / "recipe.yaml", out=folder / "run", display=Silent()).folder
        weights = load_file(trained / "model.safetensors")
        weights["output.bias"][UNK] = 100.0
        save_file(weights, trained / "model.safetensors")
        seal_run(trained)
        yield trained


def command(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(app, [*arguments, "--device", "cpu"], input=given, catch_exceptions=False)


def predict(run: Path, *arguments: str) -> list[str]:
    result = command("predict", str(run), *arguments, given=LINE + "\n")
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def test_unknown_words_stay_unless_they_are_to_be_replaced(run: Path) -> None:
    assert predict(run) == ["<unk>"] * 3
    assert set(predict(run, "--replace-unknown", "copy")) <= set(LINE.split())
    assert len(predict(run, "--replace-unknown", "copy")) == 3


def test_outputs_with_unknown_words_are_counted_wherever_they_are_written(run: Path, tmp_path: Path) -> None:
    (guesses,) = sightline.load(run, device="cpu").predict_nbest([LINE])
    assert guesses[0].unknown == 3
    errors = command("predict", str(run), given=f"{LINE}\n\n{LINE}\n").stderr
    assert "sightline: <unk> is in 2 of 3 outputs (lines 1, 3), in place of words" in errors
    assert "decoding.replace_unknown=copy" in errors
    errors = command("predict", str(run), "--replace-unknown", "copy", given=f"{LINE}\n").stderr
    assert "<unk> is in" not in errors
    path = tmp_path / "scores.json"
    result = command("evaluate", str(run), "--on", "validation", "--json", str(path))
    (report,) = json.loads(path.read_text())
    assert report["outputs_with_unknown"] == len(report["unknown_lines"]) == report["sentences"]
    assert "sightline: validation: <unk> is in" in result.stderr


def test_a_run_without_a_dictionary_says_how_to_make_one(run: Path) -> None:
    with pytest.raises(ValueError, match=r"no dictionary\.tsv .* --resume decoding\.replace_unknown=dictionary"):
        predict(run, "--replace-unknown", "dictionary")


def test_an_unknown_way_to_replace_is_refused(run: Path) -> None:
    with pytest.raises(ValueError, match="'none', 'copy' or 'dictionary'"):
        predict(run, "--replace-unknown", "guess")


def test_resuming_a_finished_run_makes_the_dictionary_it_lacks(run: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(run, tmp_path / "run"))
    sightline.train(again, ["decoding.replace_unknown=dictionary"], resume=True, display=Silent())
    found = read_dictionary(again)
    assert found
    assert set(found) <= {*WORDS, *RARE} and set(found.values()) <= {*WORDS.values(), *RARE.values()}
    assert "<unk>" not in predict(again)


def test_what_the_dictionary_says_is_written(run: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(run, tmp_path / "run"))
    entries = {word: f"<{number}>" for number, word in enumerate(LINE.split())}
    lines = "".join(f"{word}\t{entry}\t1\n" for word, entry in entries.items())
    (again / "dictionary.tsv").write_text(lines, encoding="utf-8")
    seal_run(again)
    copied = predict(again, "--replace-unknown", "copy")
    assert predict(again, "--replace-unknown", "dictionary") == [entries[word] for word in copied]


def test_an_ensemble_takes_the_dictionary_of_the_first_run_that_has_one(run: Path, tmp_path: Path) -> None:
    bare, first, second = (Path(shutil.copytree(run, tmp_path / name)) for name in ("bare", "first", "second"))
    for folder in (first, second):
        lines = "".join(f"{word}\t{folder.name}\t1\n" for word in LINE.split())
        (folder / "dictionary.tsv").write_text(lines, encoding="utf-8")
        seal_run(folder)
    by_dictionary = ("--replace-unknown", "dictionary")
    assert predict(run, "--with", str(first), "--with", str(second), *by_dictionary) == ["first"] * 3
    assert predict(second, "--with", str(first), *by_dictionary) == ["second"] * 3
    with pytest.raises(ValueError, match=r"no dictionary\.tsv"):
        predict(run, "--with", str(bare), *by_dictionary)


def test_in_an_ensemble_it_is_enough_that_one_looks_at_the_source(run: Path, tmp_path: Path) -> None:
    """Whichever is named first."""
    recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    recipe["model"]["encoder"] = recipe["model"]["decoder"] = {"kind": "bytenet", "layers": 1, "kernel": 3}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    blind = sightline.train(tmp_path / "recipe.yaml", out=tmp_path / "blind", display=Silent()).folder
    for first, second in ((blind, run), (run, blind)):
        assert set(predict(first, "--with", str(second), "--replace-unknown", "copy")) <= set(LINE.split())
    with pytest.raises(ValueError, match="needs a decoder with attention to an encoder"):
        predict(blind, "--replace-unknown", "copy")


def test_replacing_counts_in_an_evaluation(run: Path, tmp_path: Path) -> None:
    outputs, scores = tmp_path / "outputs", tmp_path / "scores"
    for way, unknown in (("none", True), ("copy", False)):
        found = command(
            "evaluate", str(run), "--replace-unknown", way, "--outputs", str(outputs), "--json", str(scores)
        )
        assert found.exit_code == 0, found.output
        assert ("<unk>" in outputs.read_text(encoding="utf-8")) == unknown
        assert json.loads(scores.read_text())[0]["sentences"] == 20


def test_unknown_words_of_a_prefix_are_told_unless_they_stand_as_given(run: Path, tmp_path: Path) -> None:
    (tmp_path / "begun").write_text("one Zeppelin\n", encoding="utf-8")
    asked = ("predict", str(run), "--prefixes", str(tmp_path / "begun"))
    plain = command(*asked, given=LINE + "\n")
    assert plain.stdout.startswith("one <unk>")
    assert "written as unknown (--prefixes), for they are not in the vocabulary: 1 piece on 1 line, 'Zeppelin'" in (
        plain.stderr
    )
    copied = command(*asked, "--replace-unknown", "copy", given=LINE + "\n")
    assert copied.stdout.startswith("one Zeppelin")
    assert "--prefixes" not in copied.stderr


def test_unknown_words_of_a_told_output_are_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "told").write_text("one Zeppelin\ntwo\n", encoding="utf-8")
    found = command("predict", str(run), "--target", str(tmp_path / "told"), given="eins\nzwei\n")
    assert [line.partition("\t")[2] for line in found.stdout.splitlines()] == ["one Zeppelin", "two"]
    said = "judged as unknown (--target), for they are not in the vocabulary: 1 piece on 1 line, 'Zeppelin'"
    assert found.stderr == f"sightline: {said}\n"
