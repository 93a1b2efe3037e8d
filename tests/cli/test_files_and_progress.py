"""Output files that collide, progress messages, warnings and interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from contextlib import nullcontext
from copy import copy
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.cli.errors import error_boundary
from sightline.cli.predict import _counting
from sightline.cli.train import _counter
from sightline.progress import shown, silent
from sightline.run import Run
from untrained_runs import untrained


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text; run folders are untrained runs of the same name."""
    monkeypatch.setattr(Run, "load", staticmethod(lambda folder, **how: copy(untrained(Path(folder).name))))
    (tmp_path / "text").write_text("the dog\na cat\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate transformer --outputs x --json x", "--json x is also the file of --outputs"),
        (
            "evaluate transformer --source text --reference text --outputs ./text",
            "--outputs text is also the file of --reference",
        ),
        ("predict transformer text --alignments text", "--alignments text is also the file of the input"),
        ("predict transformer - --target text --alignments text", "--alignments text is also the file of --target"),
        ("compare a b --html x --csv ../{name}/x", "--csv ../{name}/x is also the file of --html"),
        ("compare a b --source text --reference r --csv text", "--csv text is also the file of --source"),
    ],
)
def test_outputs_overwrite_neither_inputs_nor_each_other(folder: Path, command: str, message: str) -> None:
    result = CliRunner().invoke(app, command.format(name=folder.name).split())
    assert str(result.exception) == f"{message.format(name=folder.name)}; give another name"
    assert (folder / "text").read_text() == "the dog\na cat\n" and not (folder / "x").exists()


def test_progress_is_printed_at_intervals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr("sightline.progress.time.monotonic", lambda: now[0])
    with shown(interval=10.0) as progress:
        for done in (1, 2000, 2001, 3000):
            progress("predicting, lines", done, 0)
            now[0] += 9.0
    show = _counter()
    for count in (1_000, 2_000, 3_000, 4_000):
        now[0] += 1.5
        show("tokenizing", count)
    assert capsys.readouterr().err.splitlines() == [
        "predicting, lines: 2,001 in 18 s",
        "tokenizing, examples: 2,000 in 3 s",
        "tokenizing, examples: 4,000 in 6 s",
    ]


def test_predicted_lines_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(
        "sightline.cli.predict.shown", lambda **_: nullcontext(lambda what, done, of: counted.append(done))
    )
    assert CliRunner().invoke(app, ["predict", "transformer", "text", "--device", "cpu"]).exit_code == 0
    assert counted[-1] == 2 and counted == sorted(counted)


@pytest.mark.parametrize(
    ("terminal", "file"), [("stdout", Path("text")), ("stdin", None), ("stdin", Path("-"))], ids=["seen", "typed", "-"]
)
def test_no_progress_is_shown_if_outputs_appear_in_the_terminal(
    terminal: str, file: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getattr(sys, terminal), "isatty", lambda: True)
    with _counting(file) as progress:
        assert progress is silent


def test_progress_in_a_terminal_does_not_mix_with_outputs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich takes it for a terminal too
    with _counting(Path("text")) as progress:
        print("der Hund")
        progress("predicting, lines", 1, 0)
    seen = capsys.readouterr()
    assert seen.out == "der Hund\n" and "predicting, lines" in seen.err


def test_warnings_of_sightline_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ours = str(Path(sightline.__file__).parent / "training" / "loop.py")
    with warnings.catch_warnings(record=True) as others, error_boundary():
        warnings.warn_explicit("checkpoint 60 is damaged", UserWarning, ours, 46)
        warnings.warn_explicit("not ours", UserWarning, "elsewhere.py", 1)
    assert capsys.readouterr().err == "sightline: checkpoint 60 is damaged\n"
    assert [str(each.message) for each in others] == ["not ours"]


def test_backtranslate_prints_the_source_to_add_to_a_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"read": 2, "kept": 2}
    monkeypatch.setattr("sightline.augment.backtranslation.backtranslate", lambda *a, **k: counts)
    message = CliRunner().invoke(app, ["backtranslate", "transformer", "text", "--out", "back.tsv"]).stderr
    assert f"{{kind: tsv, file: {folder.resolve()}/back.tsv, weight: 1.0}} (and columns: [2, 1] where" in message


def test_an_interruption_while_pytorch_is_imported_is_not_swallowed(tmp_path: Path) -> None:
    """A stand-in for torch swallows exceptions during its import, as its C code does."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "import os, signal, sys\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
        "print('went on')\nsys.exit(3)\n"
    )
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # background jobs ignore it
    command = [sys.executable, "-c", f"{handler}; from sightline.cli import main; main()", "predict", "run"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, ""), done.stderr
