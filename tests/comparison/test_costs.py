"""Costs and learning curves read from metrics.jsonl, of complete, truncated and older logs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from sightline.comparison.costs import CutOff, cut_off, read_log
from sightline.comparison.results import Cost
from sightline.recipe import Recipe
from sightline.run_folder import RunError
from sightline.training.schedules import interrupted_at
from task_cases import CASES

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


def recipe(**training: Any) -> Recipe:
    source = {"kind": "dates", "split": "train", "examples": 10}
    data = {"train": [source], "validation": {**source, "split": "validation"}}
    body = {"kind": "recurrent", "cell": "gru", "layers": 1}
    return Recipe.model_validate(
        {
            "data": data,
            "tokenizer": {"kind": "character"},
            "model": {"width": 8, "encoder": body, "decoder": {**body, "attention": {"kind": "dot"}}},
            "training": {"limits": {"steps": 20}, **training},
        }
    )


def checkpoint(folder: Path, **progress: Any) -> None:
    place = folder / "checkpoints" / f"step-{progress['step']:08d}"
    place.mkdir(parents=True)
    (place / "progress.json").write_text(json.dumps(progress), encoding="utf-8")


def journal(folder: Path, *records: dict[str, Any], end: str = "") -> Path:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records) + end, encoding="utf-8")
    return folder


def test_costs_are_the_last_values_of_the_log(tmp_path: Path) -> None:
    later = {**TRAIN, "step": 20, "tokens": 200, "flops": 10_000, "seconds": 3.0}
    lower = {**VALIDATION, "step": 20, "peak_memory": 700, "tokens": 200, "flops": 10_000, "seconds": 3.5}
    cost, validations = read_log(journal(tmp_path, TRAIN, VALIDATION, later, lower), recipe())
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
    cost, validations = read_log(journal(tmp_path, *old), recipe())
    assert (cost.flops, cost.peak_memory, cost.tokens) == (None, None, 120)
    assert "flops" not in validations[0] and validations[0]["bleu"] == 7.5


def test_half_a_last_line_is_ignored_but_damaged_lines_are_not(tmp_path: Path) -> None:
    cost, _ = read_log(journal(tmp_path, TRAIN, end='{"kind": "tra'), recipe())
    assert cost.steps == 10
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2 is damaged"):
        read_log(journal(tmp_path, TRAIN, end='{"kind": "tra\n{}\n'), recipe())


def test_combined_costs_need_all_values() -> None:
    one, two = Cost(10, 100, None, 1.0, 5), Cost(20, 300, 7, 2.0, 9)
    assert Cost.combine([one, two], fmean) == Cost(steps=15, tokens=200, flops=None, seconds=1.5, peak_memory=9)
    assert Cost.combine([one, replace(two, least=True)], fmean).least
    assert Cost.combine([one, two], sum) == Cost(steps=30, tokens=400, flops=None, seconds=3.0, peak_memory=9)


# --- journals that are cut off -----------------------------------------------------------------------------------


LAST = {**VALIDATION, "step": 20, "tokens": 200, "flops": 10_000, "seconds": 3.5}


def test_costs_of_a_truncated_log_come_from_the_checkpoint(tmp_path: Path) -> None:
    size = (journal(tmp_path, TRAIN, VALIDATION, LAST) / "metrics.jsonl").stat().st_size
    checkpoint(tmp_path, step=12, tokens=120, flops=6_000, seconds=2.0, journal=size // 2)
    checkpoint(tmp_path, step=20, tokens=200, flops=10_000, seconds=3.6, journal=size)
    assert cut_off(tmp_path, recipe()) is None
    journal(tmp_path, TRAIN, VALIDATION, end='{"kind": "valid')
    assert cut_off(tmp_path, recipe()) == CutOff(12, 20, saved=True)
    cost, validations = read_log(tmp_path, recipe())
    assert cost == Cost(steps=20, tokens=200, flops=10_000, seconds=3.6, peak_memory=900)
    assert [each["step"] for each in validations] == [12]


def test_a_log_longer_than_at_its_checkpoint_is_complete(tmp_path: Path) -> None:
    size = (journal(tmp_path, TRAIN) / "metrics.jsonl").stat().st_size
    checkpoint(tmp_path, step=14, tokens=140, flops=7_000, seconds=2.1, journal=size)  # between two records
    assert cut_off(tmp_path, recipe()) is None
    assert read_log(tmp_path, recipe())[0].flops == 7_000
    journal(tmp_path, TRAIN, {**TRAIN, "step": 15, "flops": 7_500}, end='{"kind"')
    assert cut_off(tmp_path, recipe()) is None
    assert read_log(tmp_path, recipe())[0].flops == 7_500


@pytest.mark.parametrize(
    ("records", "end"),
    [([TRAIN, VALIDATION], ""), ([TRAIN, VALIDATION], '{"kind": "tra'), ([TRAIN, LAST], '{"kind": "valid')],
    ids=["lines missing", "half a line", "half a line behind the last step"],
)
def test_a_truncated_log_without_checkpoint_gives_a_lower_bound(
    tmp_path: Path, records: list[dict[str, Any]], end: str
) -> None:
    journal(tmp_path, *records, end=end)
    assert cut_off(tmp_path, recipe()) == CutOff(records[-1]["step"], 20, saved=False)
    cost, _ = read_log(tmp_path, recipe())
    assert (cost.flops, cost.least) == (records[-1]["flops"], True)
    assert cut_off(tmp_path, recipe(limits={"epochs": 3})) == CutOff(records[-1]["step"], None, saved=False)


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"limits": {"epochs": 2}},
        {"limits": {"minutes": 0.05}},
        {"limits": {"steps": 500}, "stopping": {"patience": 1}},
    ],
    ids=["steps", "epochs", "minutes", "patience"],
)
def test_a_log_that_ends_at_a_limit_is_complete(tmp_path: Path, training: dict[str, Any]) -> None:
    journal(tmp_path, TRAIN, VALIDATION, {**LAST, "epoch": 2, "best": False})
    assert cut_off(tmp_path, recipe(**training)) is None
    assert not read_log(tmp_path, recipe(**training))[0].least


def test_patience_counts_validations_since_the_best_and_nothing_else(tmp_path: Path) -> None:
    journal(tmp_path, {**VALIDATION, "best": True}, TRAIN, LAST | {"best": False})
    patient = recipe(limits={"steps": 500}, stopping={"patience": 2})
    assert cut_off(tmp_path, patient) == CutOff(20, 500, saved=False)
    journal(tmp_path, *[LAST | {"best": False}] * 2)  # its beginning was lost
    assert cut_off(tmp_path, patient) is None


def test_a_counted_model_has_a_complete_log_of_one_record(tmp_path: Path) -> None:
    counted = Recipe.model_validate(CASES["language model, counted"])
    assert cut_off(journal(tmp_path, {**VALIDATION, "step": 1}), counted) is None


@pytest.mark.parametrize("content", ["half {", "[]", None], ids=["half a file", "no object", "no file"])
def test_an_unreadable_checkpoint_is_ignored(tmp_path: Path, content: str | None) -> None:
    checkpoint(journal(tmp_path, TRAIN), step=20, journal=9_999)
    assert cut_off(tmp_path, recipe()) == CutOff(10, 20, saved=True)
    (path,) = tmp_path.glob("checkpoints/*/progress.json")
    path.unlink() if content is None else path.write_text(content)
    assert cut_off(tmp_path, recipe()) == CutOff(10, 20, saved=False)
    assert interrupted_at(tmp_path, recipe()) is None
