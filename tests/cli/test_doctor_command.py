"""`sightline doctor` as a command."""

from __future__ import annotations

import io

import pytest
import typer
from rich.console import Console

from sightline.cli import doctor as command
from sightline.cli.doctor import Finding


def reports(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    monkeypatch.setattr("sightline.cli.doctor.report", lambda: list(findings))


def test_what_is_not_a_terminal_gets_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports(
        monkeypatch,
        Finding("torch", "torch", "2.13.0"),
        Finding("features", "x", "no", "missing", "pip install 'a[b]'"),
    )
    command.doctor()
    assert capsys.readouterr().out == "torch\tok\ttorch\t2.13.0\nfeatures\tmissing\tx\tno (pip install 'a[b]')\n"


def test_something_broken_makes_the_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    reports(monkeypatch, Finding("torch", "torch", "not installed", "broken", "pip install torch"))
    with pytest.raises(typer.Exit) as caught:
        command.doctor()
    assert caught.value.exit_code == 1


def test_the_table_shows_brackets_as_written() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(command._table([Finding("features", "x", "no", "missing", "pip install 'sightline[viz]'")]))
    assert "pip install 'sightline[viz]'" in console.export_text()
