"""Results of comparisons: means, verdicts, ranks, conclusions, and their JSON."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.comparison import ComparisonResult, compare, read_comparison
from sightline.comparison.export import csv_text, latex, markdown
from sightline.comparison.results import (
    NOTHING,
    Analysis,
    Cost,
    Difference,
    HeldOutSet,
    MetricResult,
    RunResult,
    SystemResult,
    Verdict,
)
from sightline.comparison.summary import conclusions, footnotes, representatives_note
from sightline.comparison.tables import main_table
from sightline.comparison.terminal import plain_text, print_comparison
from sightline.evaluation.measurement import MetricScore
from sightline.evaluation.significance import Significance, WelchTest

Better = Literal["higher", "lower"]


def scored(value: float, better: Better = "higher") -> MetricScore:
    return MetricScore("BLEU", value, value - 2, value + 4, "nrefs:1", 8, better)


def member(value: float, *, sentences: int = 8, seconds: float = 2.0, name: str = "run") -> RunResult:
    scores = {"bleu": scored(value)}
    return RunResult(name, name, 1, 10, "cpu", Cost(), [], {}, sentences, seconds, [], scores)  # type: ignore[arg-type]


def verdict(p: float, *, seeds: float | None = None, difference: float = 1.0, better: Better = "higher") -> Verdict:
    """A verdict with p over the sentences, counting ties (without them it is lower)."""
    test = Significance("approximate randomization", "BLEU", better, difference, p=p / 10, p_with_ties=p)
    return Verdict(test, test, None, None if seeds is None else WelchTest(1.0, 1.0, seeds, 2, 2))


def system(name: str, value: float = 1.0, p: float | None = None, better: Better = "higher") -> SystemResult:
    quality = MetricResult.of("bleu", [scored(value, better)])
    return SystemResult(name, [member(value)], {"bleu": quality}, {} if p is None else {"bleu": verdict(p)})


def compared(*systems: SystemResult) -> ComparisonResult:
    where = Analysis.empty("bleu", {})
    return ComparisonResult(HeldOutSet("test", 8, 8), ["bleu"], list(systems), [], where, [], "cpu")


def holm(*ps: float) -> list[str]:
    """The numbers of the systems that stay significant."""
    others = [system(str(place), p=p) for place, p in enumerate(ps)]
    return [each.name for each in compared(system("baseline"), *others).significant_after_holm("bleu")]


@pytest.mark.parametrize(
    ("ps", "significant"),
    [
        ((0.016, 0.024, 0.049), ["0", "1", "2"]),  # below 0.05 / 3, / 2 and / 1
        ((0.049, 0.024, 0.016), ["2", "1", "0"]),
        ((0.016, 0.026, 0.049), ["0"]),  # stops at the first failure
        ((0.017, 0.018, 0.019), []),
        ((0.025, 0.03), []),
        ((0.05,), []),
        ((0.0499,), ["0"]),
    ],
)
def test_holm_correction(ps: tuple[float, ...], significant: list[str]) -> None:
    assert holm(*ps) == significant


def test_p_equal_to_the_level_is_not_significant() -> None:
    assert not verdict(0.05).significant and verdict(0.0499).significant


def test_ties_count_and_the_larger_p_decides() -> None:
    assert verdict(0.2).p == 0.2
    assert verdict(0.2, seeds=0.3).p == 0.3
    assert verdict(0.2, seeds=0.1).p == 0.2


@pytest.mark.parametrize(("better", "ahead"), [("higher", [False, False, True]), ("lower", [True, False, False])])
def test_better_follows_the_direction_of_the_metric(better: Better, ahead: list[bool]) -> None:
    assert [verdict(0.5, difference=apart, better=better).better for apart in (-1.0, 0.0, 1.0)] == ahead


def test_metric_result_of_several_seeds() -> None:
    result = MetricResult.of("bleu", [scored(10), scored(14), replace(scored(18), low=4, signature="nrefs:2")])
    assert (result.value, result.deviation, result.low, result.high) == (14, 4, 8, 18)  # deviation over n - 1
    assert result.signature == "nrefs:1 and nrefs:2"
    assert MetricResult.of("bleu", [scored(10)]).deviation is None


def test_best_is_the_first_of_equals_and_never_nan() -> None:
    values = (("a", math.nan), ("b", 3.0), ("c", 5.0), ("d", 5.0))
    higher = compared(*(system(name, value) for name, value in values))
    lower = compared(*(system(name, value, better="lower") for name, value in values))
    assert (higher.best("bleu").name, lower.best("bleu").name) == ("c", "b")
    assert higher.best("bleu", among=higher.systems[:2]).name == "b"


def test_decoding_speed_of_several_runs() -> None:
    fast, slow, silent = member(1.0), member(1.0, seconds=6.0), member(1.0, sentences=0, seconds=0.0)
    assert (fast.sentences_per_second, silent.sentences_per_second) == (4, None)
    assert replace(system("both"), runs=[fast, slow]).sentences_per_second == 2  # 16 in 8 seconds
    assert replace(system("none"), runs=[silent]).sentences_per_second is None


def test_representative_is_closest_to_the_mean() -> None:
    runs = [member(value, name=str(value)) for value in (1.0, 4.0, 6.0)]
    assert replace(system("three", 11 / 3), runs=runs).representative("bleu").name == "4.0"


def test_baselines_have_outputs() -> None:
    silent = replace(system("text"), runs=[member(1.0, sentences=0)])
    lead = replace(system("lead"), runs=[replace(member(1.0, sentences=0), baseline="lead")])
    assert not compared(silent, silent).has_outputs
    assert compared(silent, lead).has_outputs and compared(silent, system("model")).has_outputs


def test_missing_metrics_are_null_in_json() -> None:
    other = replace(system("other", p=0.5), qualities={}, verdicts={"chrf": verdict(0.5)})
    baseline, last = replace(compared(system("first"), other), metrics=["bleu", "chrf"]).to_dict()["systems"]
    assert baseline["verdicts"] == {} and last["qualities"] == {"bleu": None, "chrf": None}
    assert last["verdicts"]["bleu"] is None and last["verdicts"]["chrf"]["p"] == 0.5


# --- in words ----------------------------------------------------------------------------------------------------


def answered(difference: float, p: float, better: Better = "higher") -> str:
    other = replace(system("other"), verdicts={"bleu": verdict(p, difference=difference, better=better)})
    return conclusions(compared(system("first"), other))[0].partition(", at ")[0]


def test_conclusions() -> None:
    assert answered(1.0, 0.01) == "other is better than first (BLEU +1.00, p = 0.0100)"
    assert answered(-1.0, 0.01) == "other is worse than first (BLEU -1.00, p = 0.0100)"
    assert answered(-1.0, 0.01, better="lower").startswith("other is better than first ")
    unclear = "There is no evidence of a difference between other and first"
    assert answered(1.0, 0.5) == f"{unclear}: other is ahead, but that could be chance (BLEU +1.00, p = 0.5000)"
    assert answered(-1.0, 0.5).startswith(f"{unclear}: other is behind, but that could be chance ")
    assert answered(0.0, 1.0) == "other does not differ from first (BLEU +0.00, p = 1.0000)"


def test_same_outputs_are_stated_for_single_runs() -> None:
    written = replace(member(1.0), outputs=["a"])
    first, other = replace(system("first"), runs=[written]), replace(system("other", p=1.0), runs=[written])
    assert "it has the same outputs" in conclusions(compared(first, other))[0]
    for pair in ([replace(first, runs=[written] * 2), other], [first, replace(other, runs=[written] * 2)]):
        assert "same outputs" not in conclusions(compared(*pair))[0]
    assert "same outputs" not in conclusions(compared(system("first"), system("other", p=1.0)))[0]  # none were kept


def priced(first: RunResult, other: RunResult) -> str:
    systems = replace(system("first"), runs=[first]), replace(system("other", p=0.5), runs=[other])
    return conclusions(compared(*systems))[0].partition(", at ")[2]


def test_relative_costs() -> None:
    cheap = replace(member(1.0), parameters=10, cost=Cost(flops=100.0))
    dear = replace(member(1.0, seconds=8.0), parameters=30, cost=Cost(flops=200.0))
    assert priced(cheap, dear) == "3.00× the parameters, 2.00× the training FLOPs, 0.25× the decoding speed."
    taught = replace(dear, teachers=["teacher"])
    assert (
        priced(cheap, taught) == "3.00× the parameters, 0.25× the decoding speed."
    )  # what the teacher cost is missing
    assert priced(cheap, replace(dear, seconds=0.9)) == "3.00× the parameters, 2.00× the training FLOPs."  # too short


def test_baselines_do_not_count_as_too_fast() -> None:
    lead = replace(member(1.0, sentences=0, seconds=0.0), baseline="lead")
    three = [system("first"), system("other", p=0.5), replace(system("lead", p=0.5), runs=[lead])]
    assert "less than a second" not in " ".join(footnotes(compared(*three)))
    hurried = replace(three[1], runs=[member(1.0, seconds=0.9)])
    assert "some needed less than a second" in " ".join(footnotes(compared(three[0], hurried)))


@pytest.mark.parametrize(
    ("ps", "message"),
    [
        ((0.01,), None),  # one system needs no correction
        ((0.5, 0.5), None),  # nor do systems without a mark
        ((0.01, 0.5), "(Holm 1979) all marks would stay."),
        ((0.03, 0.01, 0.04), "(Holm 1979) it would take the mark from BLEU of s0, s2."),
    ],
)
def test_effect_of_holm_is_noted(ps: tuple[float, ...], message: str | None) -> None:
    others = [system(f"s{place}", p=p) for place, p in enumerate(ps)]
    notes = [note for note in footnotes(compared(system("first"), *others)) if "Holm" in note]
    assert len(notes) == (message is not None) and all(note.endswith(message or "") for note in notes)


def test_representatives_are_named() -> None:
    result = compared(system("a"), system("b"))
    assert representatives_note(replace(result, where=Analysis.empty("bleu", {"a": "a", "b": "b"}))) == ""
    assert "(b: b-seed2)" in representatives_note(
        replace(result, where=Analysis.empty("bleu", {"a": "a", "b": "b-seed2"}))
    )


# --- what differs in the recipes ---------------------------------------------------------------------------------


def test_recipe_differences_fit_the_terminal() -> None:
    rows = [Difference(f"model.encoder.key{number}", ["not set", "a value " * 8, NOTHING]) for number in range(30)]
    systems = [system("first"), system("second", p=0.5), system("third", p=0.5)]
    comparison = replace(compared(*systems), differences=rows)
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=80, color_system=None))
    shown = out.getvalue()
    for row in rows:
        assert f"\n{row.key} " in shown or f"\n{row.key}\n" in shown
    assert shown.count("first   not set") == shown.count("third   –") == 30
    assert "–: this recipe has no such key" in shown
    assert max(map(len, shown.splitlines())) <= 80


MEASUREMENTS = Path(__file__).parents[2] / "docs" / "measurements"


def saved(comparison: ComparisonResult, folder: Path) -> Path:
    path = folder / "comparison.json"
    path.write_text(comparison.to_json(), encoding="utf-8")
    return path


def test_saved_comparisons_round_trip(seeded: ComparisonResult, tmp_path: Path) -> None:
    again = read_comparison(saved(seeded, tmp_path))
    assert again == seeded
    for show in (plain_text, markdown, latex, csv_text, ComparisonResult.to_json):
        assert show(again) == show(seeded)


def test_without_texts_keeps_all_numbers(seeded: ComparisonResult, tmp_path: Path) -> None:
    bare = seeded.without_texts()
    text = bare.to_json()
    outputs = [output for system in seeded.systems for run in system.runs for output in run.outputs]
    references = [reference for several in seeded.references for reference in several]
    assert not [each for each in (*seeded.sources, *references, *outputs) if len(each) > 5 and each in text]
    again = read_comparison(saved(bare, tmp_path))
    assert again == bare and plain_text(again)
    for show in (markdown, latex, csv_text):
        assert show(again) == show(seeded)


def test_from_the_command_line(seeded: ComparisonResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr("sightline.progress.occasional", lambda _: lambda what, done, total: steps.append(what))
    path, table, numbers = saved(seeded, tmp_path), tmp_path / "table.md", tmp_path / "numbers.json"
    arguments = ["compare", "--saved", str(path), "--markdown", str(table), "--no-texts", "--json", str(numbers)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert steps == ["reading comparison.json", "writing table.md", "writing numbers.json"]
    assert result.stdout.strip() == plain_text(seeded).strip()
    assert table.read_text(encoding="utf-8") == markdown(seeded)
    assert json.loads(numbers.read_text(encoding="utf-8"))["sources"] == []


@pytest.mark.parametrize("names", [("lm-gru", "lm-transformer"), ("classify-mean", "classify-max")])
def test_saved_comparisons_of_other_tasks_round_trip(
    names: tuple[str, str], tasks: dict[str, Path], tmp_path: Path
) -> None:
    comparison = compare([tasks[name] for name in names], device="cpu")
    again = read_comparison(saved(comparison, tmp_path))
    assert again == comparison and plain_text(again) == plain_text(comparison)


def test_nan_round_trips(seeded: ComparisonResult, tmp_path: Path) -> None:
    first, *rest = seeded.systems
    member = first.runs[0]
    score = replace(member.scores["bleu"], low=math.nan, high=math.nan)
    changed = replace(member, scores={**member.scores, "bleu": score}, validations=[{"step": 1.0, "loss": math.nan}])
    path = saved(replace(seeded, systems=[replace(first, runs=[changed, *first.runs[1:]]), *rest]), tmp_path)
    result = read_comparison(path).systems[0].runs[0]
    assert math.isnan(result.scores["bleu"].low) and math.isnan(result.validations[0]["loss"])


def test_best_is_unchanged_by_saving_infinity(seeded: ComparisonResult, tmp_path: Path) -> None:
    """Infinity is null in JSON and NaN when read."""
    systems = [
        replace(each, qualities={**each.qualities, "perplexity": replace(each.qualities["perplexity"], value=value)})
        for each, value in zip(seeded.systems, [math.inf, *range(3, 9)], strict=False)
    ]
    comparison = replace(seeded, systems=systems)
    again = read_comparison(saved(comparison, tmp_path))
    assert math.isnan(again.systems[0].qualities["perplexity"].value)
    assert again.best("perplexity").name == comparison.best("perplexity").name == systems[1].name
    assert main_table(again).best == main_table(comparison).best


def test_saved_comparisons_are_shown_without_torch(seeded: ComparisonResult, tmp_path: Path) -> None:
    command = ["compare", "--saved", str(saved(seeded, tmp_path)), "--figure", str(tmp_path / "f.png")]
    code = (
        f"import sys\nfrom sightline.cli.app import app\ntry: app({command})\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False" and (tmp_path / "f.png").stat().st_size


@pytest.mark.parametrize("content", ["", "[]", '{"test": {"name": "x"}}', "half {"])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"other\.json is no comparison \(.+\); give a file that sightline compare"):
        read_comparison(path)


@pytest.mark.parametrize("taken", ["systems", "folder", "seconds"])
def test_missing_fields_are_named(taken: str, seeded: ComparisonResult, tmp_path: Path) -> None:
    path = saved(seeded, tmp_path)
    plain = json.loads(path.read_text())
    of_run = plain.pop(taken, None) is None
    for system in plain.get("systems", []):
        for run in system["runs"]:
            del run[taken]
    path.write_text(json.dumps(plain))
    place = f"systems.0.runs.0.{taken}" if of_run else taken
    message = rf"is no comparison \({place}: Field required\); .* as it was written"
    with pytest.raises(ValueError, match=message):
        read_comparison(path)


@pytest.mark.parametrize("name", ["translation_table", "summarization"])
def test_published_measurements_are_readable(name: str) -> None:
    """Files of an earlier version, without texts."""
    comparison = read_comparison(MEASUREMENTS / f"{name}.json")
    plain = json.loads((MEASUREMENTS / f"{name}.json").read_text(encoding="utf-8"))
    speeds = [each["sentences_per_second"] for each in plain["systems"]]
    assert [system.sentences_per_second for system in comparison.systems] == pytest.approx(speeds)
    assert plain_text(comparison) and markdown(comparison)
