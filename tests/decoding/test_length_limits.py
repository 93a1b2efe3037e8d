"""Length limits of outputs, which follow from the training text, and reports of outputs that reach them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.decoding.request import source_limits
from sightline.run import Run
from tiny_recipes import TEST_FILE, tsv_files, write_recipe
from watched_runs import Silent, own_cache

GRU = {"kind": "recurrent", "cell": "gru", "layers": 1}
WORDS = ["jump", "walk", "look", "run"]
LINES = ["jump walk", "run", "look look run", "walk jump"]


def pairs(numbers: range) -> str:
    """Each word is written twelve times, so targets are twelve times as long as their sources."""
    sources = [[WORDS[(n * 7 + k * k) % 4] for k in range(1 + n % 5)] for n in numbers]
    return "".join(f"{' '.join(words)}\t{' '.join(word for word in words for _ in range(12))}\n" for words in sources)


def recipe(**sections: Any) -> dict[str, Any]:
    return {
        "data": tsv_files(**TEST_FILE),
        "tokenizer": {"kind": "word", "min_count": 1},
        "model": {"width": 16, "encoder": GRU, "decoder": GRU},
        "training": {
            "lr": 1e-2,
            "schedule": {"kind": "constant", "warmup": 0},
            "limits": {"steps": 15},
            "samples": 2,
            "device": "cpu",
            "threads": 1,
            "stopping": {"monitor": "metric", "beam": 1},
        },
        "evaluation": {"metrics": ["exact"]},
        **sections,
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_cache(tmp_path_factory.mktemp("cache")):
        folder = tmp_path_factory.mktemp("repeated")
        for part, numbers in (("train", range(60)), ("valid", range(60, 70)), ("test", range(70, 80))):
            (folder / f"{part}.tsv").write_text(pairs(numbers))
        yield folder


@pytest.fixture(scope="module")
def run(corpus: Path) -> Run:
    trained = sightline.train(write_recipe(corpus, recipe()), out=corpus / "run", display=Silent())
    return sightline.load(trained, device="cpu")


def command(*arguments: str, lines: str = "") -> tuple[str, str]:
    result = CliRunner().invoke(app, [*arguments], input=lines, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_no_reference_is_cut_by_default(run: Run) -> None:
    for name in ("validation", "other"):
        for source, target in run.test_examples(name):
            (limit,) = source_limits([len(source.split()) + 1], run.recipe.decoding, run.task.lengths)
            assert limit > len(target.split()) + 1


def test_a_run_records_how_long_its_targets_are(run: Run) -> None:
    record = json.loads((run.folder / "config.json").read_text())["target_lengths"]
    assert record["longest_target"] == 61
    assert record["largest_ratio"] == round(61 / 6, 3)
    decoding = yaml.safe_load((run.folder / "recipe.yaml").read_text())["decoding"]
    assert decoding["max_length"] is None and decoding["max_ratio"] is None


def test_explicit_limits_of_older_recipes_keep_their_meaning(run: Run) -> None:
    options = run.options(max_length=256, max_ratio=3.0)
    assert source_limits([2, 100], options, run.task.lengths) == [16, 256]


def test_predict_names_the_outputs_that_reach_the_limit(run: Run) -> None:
    result = [guesses[0].truncated for guesses in run.predict_nbest(LINES, run.options(max_length=2))]
    assert any(result)
    lines = [number for number, truncated in enumerate(result, 1) if truncated]
    arguments = "predict", str(run.folder), "--max-length", "2", "--device", "cpu"
    _, errors = command(*arguments, lines="".join(f"{line}\n" for line in LINES))
    numbers = ("line " if len(lines) == 1 else "lines ") + ", ".join(map(str, lines))
    message = f"{len(lines)} of 4 outputs reached the length limit ({numbers}); raise decoding.max_length (2)"
    assert f"sightline: {message}\n" in errors


def test_predict_reports_nothing_without_truncated_outputs(run: Run) -> None:
    _, errors = command("predict", str(run.folder), "--device", "cpu", lines="\n")
    assert "length limit" not in errors


def test_evaluate_counts_truncated_outputs(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    arguments = "evaluate", str(run.folder), "--max-length", "2", "--json", str(path), "--device", "cpu"
    _, errors = command(*arguments)
    (report,) = json.loads(path.read_text())
    assert report["truncated"] == len(report["truncated_lines"]) > 0
    assert f"sightline: other: {report['truncated']} of 10 outputs reached the length limit" in errors


def test_validations_count_truncated_outputs(corpus: Path) -> None:
    out = sightline.train(
        write_recipe(corpus, recipe(decoding={"max_length": 3})), out=corpus / "short", display=Silent()
    )
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    *_, record = [record for record in records if record["kind"] == "validation"]
    assert record["outputs"] == 10 and record["truncated"] == len(record["truncated_lines"]) > 0
    assert any(sample.get("truncated") for sample in record["samples"])


def test_a_training_reports_the_references_that_its_limits_would_cut(corpus: Path) -> None:
    message = (
        "decoding.max_ratio (3) would cut 48 of 60 training targets, 8 of 10 validation references, "
        "8 of 10 other references; raise it, or leave decoding.max_length and max_ratio out"
    )
    path, display = write_recipe(corpus, recipe(decoding={"max_ratio": 3.0})), Silent()
    sightline.train(path, out=corpus / "cut", display=display)
    assert message in display.notes
    assert message in command("train", str(path), "--dry-run")[0]
    display = Silent()
    sightline.train(write_recipe(corpus, recipe()), out=corpus / "whole", display=display)
    assert not any("would cut" in note for note in display.notes)


def test_references_longer_than_all_training_targets_are_reported(corpus: Path) -> None:
    (corpus / "long.tsv").write_text(f"jump\t{'jump ' * 200}\n")
    content = recipe()
    content["data"]["tests"]["long"] = {"kind": "tsv", "file": "long.tsv"}
    result, _ = command("train", str(write_recipe(corpus, content)), "--dry-run")
    assert "the limit of outputs, which follows from the training text, would cut 1 of 1 long reference;" in result
