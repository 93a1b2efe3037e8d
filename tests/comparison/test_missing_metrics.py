"""Perplexity beside baselines without a model: empty cells, and no tests, ranks or marks."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import sightline
from sightline.comparison import ComparisonResult
from sightline.comparison.baselines import write_baseline
from sightline.comparison.export import csv_text
from sightline.comparison.tables import main_table, narrow_tables, significance_table
from sightline.comparison.terminal import plain_text
from sightline.plots.comparison import draw
from sightline.recipe.loading import load_recipe
from sightline.run_folder import RunError, seal_run

Copy = Callable[..., Path]
NOTE = "perplexity: lead and oracle have no model."


@pytest.fixture(scope="module")
def written(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A lead and an oracle of the test set of the runs."""
    folder = tmp_path_factory.mktemp("baselines")
    recipe = load_recipe(trained["dot-seed1"] / "recipe.yaml")
    write_baseline("lead", recipe, ["test"], folder / "lead", count=1)
    write_baseline("oracle", recipe, ["test"], folder / "oracle")
    return {name: folder / name for name in ("lead", "oracle")}


@pytest.fixture(scope="module")
def runs(trained: dict[str, Path], written: dict[str, Path]) -> list[Path]:
    return [trained["none-seed1"], trained["dot-seed1"], trained["dot-seed2"], written["lead"], written["oracle"]]


@pytest.fixture(scope="module")
def mixed(runs: list[Path]) -> ComparisonResult:
    """A run, a system of two seeds, and two baselines."""
    return sightline.compare(runs, device="cpu")


def test_only_trained_systems_have_perplexity(mixed: ComparisonResult) -> None:
    assert mixed.metrics == ["bleu", "chrf", "exact", "perplexity"]
    assert [system.name for system in mixed.systems] == ["none-seed1", "dot", "lead", "oracle"]
    assert [system.name for system in mixed.having("perplexity")] == ["none-seed1", "dot"]
    assert [system.name for system in mixed.having("bleu")] == ["none-seed1", "dot", "lead", "oracle"]
    assert all("perplexity" not in member.scores for system in mixed.systems[2:] for member in system.runs)
    assert [system.sentences_per_second is None for system in mixed.systems] == [False, False, True, True]
    assert NOTE in mixed.notes


def test_perplexities_are_unchanged_by_baselines(mixed: ComparisonResult, runs: list[Path]) -> None:
    alone = sightline.compare(runs[:3], device="cpu", metrics=["perplexity"])
    for ours, theirs in zip(mixed.systems[:2], alone.systems, strict=True):
        assert ours.qualities["perplexity"] == theirs.qualities["perplexity"]
    assert mixed.others[0].verdicts["perplexity"] == alone.others[0].verdicts["perplexity"]


def test_only_systems_with_the_metric_are_tested(mixed: ComparisonResult) -> None:
    assert [system.name for system in mixed.tested("perplexity")] == ["dot"]
    assert [system.name for system in mixed.tested("bleu")] == ["dot", "lead", "oracle"]
    tested = [row[0] for row in significance_table(mixed).rows if row[1] == "perplexity"]
    assert tested == ["dot"]


def test_holm_counts_only_tested_systems(mixed: ComparisonResult) -> None:
    first, dot, *others = mixed.systems
    verdict = dot.verdicts["perplexity"]
    near = replace(
        verdict, seeds=None, approximate_randomization=replace(verdict.approximate_randomization, p_with_ties=0.04)
    )
    changed = replace(mixed, systems=[first, replace(dot, verdicts={**dot.verdicts, "perplexity": near}), *others])
    assert [system.name for system in changed.significant_after_holm("perplexity")] == [
        "dot"
    ]  # 0.04 would not do among three


def test_a_baseline_without_perplexity_disables_its_tests(runs: list[Path]) -> None:
    result = sightline.compare(runs, baseline="lead", device="cpu")
    assert result.baseline.name == "lead" and result.tested("perplexity") == []
    assert [system.name for system in result.having("perplexity")] == ["none-seed1", "dot"]
    assert (
        "perplexity: lead and oracle have no model; lead is the baseline, so no difference is tested "
        "(--baseline chooses another)." in result.notes
    )
    table = main_table(result)
    place = [column.title for column in table.columns].index("perplexity")
    assert [row[place + 1] for row in table.rows] == ["–"] * 4
    assert table.rows[0][place] == "–" and re.match(r"\d", table.rows[1][place])
    assert f"perplexity: {result.systems[1].qualities['perplexity'].signature}" in plain_text(result)


# --- how it is shown ----------------------------------------------------------------------------------------------


def cells(rows: list[list[str]], heads: list[str]) -> dict[str, list[str]]:
    """Perplexity and its difference for each system."""
    place = heads.index("perplexity")
    return {row[0]: row[place : place + 2] for row in rows}


def check(result: dict[str, list[str]], mixed: ComparisonResult, nothing: str = "–") -> None:
    assert result["lead"] == result["oracle"] == [nothing, nothing]
    assert result["none-seed1"][0].startswith(f"{mixed.baseline.qualities['perplexity'].value:.2f} ")
    assert result["none-seed1"][1] == "baseline"
    assert re.search(r"\d\.\d\d", result["dot"][0]) and re.search(r"\(<?0\.\d+\)|\(1\.0000\)", result["dot"][1])


def test_missing_metrics_are_empty_cells(mixed: ComparisonResult) -> None:
    table = main_table(mixed)
    heads = [column.title for column in table.columns]
    check(cells(table.rows, heads), mixed)
    place = heads.index("perplexity")
    best = min(range(2), key=lambda row: mixed.systems[row].qualities["perplexity"].value)
    assert [row for row, column in table.best if column == place] == [best]
    alone = next(each for each in narrow_tables(mixed) if each.title == "perplexity")
    assert [row[-2:] for row in alone.rows[2:]] == [["–", "–"]] * 2


def test_a_single_value_is_not_marked_as_best(trained: dict[str, Path], written: dict[str, Path]) -> None:
    table = main_table(sightline.compare([trained["dot-seed1"], written["lead"]], device="cpu"))
    place = [column.title for column in table.columns].index("perplexity")
    assert {column for _, column in table.best} == {place - 6, place - 4, place - 2}


def test_missing_metrics_in_csv(mixed: ComparisonResult) -> None:
    rows = {row["system"]: row for row in csv.DictReader(io.StringIO(csv_text(mixed)))}
    mine = [key for key in rows["lead"] if key.startswith("perplexity")]
    assert len(mine) == 13
    for name in ("lead", "oracle"):
        assert {rows[name][key] for key in mine} == {""}
        assert float(rows[name]["bleu"]) >= 0 and rows[name]["bleu_p"] != ""
    assert float(rows["dot"]["perplexity"]) == mixed.others[0].qualities["perplexity"].value
    assert float(rows["dot"]["perplexity_p"]) == mixed.others[0].verdicts["perplexity"].p


def test_missing_metrics_in_json(mixed: ComparisonResult) -> None:
    none, dot, lead, oracle = json.loads(mixed.to_json())["systems"]
    for each in (lead, oracle):
        assert each["qualities"]["perplexity"] is None and each["verdicts"]["perplexity"] is None
        assert each["runs"][0]["scores"]["perplexity"] is None
        assert each["qualities"]["bleu"]["value"] >= 0 and each["verdicts"]["bleu"]["p"] <= 1
    assert dot["verdicts"]["perplexity"]["p"] == mixed.others[0].verdicts["perplexity"].p
    assert none["verdicts"] == {} and none["qualities"]["perplexity"]["value"] > 1


def test_the_figure_shows_a_common_metric(mixed: ComparisonResult) -> None:
    picture = draw(mixed, "svg")
    assert b"BLEU on test against cost" in picture and b"perplexity" not in picture


# --- what is chosen -----------------------------------------------------------------------------------------------


def test_the_first_metric_must_be_common(runs: list[Path]) -> None:
    message = r"perplexity cannot come first: lead and oracle have no model.*e\.g\. --metrics "
    with pytest.raises(RunError, match=message + "chrf,perplexity$"):
        sightline.compare(runs, metrics=["perplexity", "chrf"])
    with pytest.raises(RunError, match=message + "bleu,perplexity$"):
        sightline.compare(runs, metrics=["perplexity"])


def test_common_metrics_come_first(copied: Copy, written: dict[str, Path]) -> None:
    run = copied("dot-seed1", "mine", evaluation__metrics=["perplexity", "chrf", "bleu"])
    result = sightline.compare([run, written["lead"]], device="cpu")
    assert result.metrics == ["chrf", "bleu", "perplexity"]


def test_baseline_recipes_need_no_perplexity(trained: dict[str, Path], copied: Copy, tmp_path: Path) -> None:
    recipe = load_recipe(copied("dot-seed1", "mine", evaluation__metrics=["bleu"]) / "recipe.yaml")
    write_baseline("lead", recipe, ["test"], tmp_path / "lead", count=1)
    result = sightline.compare([trained["dot-seed1"], tmp_path / "lead"], device="cpu")
    assert result.metrics == ["bleu", "perplexity"]
    assert "Left out, because not every recipe has them: chrF2, exact." in result.notes


def test_baselines_alone_have_no_perplexity(written: dict[str, Path]) -> None:
    result = sightline.compare(list(written.values()))
    assert result.metrics == ["bleu", "chrf", "exact"]
    assert "Perplexity is left out: lead and oracle have no model, and so no perplexity." in result.notes
    with pytest.raises(RunError, match="lead and oracle have no model, and so no perplexity; leave perplexity out"):
        sightline.compare(list(written.values()), metrics=["bleu", "perplexity"])


def test_different_tokenizers_stay_incomparable_beside_a_baseline(
    trained: dict[str, Path], copied: Copy, written: dict[str, Path]
) -> None:
    other = copied("none-seed1", "other")
    content = (other / "tokenizer.json").read_text(encoding="utf-8")
    (other / "tokenizer.json").write_text(content.replace('dog"', 'fox"'), encoding="utf-8")
    seal_run(other)
    runs = [written["lead"], trained["dot-seed1"], other]
    result = sightline.compare(runs, device="cpu")
    assert result.metrics == ["bleu", "chrf", "exact"]
    assert any(note.startswith("Perplexity is left out: dot-seed1 and other have diff") for note in result.notes)
    with pytest.raises(RunError, match="dot-seed1 and other have different tokenizers"):
        sightline.compare(runs, metrics=["bleu", "perplexity"])
