"""A comparison read back from its JSON says, draws and writes what the first one did."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.comparison import ComparisonResult, compare, read_comparison
from sightline.comparison.export import csv_text, html_page, latex, markdown
from sightline.comparison.tables import main_table
from sightline.comparison.terminal import plain_text
from sightline.plots.comparison import draw

MEASUREMENTS = Path(__file__).parents[2] / "docs" / "measurements"


def saved(comparison: ComparisonResult, folder: Path) -> Path:
    path = folder / "comparison.json"
    path.write_text(comparison.to_json(), encoding="utf-8")
    return path


def ignored(_: Exception) -> None: ...


def test_everything_is_the_same_again(seeded: ComparisonResult, tmp_path: Path) -> None:
    again = read_comparison(saved(seeded, tmp_path))
    assert again == seeded
    for show in (plain_text, markdown, latex, csv_text, ComparisonResult.to_json):
        assert show(again) == show(seeded)
    assert html_page(again, ignored) == html_page(seeded, ignored)
    assert draw(again, "svg") == draw(seeded, "svg")


@pytest.mark.parametrize("names", [("lm-gru", "lm-transformer"), ("classify-mean", "classify-max")])
def test_runs_of_other_tasks_come_back(names: tuple[str, str], tasks: dict[str, Path], tmp_path: Path) -> None:
    comparison = compare([tasks[name] for name in names], device="cpu")
    again = read_comparison(saved(comparison, tmp_path))
    assert again == comparison and plain_text(again) == plain_text(comparison)


def test_numbers_that_json_lacks_are_nan_again(seeded: ComparisonResult, tmp_path: Path) -> None:
    first, *rest = seeded.systems
    member = first.runs[0]
    score = replace(member.scores["bleu"], low=math.nan, high=math.nan)
    changed = replace(member, scores={**member.scores, "bleu": score}, validations=[{"step": 1.0, "loss": math.nan}])
    path = saved(replace(seeded, systems=[replace(first, runs=[changed, *first.runs[1:]]), *rest]), tmp_path)
    found = read_comparison(path).systems[0].runs[0]
    assert math.isnan(found.scores["bleu"].low) and math.isnan(found.validations[0]["loss"])


def test_the_best_is_the_same_when_a_value_was_infinite(seeded: ComparisonResult, tmp_path: Path) -> None:
    """A perplexity beyond all numbers is null in JSON, and a nan when it comes back."""
    systems = [
        replace(each, qualities={**each.qualities, "perplexity": replace(each.qualities["perplexity"], value=value)})
        for each, value in zip(seeded.systems, [math.inf, *range(3, 9)], strict=False)
    ]
    comparison = replace(seeded, systems=systems)
    again = read_comparison(saved(comparison, tmp_path))
    assert math.isnan(again.systems[0].qualities["perplexity"].value)
    assert again.best("perplexity").name == comparison.best("perplexity").name == systems[1].name
    assert main_table(again).best == main_table(comparison).best


def test_without_texts_all_numbers_stay(seeded: ComparisonResult, tmp_path: Path) -> None:
    bare = seeded.without_texts()
    text = bare.to_json()
    outputs = [output for system in seeded.systems for member in system.runs for output in member.outputs]
    references = [reference for several in seeded.references for reference in several]
    assert not [each for each in (*seeded.sources, *references, *outputs) if len(each) > 5 and each in text]
    again = read_comparison(saved(bare, tmp_path))
    assert again == bare
    for show in (markdown, latex, csv_text):
        assert show(again) == show(seeded)
    assert draw(again, "svg") == draw(seeded, "svg")
    assert "sentences" in html_page(again, ignored) and plain_text(again)


def test_from_the_command_line(seeded: ComparisonResult, tmp_path: Path) -> None:
    path, table, numbers = saved(seeded, tmp_path), tmp_path / "table.md", tmp_path / "numbers.json"
    arguments = ["compare", "--saved", str(path), "--markdown", str(table), "--no-texts", "--json", str(numbers)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == plain_text(seeded).strip()
    assert table.read_text(encoding="utf-8") == markdown(seeded)
    assert json.loads(numbers.read_text(encoding="utf-8"))["sources"] == []


def test_it_is_shown_and_drawn_without_torch(seeded: ComparisonResult, tmp_path: Path) -> None:
    """Which alone takes longer to import than all the rest."""
    command = ["compare", "--saved", str(saved(seeded, tmp_path)), "--figure", str(tmp_path / "f.png")]
    code = (
        f"import sys\nfrom sightline.cli.app import app\ntry: app({command})\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False" and (tmp_path / "f.png").stat().st_size


def test_what_is_being_done_is_told(seeded: ComparisonResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("sightline.progress.occasional", lambda _: lambda what, done, total: told.append(what))
    command = ["compare", "--saved", str(saved(seeded, tmp_path)), "--csv", str(tmp_path / "f.csv")]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert told == ["reading comparison.json", "writing f.csv"]


@pytest.mark.parametrize("given", [["--beam", "3"], ["runs/a", "runs/b"], ["--on", "other"], ["--no-lowercase"]])
def test_what_was_compared_is_not_compared_otherwise(
    given: list[str], seeded: ComparisonResult, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"was compared already, so .+ can change nothing; leave it out"):
        CliRunner().invoke(app, ["compare", *given, "--saved", str(saved(seeded, tmp_path))], catch_exceptions=False)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"test": {"name": "x"}}', "half {"])
def test_another_file_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"other\.json is no comparison \(.+\); give a file that sightline compare"):
        read_comparison(path)


@pytest.mark.parametrize("taken", ["systems", "folder", "seconds"])
def test_what_was_taken_out_of_a_comparison_is_named(taken: str, seeded: ComparisonResult, tmp_path: Path) -> None:
    path = saved(seeded, tmp_path)
    plain = json.loads(path.read_text())
    of_run = plain.pop(taken, None) is None
    for system in plain.get("systems", []):
        for run in system["runs"]:
            del run[taken]
    path.write_text(json.dumps(plain))
    place = f"systems.0.runs.0.{taken}" if of_run else taken
    told = rf"is no comparison \({place}: Field required\); .* as it was written"
    with pytest.raises(ValueError, match=told):
        read_comparison(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json cannot be read \(No such file"):
        read_comparison(tmp_path / "none.json")


@pytest.mark.parametrize("name", ["translation_table", "summarization"])
def test_published_measurements_can_be_shown(name: str) -> None:
    """Of an earlier version, and without texts."""
    comparison = read_comparison(MEASUREMENTS / f"{name}.json")
    plain = json.loads((MEASUREMENTS / f"{name}.json").read_text(encoding="utf-8"))
    speeds = [each["sentences_per_second"] for each in plain["systems"]]
    assert [system.sentences_per_second for system in comparison.systems] == pytest.approx(speeds)
    assert plain_text(comparison) and markdown(comparison) and draw(comparison, "svg")
