"""A training that ends before its first step: the folder stays usable, or the error names the command to resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.training import train as experiment
from task_cases import LSTM, case, write
from watched_runs import Silent, own_cache


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Path]:
    with own_cache(tmp_path / "cache"):
        yield write(tmp_path, case("seq2seq", {"encoder": LSTM, "decoder": LSTM}))


def stopped(*arguments: Any) -> None:
    raise KeyboardInterrupt


def told(recipe: Path, run: Path) -> str:
    result = CliRunner().invoke(app, ["train", str(recipe), "--out", str(run)])
    assert result.exit_code == 130, result.output
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.clean.max_tokens=2", "no examples are left"),
        ("training.batches.tokens=4", r"more than training\.batches\.tokens \(4\)"),
    ],
)
def test_failed_training_leaves_the_folder_usable(recipe: Path, tmp_path: Path, change: str, said: str) -> None:
    run = tmp_path / "run"
    with pytest.raises(ValueError, match=said):
        sightline.train(recipe, [change], out=run)
    sightline.train(recipe, ["training.limits.steps=1"], out=run, display=Silent())
    assert (run / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("prepare_data", "interrupted; nothing was saved; start again"),
        ("flop_rate", "interrupted; continue with: sightline train {run} --resume"),
    ],
)
def test_interruption_before_the_first_step_names_the_command(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, said: str
) -> None:
    run = tmp_path / "run"
    whole: Callable[..., Any] = getattr(experiment, stage)
    monkeypatch.setattr(experiment, stage, lambda *given, **more: stopped(whole(*given, **more)))
    assert told(recipe, run) == said.format(run=run)
    monkeypatch.undo()
    again = [str(run), "--resume"] if "--resume" in said else [str(recipe), "--out", str(run)]
    result = CliRunner().invoke(app, ["train", *again])
    assert result.exit_code == 0 and (run / "model.safetensors").is_file()
