"""The tables of the documentation hold the numbers that were measured: those in docs/measurements."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from documented import ROOT

MIB, MS = 2**-20, 1e3


def measured(name: str) -> Any:
    return json.loads((ROOT / "docs" / "measurements" / f"{name}.json").read_text(encoding="utf-8"))


def missing(page: str, rows: Iterable[list[str]]) -> list[list[str]]:
    """Those rows of which no table of the page has all cells; marks of the best and of significance do not count."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("**", "").replace("\\*", "")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    shown = [{part for cell in line.split("|") for part in (cell.strip(), *_parts(cell.strip()))} for line in lines]
    return [row for row in rows if not any({*row} <= cells for cells in shown)]


def _parts(cell: str) -> list[str]:
    """`37.52 [35.86, 39.14]` and `+0.19 (0.55)` are two numbers each."""
    value, bracket, interval = cell.partition(" [")
    return [value.partition(" (")[0], bracket.strip() + interval]


def signed(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("ablations", "ablations.md"),
        ("attention_scores", "attention-scores.md"),
        ("translation_table", "translation-table.md"),
        ("distillation_lstm", "translation-table.md"),
        ("distillation_convs2s", "translation-table.md"),
    ],
)
def test_scores_intervals_and_differences_are_those_of_the_comparison(name: str, page: str) -> None:
    rows = []
    for system in measured(name)["systems"]:
        bleu, *others = (system["qualities"][metric] for metric in ("bleu", "chrf", "ter"))
        values = [
            f"{each['value']:.2f}" + (f" ± {each['deviation']:.2f}" if each["deviation"] else "")
            for each in (bleu, *others)
        ]
        differences = [signed(verdict["difference"]) for verdict in system["verdicts"].values()]
        shown = differences[:1] if name == "translation_table" else differences
        rows.append([*values, f"[{bleu['low']:.2f}, {bleu['high']:.2f}]", *shown])
    assert missing(page, rows) == []


@pytest.mark.parametrize(("name", "digits"), [("", 0), ("_cuda", 1), ("_cuda_longer", 1)])
def test_time_and_memory_of_long_inputs_are_those_measured(name: str, digits: int) -> None:
    points: dict[int, list[str]] = {}
    for row in measured(f"long_attention{name}")["rows"]:
        cells = points.setdefault(row["length"], [f"{row['length']:,}"])
        cells += [f"{row['seconds'] * MS:,.{digits}f}", f"{row['peak_bytes'] * MIB:,.0f}"]
    assert missing("long-inputs.md", points.values()) == []


def test_memory_and_time_of_relative_attention_are_those_measured() -> None:
    points: dict[tuple[int, int], list[str]] = {}
    for row in measured("relative_memory")["rows"]:
        cells = points.setdefault((row["batch"], row["length"]), [f"{row['batch']}", f"{row['length']:,}"])
        cells += [f"{row['peak_bytes'] * MIB:,.1f}", f"{row['seconds'] * MS:,.1f}"]
    assert missing("positions.md", points.values()) == []


def test_what_positions_carry_is_what_was_measured() -> None:
    rows = [
        [row["change"], row["positions"], *(_exact(test) for test in row["tests"])]
        for row in measured("length_generalization")["rows"]
    ]
    assert missing("positions.md", rows) == []


def _exact(test: dict[str, Any]) -> str:
    return f"{test['scores']['exact']['value']:.1f}" if "scores" in test else "error"


def test_alignment_errors_are_those_measured() -> None:
    found = [
        each
        for run in measured("alignment_error")
        for each in (run["all"][run["chosen"]], *run["symmetrized"].values())
    ]
    rows = [[f"{each[key]:.3f}" for key in ("AER", "precision", "recall")] for each in found]
    assert missing("alignments.md", rows) == []


def test_what_taps_cost_is_what_was_measured() -> None:
    rows = [
        [model, f"{work['taps']:,}", f"{100 * work['cost']['value']:.2f} %".replace("-", "−")]
        for model, works in measured("tap_cost")["models"].items()
        for work in works.values()
    ]
    assert missing("looking-inside.md", rows) == []


@pytest.mark.parametrize("name", ["train_speed_cpu_scan", "decode_speed_cpu_greedy", "decode_speed_cpu_beam"])
def test_rates_and_ratios_of_a_race_are_those_measured(name: str) -> None:
    first, *others = measured(name)["rows"]
    rows = [
        [f"{row['rate']:,.0f}", f"{row['first_is_faster']:.2f}×", "{:.2f} – {:.2f}".format(*row["quartiles"])]
        for row in others
    ]
    assert missing("speed.md", [[f"{first['rate']:,.0f}"], *rows]) == []
