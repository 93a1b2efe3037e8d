"""Errors of `sightline sweep`, raised before anything is trained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.sweeps.grid import SweepError
from sightline.sweeps.plan import plan_sweep
from sightline.sweeps.sweep import run_sweep


@pytest.mark.parametrize(
    ("arguments", "variants", "message"),
    [
        ("", None, "nothing to sweep over; give keys"),
        ("seed", None, "'seed' is not section.key=value"),
        ("=1,2", None, "'=1,2' is not section.key=value"),
        ("seed=1 seed=2", None, "seed is given twice; write all its values together: seed=a,b,c"),
        ("seed=1,,2", None, "'seed=1,,2' has an empty value between its commas"),
        # lists of variants
        ("", "seed: 1", "list.yaml: this is not a list of variants"),
        ("", "- seed: 1\n- dot", "list.yaml:2: a variant is a mapping such as training.lr: 1e-3, not 'dot'"),
        ("", "- seed: 1\n  seed: 2", "list.yaml:2: 0.seed is given twice"),
        ("", "- training.lr: 1\n  training: {lr: 2}", "list.yaml:1: training.lr is given twice; keep one"),
        ("", "- {name: a, seed: 1}\n- {name: a, seed: 2}", "two variants of the list are named 'a'"),
        ("", "[]", "the list of variants is empty"),
        ("", "- {name: [a]}", "list.yaml:1: the name of a variant is a word, not ['a']"),
        ("", "- {recipe: 3}", "list.yaml:1: the recipe of a variant is a file or the name of a shipped one, not 3"),
        ("", "- {a", "list.yaml:1: this is not YAML"),
        ("seed=1,2", "- {seed: 3}", "seed is in the list and on the command line; remove one of them"),
        ("", "- {name: own}\n- {recipe: multi30k/transfromer}", "combination multi30k/transfromer: "),
        # recipes
        (
            "training.lrr=1 seed=1,2,3",
            None,
            "in every combination: override 'training.lrr=1': unknown key training.lrr; did you mean lr?",
        ),
        ("data.train.0.file=train.tsv,gone.tsv", None, "combination data.train.0.file=gone.tsv: "),
        # folders
        ("seed=1 --out .", None, "is the folder of a run; give the sweep another folder with --out"),
    ],
)
def test_errors_of_the_command(recipe: str, arguments: str, variants: str | None, message: str, tmp_path: Path) -> None:
    command = ["sweep", recipe, *arguments.split()]
    if variants is not None:
        (tmp_path / "list.yaml").write_text(variants)
        command += ["--list", "list.yaml"]
    with pytest.raises(SweepError, match=re.escape(message)):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "is damaged"),
        (b"runs: [dot]", "is damaged"),
        (b"runs: [", "is damaged .*not YAML"),
        (b"runs: 3", "is damaged"),
        (b"{format: 9, sightline: 7.0}", "written by Sightline 7.0 in format 9.*pip install -U"),
    ],
)
def test_damaged_or_newer_sweep_yaml_is_reported(recipe: str, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.yaml").write_bytes(content)
    with pytest.raises(SweepError, match=message):
        plan_sweep(recipe, ["seed=1"], out="sweep")


def test_fewer_jobs_than_one_are_refused(recipe: str) -> None:
    with pytest.raises(SweepError, match=r"jobs \(0\) must be at least 1"):
        run_sweep(plan_sweep(recipe, ["seed=1"]), jobs=0)
