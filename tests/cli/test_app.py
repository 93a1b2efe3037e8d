"""`sightline` as a whole: version, help of every command, demo."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sightline.cli import demo
from sightline.cli.app import PANELS, app
from sightline.registry import version
from sightline.training.world import Interrupted


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout.strip()) == (0, version())


def test_help_lists_every_command_by_group() -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"})
    assert result.exit_code == 0
    positions = [result.stdout.index(f" {panel} ") for panel in PANELS]
    assert positions == sorted(positions)
    for command in app.registered_commands:
        assert (f"│ {command.name} " in result.stdout) != command.hidden


def commands(group: Any = None, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command with its sub-commands."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        yield (*names, name)
        yield from commands(command, (*names, name)) if hasattr(command, "commands") else ()


@pytest.mark.parametrize("words", [(), *commands()], ids=" ".join)
def test_help_fits_one_screen_and_has_examples(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "100"})
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 110
    if words:
        assert any(line.strip().startswith("Examples:") for line in lines)
        assert any(line.startswith("    ") and "sightline " in line for line in lines)


def test_help_does_not_import_torch() -> None:
    code = "import sys; from sightline.cli.app import app\ntry: app(['--help'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("called", "installed", "command"),
    [
        ("/usr/bin/sightline", "/usr/bin/sightline", "sightline"),
        (".venv/bin/sightline", None, ".venv/bin/sightline"),
        (".venv/bin/sightline", "/usr/bin/sightline", ".venv/bin/sightline"),  # another installation
        ("src/sightline/__main__.py", "/usr/bin/sightline", "python -m sightline"),
    ],
)
def test_demo_prints_a_command_that_exists(
    called: str, installed: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [called, "demo"])
    monkeypatch.setattr("shutil.which", lambda name: installed)
    assert demo._command() == command


def test_an_interrupted_demo_prints_how_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise Interrupted

    monkeypatch.setattr("sightline.training.train.train", interrupted)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "run")])
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1].endswith(f"sightline train {tmp_path / 'run'} --resume")
