"""The command as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli import demo
from sightline.cli.app import app
from sightline.registry import version
from sightline.training.world import Interrupted


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout.strip()) == (0, version())


def test_help_names_every_verb() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    verbs = (
        "train",
        "predict",
        "evaluate",
        "compare",
        "sweep",
        "distill",
        "backtranslate",
        "recipes",
        "schema",
        "doctor",
    )
    for verb in (*verbs, "demo"):
        assert f" {verb} " in result.stdout


def test_help_answers_without_torch() -> None:
    code = "import sys; from sightline.cli.app import app\ntry: app(['--help'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("called", "found", "told"),
    [
        ("/usr/bin/sightline", "/usr/bin/sightline", "sightline"),
        (".venv/bin/sightline", None, ".venv/bin/sightline"),
        (".venv/bin/sightline", "/usr/bin/sightline", ".venv/bin/sightline"),  # another one, which may know no demo
        ("src/sightline/__main__.py", "/usr/bin/sightline", "python -m sightline"),
    ],
)
def test_the_demo_tells_a_command_that_is_there(
    called: str, found: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [called, "demo"])
    monkeypatch.setattr("shutil.which", lambda name: found)
    assert demo._command() == told


def test_an_interrupted_demo_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise Interrupted

    monkeypatch.setattr("sightline.training.train.train", interrupted)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "run")])
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1].endswith(f"sightline train {tmp_path / 'run'} --resume")
