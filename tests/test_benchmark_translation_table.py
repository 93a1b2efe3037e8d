"""The table of translation systems: what is chosen for its ensemble, and when GNMT goes on."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("translation_table")


def test_runs_are_taken_one_by_one_while_they_add_to_the_score(benchmark: Any) -> None:
    worth = {"a": 3.0, "b": 2.0, "c": -1.0}
    asked: list[tuple[str, ...]] = []

    def score(names: Sequence[str]) -> float:
        asked.append(tuple(names))
        return sum(worth[name] for name in names)

    assert benchmark.choose(list("cba"), score, most=5) == (["a", "b"], [3.0, 5.0])
    assert asked[-1] == ("a", "b", "c") and len(asked) == 3 + 2 + 1
    assert benchmark.choose(list("cba"), score, most=1) == (["a"], [3.0])
    assert benchmark.choose(["c"], score, most=5) == (["c"], [-1.0])


def test_what_adds_nothing_is_left_out(benchmark: Any) -> None:
    assert benchmark.choose(["a", "b"], lambda names: 1.0, most=2) == (["a"], [1.0])


def test_the_systems_of_the_list_are_those_that_are_put_together(benchmark: Any) -> None:
    names = {entry["name"] for entry in yaml.safe_load(benchmark.SYSTEMS.read_text())}
    assert {*benchmark.TRANSFORMERS, "gnmt"} <= names


def started(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands: list[list[str]] = []

    def run(command: list[str], **how: Any) -> Any:
        commands.append(command[3:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_gnmt_goes_on_from_what_is_trained(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands, gnmt, out = started(benchmark, monkeypatch), tmp_path / "gnmt", tmp_path / "gnmt-rl"
    gnmt.mkdir()
    (gnmt / "model.safetensors").touch()
    benchmark.FineTuning(gnmt, out, ["training.limits.minutes=2"]).run()
    ((verb, recipe, *rest),) = commands
    assert (verb, recipe, rest[-2:]) == ("train", "multi30k/gnmt", ["--out", str(out)])
    assert f"model.init_from={gnmt}" in rest and "training.limits.minutes=2" in rest
    out.mkdir()
    (out / "recipe.yaml").touch()
    benchmark.FineTuning(gnmt, out, []).run()
    assert commands[1] == ["train", str(out), "--resume"]


def test_where_no_gnmt_comes_nothing_goes_on(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands, tuning = started(benchmark, monkeypatch), benchmark.FineTuning(tmp_path / "gnmt", tmp_path / "rl", [])
    tuning.no_more.set()
    tuning.run()
    assert not commands and tuning.code is None
