"""Lead and oracle: their extracts, their scores, and comparisons with runs."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.comparison import compare
from sightline.comparison.baselines import lead, oracle, write_baseline
from sightline.evaluation.rouge import rouge_scorer
from sightline.recipe import Recipe
from sightline.run import Run
from sightline.run_folder import RunError

TEXT = "one two three. four five. six seven eight nine. ten eleven. twelve one."


def test_lead_takes_the_first_sentences() -> None:
    assert lead(TEXT, 2) == "one two three. four five."
    assert lead(TEXT, 9) == TEXT
    assert lead("", 3) == ""


def test_oracle_keeps_the_order_of_the_text() -> None:
    assert oracle(TEXT, ["ten eleven and one two three"]) == "one two three. ten eleven."
    assert oracle(TEXT, ["ten eleven and one two three"], most=1) == "one two three."
    assert oracle(TEXT, ["nothing of it"]) == ""


def test_oracle_chooses_the_reference_with_the_best_extract() -> None:
    assert oracle(TEXT, ["something else", "four five"]) == "four five."


def test_oracle_of_one_sentence_maximizes_rouge() -> None:
    reference = "six seven and eight then ten"
    parts = [part + "." for part in TEXT.rstrip(".").split(". ")]
    count = rouge_scorer("rouge1", "rouge2")

    def likeness(text: str) -> float:
        result = count.score(reference, text)
        return float(result["rouge1"].fmeasure + result["rouge2"].fmeasure)

    assert oracle(TEXT, [reference], most=1) == max(parts, key=likeness)
    best = max(likeness(" ".join(pair)) for pair in combinations(parts, 2))
    assert likeness(oracle(TEXT, [reference])) >= best - 1e-9


# --- as runs ------------------------------------------------------------------------------------------------------


def recipe() -> dict[str, Any]:
    files = {part: {"kind": "tsv", "file": f"{part}.tsv"} for part in ("train", "valid", "test")}
    body = {"kind": "recurrent", "cell": "gru", "dropout": 0.0}
    return {
        "data": {"train": [files["train"]], "validation": files["valid"], "tests": {"test": files["test"]}},
        "tokenizer": {"kind": "word", "min_count": 1},
        "model": {"width": 8, "encoder": body, "decoder": body},
        "training": {"limits": {"steps": 2}, "samples": 1, "device": "cpu", "threads": 1},
        "evaluation": {"metrics": ["rouge-1", "rouge-l", "perplexity"]},
        "decoding": {"beam": 1, "max_length": 12},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("summaries")
    for part, first in (("train", 0), ("valid", 20), ("test", 40)):
        lines = [
            f"intro {n} words. the {n} point is made. more of {n} here.\tthe {n} point\n"
            for n in range(first, first + 20)
        ]
        (place / f"{part}.tsv").write_text("".join(lines))
    (place / "recipe.yaml").write_text(yaml.safe_dump(recipe()))
    sightline.train(place / "recipe.yaml", out=place / "run")
    for kind, more in (("lead", ["--sentences", "1"]), ("oracle", [])):
        command = ["baseline", kind, str(place / "recipe.yaml"), "--out", str(place / kind), *more]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        (place / f"{kind}.txt").write_text(result.stdout)
    return place


def test_baseline_command_prints_scores_and_writes_outputs(folder: Path) -> None:
    printed = (folder / "oracle.txt").read_text().splitlines()
    assert printed[0] == "test: 20 texts, oracle"
    assert printed[1].startswith("  ROUGE-1 75.00 [75.00, 75.00]  nrefs:1|bs:1000")
    assert "tok:unicode-words-2" in printed[1]
    records = [json.loads(line) for line in (folder / "lead" / "outputs.jsonl").read_text().splitlines()]
    assert records[0]["output"] == "intro 40 words." and len(records) == 20
    assert json.loads((folder / "lead" / "config.json").read_text())["baseline"] == "lead-1"


def test_oracle_of_a_repeated_source_uses_both_references(tmp_path: Path) -> None:
    (tmp_path / "a.src").write_text("The cat sat. Birds sang.\n" * 2)
    (tmp_path / "a.tgt").write_text("the cat sat\nbirds sang\n")
    files = {"kind": "text", "source": "a.src", "target": "a.tgt"}
    data = {"folder": str(tmp_path), "train": [files], "validation": files, "tests": {"test": files}}
    (report,) = write_baseline("oracle", Recipe.model_validate({**recipe(), "data": data}), ["test"], tmp_path / "out")
    assert report.sentences == 2
    assert report.outputs == [oracle("The cat sat. Birds sang.", ["the cat sat", "birds sang"], None)] * 2


def test_baselines_are_compared_with_runs(folder: Path) -> None:
    result = compare([folder / "run", folder / "lead", folder / "oracle"], device="cpu")
    assert result.metrics == ["rouge-1", "rouge-l", "perplexity"]
    assert [system.name for system in result.having("perplexity")] == ["run"]
    assert "perplexity: lead and oracle have no model." in result.notes
    assert any("lead (lead-1), oracle (oracle). An oracle has seen the references." in note for note in result.notes)
    best = result.systems[2]
    assert best.name == "oracle" and best.qualities["rouge-1"].value == pytest.approx(75)
    assert best.verdicts["rouge-1"].significant and best.verdicts["rouge-1"].better
    assert best.sentences_per_second is None and best.parameters == 0
    assert not any("different devices" in note or "Training did not finish" in note for note in result.notes)


def test_baselines_have_rows_but_no_recipe_differences(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "table.md"
    command = ["compare", *(str(folder / name) for name in ("lead", "run", "oracle")), "--markdown", str(page)]
    result = CliRunner().invoke(
        app, [*command, "--device", "cpu", "--html", str(tmp_path / "t.html")], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert "| oracle |" in page.read_text() and "| lead |" in page.read_text()
    assert compare([folder / "lead", folder / "run"], device="cpu").differences == []


def test_two_baselines_can_be_compared_alone(folder: Path) -> None:
    result = compare([folder / "lead", folder / "oracle"], metrics=["rouge-2"])
    assert result.systems[1].verdicts["rouge-2"].better


def test_errors_of_baselines(folder: Path) -> None:
    with pytest.raises(RunError, match=r"holds outputs \(lead-1\) and no model"):
        Run.load(folder / "lead")
    with pytest.raises(RunError, match="has no output for source 1"):
        compare([folder / "run", folder / "lead"], on="validation", metrics=["rouge-1"], device="cpu")
    with pytest.raises(
        RunError, match=r"perplexity cannot come first: lead has no model.*--metrics rouge-1,perplexity"
    ):
        compare([folder / "run", folder / "lead"], metrics=["perplexity"], device="cpu")
    command = ["baseline", "lead", str(folder / "recipe.yaml"), "--out", str(folder / "run")]
    assert isinstance(CliRunner().invoke(app, command).exception, RunError)
