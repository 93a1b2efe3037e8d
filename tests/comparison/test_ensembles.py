"""Ensembles in comparisons: `runs/a+runs/b` scores as in `evaluate`, and costs the sum of its runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.comparison import ComparisonResult, read_comparison
from sightline.comparison.export import csv_text
from sightline.comparison.summary import conclusions
from sightline.comparison.systems import folders_of
from sightline.comparison.tables import differences_table, main_table, runs_table
from sightline.plots.comparison import draw
from sightline.run import Run
from sightline.run_folder import RunError, seal_run

Copy = Callable[..., Path]


@pytest.fixture(scope="module")
def mixed(trained: dict[str, Path]) -> ComparisonResult:
    """A run without attention, two seeds with it, and all of them together."""
    parts = [trained[name] for name in ("none-seed1", "dot-seed1", "dot-seed2")]
    return sightline.compare([*parts, parts], device="cpu")


def test_an_ensemble_scores_as_in_evaluate(trained: dict[str, Path], mixed: ComparisonResult) -> None:
    together = Run.ensemble([trained[name] for name in ("none-seed1", "dot-seed1", "dot-seed2")], device="cpu")
    report = together.evaluate("test")
    system = mixed.systems[-1]
    (member,) = system.runs
    assert system.name == "none-seed1 + dot-seed1 + dot-seed2"
    assert member.outputs == report.outputs
    assert list(member.scores.values()) == report.scores
    assert set(system.verdicts) == set(mixed.metrics)


def test_the_cost_of_an_ensemble_is_the_sum_of_its_runs(mixed: ComparisonResult) -> None:
    runs = [member for system in mixed.systems[:-1] for member in system.runs]
    (member,) = mixed.systems[-1].runs
    assert member.ensemble == ["none-seed1", "dot-seed1", "dot-seed2"]
    assert member.parameters == sum(run.parameters for run in runs)
    for name in ("steps", "tokens", "flops", "seconds"):
        assert getattr(member.cost, name) == pytest.approx(sum(getattr(run.cost, name) for run in runs))
    assert member.cost.peak_memory == max(run.cost.peak_memory or 0 for run in runs)
    assert member.validations == []
    (note,) = [note for note in mixed.notes if note.startswith("Ensembles")]
    assert "average the probabilities of their models: none-seed1 + dot-seed1 + dot-seed2 (3 runs). Parameters" in note
    assert "× the training FLOPs" in conclusions(mixed)[-1]


def test_seeds_form_a_system_beside_their_ensemble(mixed: ComparisonResult) -> None:
    assert [system.name for system in mixed.systems[:-1]] == ["none-seed1", "dot"]
    assert [len(system.runs) for system in mixed.systems] == [1, 2, 1]
    assert [row[1] for row in main_table(mixed).rows] == ["1", "2", "3"]
    rows = {row[0]: row[1:] for row in differences_table(mixed).rows}
    assert rows["seed"] == ["1", "1, 2", "1, 1, 2"]
    assert rows["model.decoder.attention.kind"] == ["none", "dot", "none, dot"]
    heads = [column.title for column in runs_table(mixed).columns]
    seeds = [row[heads.index("seed")] for row in runs_table(mixed).rows]
    assert seeds == ["1", "1", "2", "–"]


def test_ensembles_are_not_grouped_with_their_runs(trained: dict[str, Path]) -> None:
    one, two, other = (trained[name] for name in ("dot-seed1", "dot-seed2", "none-seed1"))
    result = sightline.compare([(one, other), two], device="cpu", metrics=["exact"])
    assert [len(system.runs) for system in result.systems] == [1, 1]
    assert not any("differ only in their seed" in note for note in result.notes)


def test_each_run_is_loaded_once(trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = Run.load

    def counted(folder: Any, **options: Any) -> Run:
        loaded.append(Path(folder).name)
        return load(folder, **options)

    monkeypatch.setattr(Run, "load", counted)
    one, two = trained["dot-seed1"], trained["dot-seed2"]
    sightline.compare([one, (one, two), (two, trained["none-seed1"])], device="cpu", metrics=["exact"])
    assert loaded == ["dot-seed1", "dot-seed2", "none-seed1"]


def test_a_path_with_plus_is_an_ensemble_unless_it_exists(trained: dict[str, Path], tmp_path: Path) -> None:
    one, two = trained["dot-seed1"], trained["dot-seed2"]
    assert folders_of(f"{one}+{two}") == folders_of((one, str(two))) == [one, two]
    assert folders_of(one) == [one]
    own = Path(shutil.copytree(one, tmp_path / "a+b"))
    assert folders_of(own) == [own]
    assert folders_of(f"{one}+") == [Path(f"{one}+")]  # reported as no run folder
    result = sightline.compare([own, f"{one}+{two}"], device="cpu", metrics=["exact"])
    assert [system.name for system in result.systems] == ["a+b", "dot-seed1 + dot-seed2"]


def test_given_names_apply_to_parts(trained: dict[str, Path]) -> None:
    runs = {"first": trained["dot-seed1"], "both": (trained["dot-seed1"], trained["none-seed1"])}
    result = sightline.compare(runs, device="cpu", metrics=["exact"])
    assert [system.name for system in result.systems] == ["first", "both"]
    assert result.systems[1].ensemble == ["first", "none-seed1"]
    assert any(": both (2 runs)." in note for note in result.notes)


def test_duplicate_names_are_refused(trained: dict[str, Path], tmp_path: Path) -> None:
    one, two = trained["dot-seed1"], trained["dot-seed2"]
    same = Path(shutil.copytree(trained["none-seed1"], tmp_path / "dot-seed1 + dot-seed2"))
    with pytest.raises(
        RunError, match=r"2 of what is compared would be called dot-seed1 \+ dot-seed2; rename a folder"
    ):
        sightline.compare([same, (one, two)], device="cpu")
    with pytest.raises(RunError, match=r"would be called dot-seed2; .* sightline\.compare\(\{name: folder\}\)"):
        sightline.compare({"dot-seed2": one, "both": (one, two)}, device="cpu")


def test_an_ensemble_can_be_the_baseline(trained: dict[str, Path]) -> None:
    one, two = trained["dot-seed1"], trained["dot-seed2"]
    runs = [one, f"{one}+{two}"]
    for expected in (f"{two}+{one}", "dot-seed1 + dot-seed2"):
        result = sightline.compare(runs, baseline=expected, device="cpu", metrics=["exact"])
        assert [system.name for system in result.systems] == ["dot-seed1 + dot-seed2", "dot-seed1"]
    result = sightline.compare([f"{one}+{two}", one], baseline=one, device="cpu", metrics=["exact"])
    assert result.baseline.name == "dot-seed1"  # and not the ensemble that begins with it


def test_ensembles_can_average_logs(trained: dict[str, Path]) -> None:
    parts = [trained["none-seed1"], trained["dot-seed1"]]
    result = sightline.compare([parts[0], parts], device="cpu", metrics=["perplexity"], ensemble_mean="logs")
    expected = Run.ensemble(parts, mean="logs", device="cpu").evaluate("test").scores[3]
    assert result.systems[1].qualities["perplexity"].value == expected.value
    assert any("average the log-probabilities of their models" in note for note in result.notes)


def test_baselines_cannot_be_part_of_an_ensemble(trained: dict[str, Path], tmp_path: Path) -> None:
    recipe = trained["dot-seed1"] / "recipe.yaml"
    lead = tmp_path / "lead"
    made = CliRunner().invoke(app, ["baseline", "lead", str(recipe), "--out", str(lead)], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    with pytest.raises(RunError, match=r"lead holds outputs and no model, so it cannot be part of an ensemble"):
        sightline.compare([trained["dot-seed1"], (trained["dot-seed2"], lead)], device="cpu")
    dot, none = trained["dot-seed1"], trained["none-seed1"]
    result = sightline.compare([lead, (dot, none)], device="cpu", metrics=["exact"])
    assert differences_table(result).rows == []
    result = sightline.compare([lead, none, (dot, none)], device="cpu", metrics=["exact"])
    rows = {row[0]: row[1:] for row in differences_table(result).rows}
    assert rows["model.decoder.attention.kind"] == ["–", "none", "dot, none"]


def test_notes_on_parts_appear_once(trained: dict[str, Path], copied: Copy) -> None:
    short = copied("dot-seed2", "short", training__limits={"steps": 500})
    runs = [trained["none-seed1"], short, (trained["none-seed1"], short), (trained["dot-seed1"], short)]
    notes = sightline.compare(runs, device="cpu", metrics=["exact"]).notes
    (message,) = [note for note in notes if note.startswith("Training did not finish")]
    assert "did not finish: short (step 90); continue" in message
    alone = sightline.compare([runs[0], runs[-1]], device="cpu", metrics=["exact"]).notes
    assert message in alone
    begun = copied("dot-seed2", "begun", model__init_from=str(trained["none-seed1"]))
    runs = [trained["none-seed1"], begun, (trained["none-seed1"], begun)]
    notes = sightline.compare(runs, device="cpu", metrics=["exact"]).notes
    assert any("(model.init_from): begun. Tokens" in note for note in notes)


def test_differences_within_ensembles_are_not_shown(trained: dict[str, Path]) -> None:
    one, two = ([trained[f"{kind}-seed{seed}"] for kind in ("none", "dot")] for seed in (1, 2))
    result = sightline.compare([one, two], device="cpu", metrics=["exact"])
    assert differences_table(result).rows == [["seed", "1, 1", "2, 2"]]


def test_ensembles_have_devices_and_teachers_of_all_runs(
    trained: dict[str, Path], copied: Copy, tmp_path: Path
) -> None:
    (tmp_path / "text.tsv.json").write_text(json.dumps({"counts": {"kept": 1}, "plan": {"teacher": "big"}}))
    student = copied("dot-seed2", "student", data__train=[{"kind": "tsv", "file": str(tmp_path / "text.tsv")}])
    (student / "environment.json").write_text(json.dumps({"cuda": ["H200"]}))
    recipe = yaml.safe_load((student / "recipe.yaml").read_text(encoding="utf-8"))
    recipe["training"]["device"] = "cuda"
    (student / "recipe.yaml").write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")
    seal_run(student)
    one, other = trained["dot-seed1"], trained["none-seed1"]
    result = sightline.compare([other, (one, other, student)], device="cpu", metrics=["exact"])
    (member,) = result.systems[1].runs
    assert member.trained_on == "CPU, H200"
    assert member.teachers == ["big"]
    assert member.folder == f"{one}+{other}+{student}"
    mixed = "CPU: none-seed1, dot-seed1 + none-seed1 + student; H200: dot-seed1 + none-seed1 + student."
    assert any(note.endswith(mixed) for note in result.notes)


def test_ensembles_of_language_models_are_scored(tasks: dict[str, Path]) -> None:
    parts = [tasks["lm-gru"], tasks["lm-transformer"]]
    with pytest.raises(RunError, match="--ensemble-mean logs is for outputs, and a text is scored by probabilities"):
        sightline.compare([parts[0], parts], device="cpu", ensemble_mean="logs")
    result = sightline.compare([parts[0], parts], device="cpu", metrics=["perplexity"])
    expected = Run.ensemble(parts, device="cpu").evaluate(result.test.name).scores
    assert result.systems[1].qualities["perplexity"].value == expected[0].value


def test_ensembles_in_figures_tables_and_files(mixed: ComparisonResult, tmp_path: Path) -> None:
    drawn = draw(mixed, "svg").decode()
    assert "none-seed1 + dot-seed1 + dot-seed2" in drawn and "not recorded" not in drawn
    path = tmp_path / "saved.json"
    path.write_text(mixed.to_json(), encoding="utf-8")
    again = read_comparison(path)
    assert again.systems[-1].ensemble == mixed.systems[-1].ensemble
    assert main_table(again).rows == main_table(mixed).rows
    assert [line.split(",")[1] for line in csv_text(mixed).splitlines()] == ["runs", "1", "2", "3"]
    command = ["compare", "--saved", str(path), "--ensemble-mean", "logs"]
    with pytest.raises(ValueError, match="was compared already, so --ensemble-mean can change nothing; leave it out"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_from_the_command_line(trained: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "in.de").write_text("hund katze\nalt\n", encoding="utf-8")
    (tmp_path / "out.en").write_text("dog cat\nold\n", encoding="utf-8")
    both = f"{trained['none-seed1']}+{trained['dot-seed1']}"
    command = ["compare", both, str(trained["dot-seed1"]), "--device", "cpu", "--metrics", "exact"]
    files = ["--source", str(tmp_path / "in.de"), "--reference", str(tmp_path / "out.en")]
    result = CliRunner().invoke(app, [*command, *files, "--ensemble-mean", "logs"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "in.de: 2 sentences. Baseline: none-seed1 + dot-seed1." in result.stdout
