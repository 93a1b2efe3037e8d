"""Comparing language models, classifiers and taggers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.comparison import ComparisonResult, write_comparison
from sightline.comparison.export import ExportError, html_page
from sightline.comparison.tables import analysis_tables, main_table, significance_table
from sightline.comparison.terminal import plain_text
from sightline.plots import comparison as figures
from sightline.run import Run
from sightline.run_folder import RunError, seal_run

Runs = dict[str, Path]


@pytest.fixture(scope="session")
def language_models(tasks: Runs) -> ComparisonResult:
    return sightline.compare([tasks["lm-gru"], tasks["lm-transformer"]], device="cpu")


@pytest.fixture(scope="session")
def classifiers(tasks: Runs, tmp_path_factory: pytest.TempPathFactory) -> ComparisonResult:
    """A copy with exchanged labels, and a label that no reference has."""
    other = Path(shutil.copytree(tasks["classify-max"], tmp_path_factory.mktemp("copied") / "exchanged"))
    path = other / "tokenizer.target.json"
    content = path.read_text(encoding="utf-8").replace('"positive"', '"indifferent"')
    path.write_text(content, encoding="utf-8")
    seal_run(other)
    return sightline.compare([tasks["classify-mean"], other], device="cpu")


@pytest.fixture(scope="session")
def taggers(tasks: Runs) -> ComparisonResult:
    return sightline.compare([tasks["names-gru"], tasks["names-lstm"]], device="cpu")


# --- language models ---------------------------------------------------------------------------------------------


def test_language_models_are_compared_without_decoding(tasks: Runs, language_models: ComparisonResult) -> None:
    assert language_models.metrics == ["perplexity", "bits-per-character"]
    for system in language_models.systems:
        run = Run.load(tasks[system.name], device="cpu")
        values = {score.name: score.value for score in run.evaluate("test").scores}
        assert {quality.label: quality.value for quality in system.qualities.values()} == values
        assert (system.runs[0].outputs, system.sentences_per_second) == ([], None)
    verdict = language_models.others[0].verdicts["bits-per-character"]
    assert 0 < verdict.p <= 1 and verdict.mcnemar is None


def test_reports_of_language_models_have_no_decoding(language_models: ComparisonResult, tmp_path: Path) -> None:
    text = plain_text(language_models)
    assert "no outputs to show and no decoding to time" in text
    assert "test: 1 document. " in text and "over windows of 256 tokens" in text
    assert "sentences/s" not in text.lower() and "same outputs" not in text
    assert "sentences/s" not in [column.title for column in main_table(language_models).columns]
    assert "there are no outputs that could differ" in html_page(language_models)
    written = write_comparison(language_models, tmp_path)
    assert len(written) == 6 and all(path.stat().st_size for path in written)
    plain = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert plain["systems"][0]["sentences_per_second"] is None and plain["where"]["contrasts"] == []


def test_different_tokenizers_compare_by_bits_per_character(tasks: Runs) -> None:
    result = sightline.compare([tasks["lm-lines"], tasks["lm-bpe"]], device="cpu")
    assert result.metrics == ["bits-per-character"]
    assert any(note.startswith("Perplexity is left out: lm-lines and lm-bpe have different") for note in result.notes)


def without_a(run: Path, place: Path) -> Path:
    """A copy of a run whose vocabulary has another letter instead of A."""
    copy = Path(shutil.copytree(run, place))
    path = copy / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"A"', '"Ж"'), encoding="utf-8")
    seal_run(copy)
    return copy


def test_different_unknown_characters_are_refused(tasks: Runs, tmp_path: Path) -> None:
    fewer, too = (without_a(tasks["lm-lines"], tmp_path / name) for name in ("fewer", "too"))
    count = (tasks["lm-lines"].parents[1] / "test.txt").read_text().count("A")
    with pytest.raises(RunError, match=rf"fewer do not know the same words of test: 0 and {count} of its characters"):
        sightline.compare([tasks["lm-lines"], fewer], device="cpu")
    assert "bits-per-character" in sightline.compare([fewer, too], device="cpu").metrics


def test_models_with_different_contexts_share_windows(tasks: Runs, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tasks["lm-transformer"], tmp_path / "short"))
    recipe = yaml.safe_load((other / "recipe.yaml").read_text())
    recipe["training"]["batches"]["context"] = 20
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    seal_run(other)
    result = sightline.compare([tasks["lm-transformer"], other], device="cpu")
    assert result.others[0].verdicts["perplexity"].difference != 0


def test_language_models_on_a_reference_file(tasks: Runs, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("ANNA: the dog\nBOHR: a cat\n" * 30)
    runs = [str(tasks["lm-gru"]), str(tasks["lm-transformer"])]
    arguments = ["compare", *runs, "--reference", str(tmp_path / "my.txt"), "--device", "cpu"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and result.stdout.startswith("2 systems on my.txt")


# --- labels ------------------------------------------------------------------------------------------------------


def test_classifiers_are_compared_over_all_labels(classifiers: ComparisonResult) -> None:
    assert classifiers.metrics == ["accuracy", "macro-f1"]
    assert len(classifiers.sources) == 30  # the same text twice is two texts
    verdict = classifiers.others[0].verdicts["accuracy"]
    assert verdict.mcnemar is not None and verdict.mcnemar.only_baseline_right
    heads = [column.title for column in significance_table(classifiers).columns]
    assert "McNemar p" in heads
    labels = {each.label: each.f1 for each in classifiers.where.labels}
    assert set(labels) == {"positive", "negative", "indifferent"}
    assert labels["indifferent"] == {"classify-mean": 0.0, "exchanged": 0.0}
    assert "F1 of each label" in plain_text(classifiers) and "F1 of each label" in html_page(classifiers)


def test_taggers_are_compared_word_by_word(taggers: ComparisonResult) -> None:
    assert taggers.metrics == ["token-accuracy", "span-f1"]
    tests = taggers.others[0].verdicts
    assert tests["token-accuracy"].mcnemar is not None and tests["span-f1"].mcnemar is None
    rows = analysis_tables(taggers)[0].rows
    assert sum(int(row[1]) for row in rows) == sum(len(several[0].split(" ")) for several in taggers.references)
    assert "Decoding options" not in plain_text(taggers)


# --- refusals and failures ---------------------------------------------------------------------------------------


def test_a_failed_figure_keeps_the_other_files(
    trained: Runs, pair: ComparisonResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> bytes:
        raise RuntimeError("no ink")

    monkeypatch.setattr(figures, "draw", fail)
    with pytest.raises(ExportError, match=r"comparison\.png: no ink"):
        write_comparison(pair, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"comparison.{suffix}" for suffix in ("csv", "html", "json", "md", "tex")]
    html = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert html.count("could not be drawn: no ink") == 2 and "</html>" in html
    files = {form: tmp_path / f"again.{form}" for form in ("html", "csv")}
    arguments = [argument for form, path in files.items() for argument in (f"--{form}", str(path))]
    runs = [str(trained["none-seed1"]), str(trained["dot-seed1"])]
    command = ["compare", *runs, *arguments, "--figure", str(tmp_path / "again.png"), "--device", "cpu"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0 and isinstance(result.exception, ExportError)
    assert "2 systems on test" in result.stdout  # the comparison itself is shown
    assert all(path.is_file() for path in files.values())
    assert re.search(r"Learning curves in .*again\.html: no ink.*again\.png: no ink", str(result.exception))
