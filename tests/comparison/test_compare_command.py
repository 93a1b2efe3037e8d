"""`sightline compare`: the command and its output in a terminal."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from sightline.cli import main
from sightline.cli.app import app
from sightline.comparison import ComparisonResult, compare, print_comparison
from sightline.comparison.results import MetricResult
from sightline.comparison.summary import signatures
from sightline.comparison.terminal import plain_text
from sightline.evaluation.metrics import score
from sightline.progress import shown
from sightline.run import Run


def test_compare_command_writes_every_format(trained: dict[str, Path], tmp_path: Path) -> None:
    files = {form: tmp_path / f"c.{form}" for form in ("html", "markdown", "latex", "csv", "json")}
    expected = [argument for form, path in files.items() for argument in (f"--{form}", str(path))]
    result = CliRunner().invoke(
        app,
        [
            *("compare", str(trained["none-seed1"]), str(trained["dot-seed1"])),
            *("--on", "other", "--metrics", "chrf, exact", "--beam", "1", "--device", "cpu"),
            *(*expected, "--figure", str(tmp_path / "c.png")),
        ],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "2 systems on other"
    head = next(line for line in lines if line.startswith("system "))
    assert head.split()[:4] == ["system", "chrF2", "Δ", "chrF2"]
    plain = json.loads(files["json"].read_text(encoding="utf-8"))
    run = Run.load(trained["dot-seed1"], device="cpu")
    report = run.evaluate("other", run.options(beam=1))
    score = {score.name: score for score in report.scores}["chrF2"]
    assert plain["systems"][1]["qualities"]["chrf"]["value"] == score.value
    assert plain["systems"][1]["runs"][0]["outputs"] == report.outputs
    assert f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]" in result.stdout
    with files["csv"].open(encoding="utf-8") as file:
        assert [row["system"] for row in csv.DictReader(file)] == ["none-seed1", "dot-seed1"]
    assert files["html"].read_text(encoding="utf-8").startswith("<!doctype html>")
    assert r"\begin{tabular}" in files["latex"].read_text(encoding="utf-8")
    assert files["markdown"].read_text(encoding="utf-8").startswith("## 2 systems on other")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["c.png", *(f"c.{form}" for form in files)])


def test_compare_command_with_source_and_reference_files(trained: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "in.de").write_text("hund katze\nalt\n", encoding="utf-8")
    (tmp_path / "out.en").write_text("dog cat\nold\n", encoding="utf-8")
    result = CliRunner().invoke(
        app,
        [
            *("compare", *map(str, trained.values()), "--baseline", str(trained["none-seed2"]), "--device", "cpu"),
            *("--source", str(tmp_path / "in.de"), "--reference", str(tmp_path / "out.en"), "--metrics", "exact"),
        ],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    assert result.stdout.startswith("2 systems on in.de")
    assert "in.de: 2 sentences. Baseline: none." in result.stdout


def test_invalid_numbers_are_reported_in_one_line(
    trained: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [str(trained["none-seed1"]), str(trained["dot-seed1"])]
    monkeypatch.setattr(sys, "argv", ["sightline", "compare", *runs, "--beam", "0"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err == "sightline: --beam 0: give 1 or more\n"


def test_help_imports_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, sightline\nfrom sightline.cli.app import app\n"
        "try: app(['compare', '--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--baseline" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


# --- the terminal ------------------------------------------------------------------------------------------------


def test_signatures_of_different_intervals_are_all_shown(pair: ComparisonResult) -> None:
    right, half = (score("token-accuracy", ["N V"] * 9, [[tags]] * 9) for tags in ("N V", "N N"))
    assert right.signature != half.signature  # all right, so not by the bootstrap
    both = MetricResult.of("token-accuracy", [right, half, right])
    assert both.signature == f"{right.signature} and {half.signature}"
    (first, *_), metric = pair.systems, pair.metrics[0]
    other = replace(first, qualities={**first.qualities, metric: replace(first.qualities[metric], signature="ci:x")})
    own = first.qualities[metric].signature
    message = signatures(replace(pair, systems=[first, other, first]))
    assert message[0].endswith(f": {own}; ci:x")


def test_plain_text_is_aligned_and_complete(pair: ComparisonResult) -> None:
    text = plain_text(pair)
    assert str(pair) == text
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("system "))
    ends = [line.index(value) + len(value) for line, value in zip(lines[at : at + 2], ("BLEU", "]"), strict=True)]
    assert ends[0] == ends[1]
    for quality in pair.baseline.qualities.values():
        assert text.count(quality.signature) == 1
    assert "What differs in the recipes" in text and "model.decoder.attention.kind  none" in text
    assert "[-" in text and "{+" in text  # words that differ are marked
    assert "Where dot-seed1 gained most on none-seed1 (chrF2)" in text


@pytest.mark.parametrize(("width", "tables"), [(400, 1), (110, 2)])
def test_narrow_terminals_get_separate_tables(pair: ComparisonResult, width: int, tables: int) -> None:
    text = in_terminal(pair, width)
    heads = [line for line in text.splitlines() if "parameters" in line and "FLOPs" in line and "×" not in line]
    assert ("BLEU" in heads[0]) == (tables == 1)
    assert ("What they cost" in text) == (tables == 2)


def in_terminal(comparison: ComparisonResult, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, record=True)
    print_comparison(comparison, console)
    return console.export_text()


def renamed(comparison: ComparisonResult, names: dict[str, str]) -> ComparisonResult:
    contrasts = [replace(each, system=names[each.system]) for each in comparison.where.contrasts]
    return replace(
        comparison,
        systems=[replace(system, name=names[system.name]) for system in comparison.systems],
        where=replace(comparison.where, contrasts=contrasts),
    )


def test_numbers_are_not_wrapped_in_narrow_terminals(pair: ComparisonResult) -> None:
    text = in_terminal(pair, 80)
    for metric, quality in pair.others[0].qualities.items():
        assert f"{quality.value:.2f} [{quality.low:.2f}, {quality.high:.2f}]" in text
        assert f"{pair.others[0].verdicts[metric].p:.4f})" in text or "(<0.0001)" in text


def test_wide_tables_are_transposed(pair: ComparisonResult) -> None:
    long = {name: name + "-with-a-name-that-takes-room" for name in ("none-seed1", "dot-seed1")}
    lines = in_terminal(renamed(pair, long), 90).splitlines()
    at = next(number for number, line in enumerate(lines) if "by their place (across: fifth" in line)
    assert lines[at + 2].split() == ["first", "second", "third", "fourth", "last"]
    cells = [f"{100 * part.systems['dot-seed1'].recall:.1f}%" for part in pair.where.positions]
    assert any(line.split() == [long["dot-seed1"], *cells] for line in lines[at : at + 8])


def test_sentences_are_aligned_below_east_asian_names(pair: ComparisonResult) -> None:
    names = {"none-seed1": "没有注意力机制的系统", "dot-seed1": "dot"}
    lines = plain_text(renamed(pair, names)).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("sentence "))
    source, reference, *outputs = lines[at + 1 : at + 5]
    assert source.index(source.split()[1]) == reference.index(reference.split()[1]) == 2 + 20 + 2
    starts = [
        cell_len(line) - cell_len(line[2:].removeprefix(name).lstrip())
        for line, name in zip(outputs, names.values(), strict=True)
    ]
    assert starts == [2 + 20 + 2] * 2


def test_wide_recipe_differences_become_a_list(pair: ComparisonResult) -> None:
    other = renamed(pair, {"none-seed1": "none", "dot-seed1": "点积注意力" * 5})  # 50 columns wide, beside 28 and 4
    key = "model.decoder.attention.kind"
    assert key in in_terminal(other, 80).splitlines()  # alone in its line, its values below
    assert any(line.split()[:1] == [key] and "dot" in line for line in in_terminal(other, 100).splitlines())


def test_the_representative_of_several_seeds_is_named(seeded: ComparisonResult, pair: ComparisonResult) -> None:
    assert f"none: {seeded.where.runs['none']}" in plain_text(seeded)
    assert "nearest to their mean" not in plain_text(pair)


def test_a_copy_of_the_baseline_is_not_the_shown_contrast(
    trained: dict[str, Path], copied: Callable[..., Path]
) -> None:
    copy = copied("dot-seed1", "copy")
    alone = plain_text(compare([trained["dot-seed1"], copy], device="cpu", metrics=["exact"]))
    assert "Nowhere: no sentence and no word is better or worse." in alone
    both = compare([trained["dot-seed1"], copy, trained["none-seed1"]], device="cpu", metrics=["exact"])
    assert both.best("exact", both.others).name == "copy"
    assert "Where none-seed1 lost most on dot-seed1" in plain_text(both)
    assert "--html FILE" in plain_text(both)  # for the system that is not shown


def test_progress_without_a_terminal_is_printed_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("sightline.progress.time.monotonic", lambda: now[0])
    with shown() as progress:
        for number in range(8):
            progress("decoding", number, 8)
            now[0] += 0.7
    assert capsys.readouterr().err == "decoding: 3 of 8 in 2 s\ndecoding: 6 of 8 in 4 s\n"
