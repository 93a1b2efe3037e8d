"""`sightline train`: the wording of its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("dats", "did you mean dates"),
        ("missing.yaml", "missing.yaml: "),
        ("runs/missing --resume", "runs/missing: "),
        ("bad.yaml", "bad.yaml:2: unknown key moddel; did you mean model?"),
        ("dates lr=1", "override 'lr=1': unknown key lr; did you mean training.lr?"),
        ("dates training.lr=fast", "training.lr: expected a number, got 'fast'"),
        ("dates training.limits.steps", "override 'training.limits.steps': "),
        ("dates --out full", "give another folder with --out"),
    ],
)
def test_wording_of_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("task: seq2seq\nmoddel: {}\n")
    Path("full").mkdir()
    Path("full/recipe.yaml").write_text("task: seq2seq\n")
    result = CliRunner().invoke(app, ["train", *arguments.split()])
    assert result.exit_code == 1, result.output
    assert message in str(result.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.yaml", "full"]
