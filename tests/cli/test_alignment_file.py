"""`predict --alignments`: attention weights as JSON, or word links in Pharaoh format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.inspection.alignment import HeadSelection, align_outputs, align_pairs
from sightline.run import Run
from untrained_runs import by_folder, untrained

TEXTS = ["Ein Hund bellt laut.", "", "Die Kinder lachen über den Hund 🙂."]


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run folders are untrained runs of the same name."""
    monkeypatch.setattr(Run, "load", staticmethod(by_folder))


def command(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output if code == 0 else str(result.exception)


def written(folder: Path, **contents: list[str]) -> dict[str, Path]:
    paths = {name: folder / name for name in contents}
    for name, lines in contents.items():
        paths[name].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return paths


@pytest.mark.parametrize("name", ["transformer", "recurrent"])
def test_pharaoh_format_has_one_line_of_word_links_per_input(name: str, tmp_path: Path) -> None:
    paths, out, run = written(tmp_path, texts=TEXTS), tmp_path / "links", untrained(name)
    more = ["--alignments", out, "--alignment-format", "pharaoh", "--shift"]
    printed = command("predict", name, paths["texts"], *more)
    tokens = [guesses[0].tokens for guesses in run.predict_nbest(TEXTS)]
    expected = [each.pharaoh() for each in align_outputs(run, TEXTS, tokens, HeadSelection(shift=True))]
    assert out.read_text(encoding="utf-8").splitlines() == expected
    assert expected[0] and not expected[1]
    assert printed == command("predict", name, paths["texts"])


def test_default_format_is_pieces_and_weights_as_json(tmp_path: Path) -> None:
    paths, out, run = written(tmp_path, texts=TEXTS), tmp_path / "weights", untrained("transformer")
    command("predict", "transformer", paths["texts"], "--alignments", out)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    first = run.align(TEXTS[0])
    assert first is not None and rows[0] == first.to_dict()
    assert rows[1] == {"source": [], "target": [], "weights": []} and len(rows) == 3


def test_given_targets_are_aligned_and_scored(tmp_path: Path) -> None:
    targets = ["A dog barks loudly.", "nothing", "The children laugh about the dog 🙂."]
    paths, out, run = written(tmp_path, texts=TEXTS, targets=targets), tmp_path / "links", untrained("transformer")
    arguments = ["--target", paths["targets"], "--alignments", out, "--alignment-format", "pharaoh", "--nbest", "1"]
    printed = command("predict", "transformer", paths["texts"], *arguments, "--alignment-heads", "decoder.1.cross.0")
    assert [line.split("\t")[1] for line in printed.splitlines()] == targets
    assert command("predict", "transformer", paths["texts"], "--target", paths["targets"]) == printed  # scores too
    expected = align_pairs(run, TEXTS, targets, HeadSelection(("decoder.1.cross.0",)))
    assert out.read_text(encoding="utf-8").splitlines() == [each.pharaoh() for each in expected]
    paths = written(tmp_path, texts=TEXTS, targets=targets[:2])
    message = command("predict", "transformer", paths["texts"], "--target", paths["targets"], code=1)
    assert "has 2 lines, fewer than the input; give one target a line" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alignment-format", "giza", "--alignments", "x"], "--alignment-format giza is not one of json, pharaoh"),
        (["--alignment-format", "pharaoh"], "add --alignments FILE"),
        (["--alignments", "x", "--shift"], "add --alignment-format pharaoh"),
        (["--alignments", "x", "--alignment-heads", "decoder.0.cross"], "add --alignment-format pharaoh"),
    ],
)
def test_wording_of_errors(arguments: list[str], message: str, tmp_path: Path) -> None:
    paths = written(tmp_path, texts=TEXTS)
    assert message in command("predict", "transformer", paths["texts"], *arguments, code=1)


def test_targets_are_refused_for_taggers(tmp_path: Path) -> None:
    paths = written(tmp_path, texts=["a b"])
    message = command("predict", "tagger", paths["texts"], "--target", paths["texts"], code=1)
    assert "--target is for task: seq2seq" in message
