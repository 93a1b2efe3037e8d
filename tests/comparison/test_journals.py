"""What is read from metrics.jsonl, of new runs and of old ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sightline.comparison.journals import Cost, read_journal
from sightline.run_folder import RunError

TRAIN = {"kind": "train", "step": 10, "loss": 3.0, "tokens": 100, "flops": 5_000, "seconds": 1.5}
VALIDATION = {
    "kind": "validation",
    "step": 12,
    "loss": 2.0,
    "bleu": 7.5,
    "samples": [{"source": "a"}],
    "best": True,
    "tokens": 120,
    "flops": 6_000,
    "peak_memory": 900,
    "seconds": 2.0,
}


def journal(folder: Path, *records: dict[str, Any], end: str = "") -> Path:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records) + end, encoding="utf-8")
    return folder


def test_costs_are_what_was_counted_up_to_the_end(tmp_path: Path) -> None:
    later = {**TRAIN, "step": 20, "tokens": 200, "flops": 10_000, "seconds": 3.0}
    lower = {**VALIDATION, "step": 20, "peak_memory": 700, "tokens": 200, "flops": 10_000, "seconds": 3.5}
    cost, validations = read_journal(journal(tmp_path, TRAIN, VALIDATION, later, lower))
    assert cost == Cost(steps=20, tokens=200, flops=10_000, seconds=3.5, peak_memory=900)
    assert [each["step"] for each in validations] == [12, 20]
    assert validations[0] == {
        "step": 12,
        "loss": 2.0,
        "bleu": 7.5,
        "tokens": 120,
        "flops": 6_000,
        "peak_memory": 900,
        "seconds": 2.0,
    }


def test_an_older_run_has_no_flops_and_no_memory(tmp_path: Path) -> None:
    old = [
        {key: value for key, value in each.items() if key not in ("flops", "peak_memory")}
        for each in (TRAIN, VALIDATION)
    ]
    cost, validations = read_journal(journal(tmp_path, *old))
    assert (cost.flops, cost.peak_memory, cost.tokens) == (None, None, 120)
    assert "flops" not in validations[0] and validations[0]["bleu"] == 7.5


def test_what_was_never_counted_is_not_known(tmp_path: Path) -> None:
    cost, _ = read_journal(journal(tmp_path, {**VALIDATION, "flops": 0, "best": True}))
    assert (cost.flops, cost.tokens) == (None, 120)


def test_a_run_without_a_journal_costs_nobody_knows_what(tmp_path: Path) -> None:
    assert read_journal(tmp_path) == (Cost(), [])


def test_half_a_line_at_the_end_is_passed_over_and_a_damaged_line_is_not(tmp_path: Path) -> None:
    cost, _ = read_journal(journal(tmp_path, TRAIN, end='{"kind": "tra'))
    assert cost.steps == 10
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2 is damaged"):
        read_journal(journal(tmp_path, TRAIN, end='{"kind": "tra\n{}\n'))


def test_the_mean_cost_is_known_only_if_all_are() -> None:
    one, two = Cost(10, 100, None, 1.0, 5), Cost(20, 300, 7, 2.0, 9)
    assert Cost.mean([one, two]) == Cost(steps=15, tokens=200, flops=None, seconds=1.5, peak_memory=9)
