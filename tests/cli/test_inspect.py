"""`sightline inspect` on the built-in example; traces of runs are tested where they are made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.inspection.trace import Trace


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["inspect", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_lecture_example_is_walked_from_tokens_to_loss() -> None:
    shown = run("lecture-example")
    places = [
        shown.index(name) for name in ("1. source.tokens", "Q Kᵀ / √d_k", "softmax(scores)", "probabilities", "3.081")
    ]
    assert places == sorted(places)


def test_a_walk_can_be_narrowed() -> None:
    shown = run("lecture-example", "--layer", "0", "--head", "1", "--step", "2")
    assert "decoder.layers.0.cross_attention.weights" in shown
    assert "(step 2, head 1)" in shown
    assert "feedforward.hidden" not in shown


def test_a_cell_is_explained() -> None:
    told = run("lecture-example", "--cell", "decoder.0.cross_attention.products[0,0,2,1]")
    assert told.startswith("−4.508 = (−1.535)·1.313 + 1.136·(−2.275) + ")


@pytest.mark.parametrize("view", ["steps", "tokens"])
def test_there_are_other_views(view: str) -> None:
    shown = run("lecture-example", "--view", view)
    assert ("encoder.layers.0.attention.weights" in shown) == (view == "steps")
    assert ("likeliest" in shown) == (view == "tokens")


def test_a_trace_is_saved_exported_and_written_as_json(tmp_path: Path) -> None:
    saved, script, file = tmp_path / "saved", tmp_path / "by-hand", tmp_path / "trace.json"
    run("lecture-example", "--save", str(saved), "--numpy", str(script), "--json", str(file))
    assert "loss" in Trace.load(saved)
    done = subprocess.run([sys.executable, str(script / "script.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = {step["name"]: step for step in json.loads(file.read_text(encoding="utf-8"))["steps"]}
    weights = steps["decoder.layers.0.cross_attention.weights"]
    assert weights["shape"] == [1, 2, 3, 3]
    assert weights["inputs"] == ["decoder.layers.0.cross_attention.scores"]
    assert sum(weights["values"][0][0][0]) == pytest.approx(1)


def test_a_report_is_one_file(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert run("lecture-example", "--html", str(file)) == f"wrote {file}\n"
    assert "<h2>Walk-through</h2>" in file.read_text(encoding="utf-8")


def test_a_view_is_written_as_json_and_drawn(tmp_path: Path) -> None:
    file, figure = tmp_path / "heads.json", tmp_path / "heads.png"
    run("lecture-example", "--view", "heads", "--layer", "0", "--json", str(file), "--figure", str(figure))
    heads = json.loads(file.read_text(encoding="utf-8"))
    assert {head["kind"] for head in heads} == {"encoder", "decoder", "cross"}
    assert heads[0]["name"] == "encoder.layers.0.attention.0"
    assert sum(heads[0]["weights"][0]) == pytest.approx(1, abs=1e-5)
    assert figure.stat().st_size > 5_000


def test_a_head_is_switched_off_with_its_effect_on_a_corpus(tasks: dict[str, Path]) -> None:
    shown = run(str(tasks["lm-transformer"]), "ANNA: the", "--ablate", "decoder.0.self.1", "--corpus", "test")
    assert "decoder.0.self.1" in shown
    assert "on test" in shown
    every = run(str(tasks["lm-transformer"]), "ANNA: the", "--view", "ablate", "--head", "0")
    assert "decoder.layers.0.attention.0" in every
    assert "attention.1" not in every


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("lecture-example", "--view", "heads", "--cell", "loss[]"), "--view heads is not shown where --cell, --html"),
        (
            ("lecture-example", "--view", "tokens", "--html", "a.html"),
            "--view tokens is not shown where --cell, --html",
        ),
        (("lecture-example", "--view", "heads", "--ablate", "x"), "--view heads is not shown beside --ablate"),
        (("lecture-example", "--view", "nothing"), "there is no such view; there is walk"),
        (("lecture-example", "text"), "has a text and a target of its own"),
        (("lecture-example", "--cell", "loss"), r"write it as NAME\[0,0,2,1\]"),
        (("lecture-example", "--cell", "los[]"), "nothing named 'los' was recorded; there is loss"),
        (("runs/none",), "give a text to look at"),
        (("runs/none", "--gradient-flow", "--html", "x.html"), "it does not go with a measure"),
        (("lecture-example", "--view", "beam"), "a search needs a run folder"),
        (("lecture-example", "--figure", "x.png"), "this view has no picture"),
        (("runs/none", "text"), "runs/none is not a folder"),
    ],
)
def test_what_cannot_be_shown_says_why(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        run(*arguments)
