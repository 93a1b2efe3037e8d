"""Every exception becomes one line and a documented exit code; control characters are escaped."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline
from sightline.cli import errors, main
from sightline.cli.errors import error_boundary
from sightline.run import Run
from sightline.terminal import console, printable, printable_output

INTERNAL = "This is a bug in Sightline; run again with --debug for the traceback"


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sightline", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(str(left.value.code))


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("beam is 0"), 1, "beam is 0"),
        (FileNotFoundError(2, "No such file", "a.txt"), 1, "No such file (a.txt)"),
        (ModuleNotFoundError("No module named 'mido'"), 1, "see `sightline doctor`"),
        (EOFError("the stream that begins at byte 1 has no end"), 1, "unexpected end of file: the stream that begins"),
        (MemoryError(), 1, "out of memory (MemoryError); lower training.batches.tokens"),
        (torch.OutOfMemoryError("CUDA out of memory."), 1, "out of memory (OutOfMemoryError: CUDA out of memory.)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, "out of memory (RuntimeError"),
        (
            RuntimeError("size mismatch\n  at 3"),
            70,
            "internal error: RuntimeError: size mismatch at 3 (cli/",
        ),
        (TypeError("'NoneType' object is not iterable"), 70, INTERNAL),
        (AttributeError("'Tagger' object has no attribute 'align'"), 70, INTERNAL),
        (RecursionError("maximum recursion depth exceeded"), 70, INTERNAL),
        (KeyError("width"), 70, "internal error: KeyError: 'width'"),
        (AssertionError(), 70, "internal error: AssertionError (cli/options.py"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_every_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    message: str,
    debug: bool,
) -> None:
    def failing(*arguments: Any, **options: Any) -> Run:
        raise error

    monkeypatch.setattr(Run, "load", failing)
    monkeypatch.setenv("SIGHTLINE_DEBUG", "")  # restored after --debug sets it
    assert run_main(monkeypatch, "predict", "run", *(["--debug"] if debug else [])) == code
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert not out and lines[-1].startswith("sightline: ")
    assert message.removesuffix("; run again with --debug for the traceback" if debug else "") in lines[-1]
    assert (lines[0] == "Traceback (most recent call last):") == debug and (len(lines) == 1) != debug


def test_exit_codes_of_interruptions_and_usage_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> Run:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "load", interrupted)
    assert run_main(monkeypatch, "predict", "run") == errors.INTERRUPTED == 130
    assert run_main(monkeypatch, "predict", "--nothing") == errors.USAGE == 2
    assert run_main(monkeypatch, "--help") == 0
    documented = " ".join(capsys.readouterr().out.split())
    assert "0 success, 1 failure, 2 usage, 70 internal error (a bug), 130 interrupted" in documented


def test_a_closed_pipe_prints_nothing(tmp_path: Path) -> None:
    command = f"{sys.executable} -m sightline schema | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "{1\n" and not done.stderr


# --- control characters --------------------------------------------------------------------------------------------

HOSTILE = "a\x1b[31mred\x9b2J\u202eevil\rX\x00"
SHOWN = r"a\x1b[31mred\x9b2J\u202eevil\x0dX\x00"


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("Grüße\t漢字 🙂\n\u200f\u200d") == "Grüße\t漢字 🙂\n\u200f\u200d"
    assert printable(b"caf\xe9".decode("utf-8", "surrogateescape")) == r"caf\udce9"


def test_errors_and_warnings_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    ours = str(Path(sightline.__file__).parent / "run.py")
    with error_boundary():
        warnings.warn_explicit(HOSTILE, UserWarning, ours, 1)
    with pytest.raises(SystemExit), error_boundary():
        raise ValueError(HOSTILE)
    assert capsys.readouterr().err == f"sightline: {SHOWN}\n" * 2


def test_recipe_keys_and_file_names_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "re\x1b[2Jcipe.yaml"
    recipe.write_text('task: seq2seq\n"be\\e[31mam": 3\n')
    assert run_main(monkeypatch, "train", str(recipe)) == 1
    message = capsys.readouterr().err
    assert r"re\x1b[2Jcipe.yaml:2: unknown key be\x1b[31mam;" in message and "\x1b" not in message


def test_tables_escape_control_characters_and_keep_colours(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.text import Text

    with printable_output():
        console(force_terminal=True, color_system="standard", width=80).print(Text("x\x1b[31my", style="bold"))
        print("x\x1b[31my")
    assert capsys.readouterr().out == "\x1b[1mx\\x1b[31my\x1b[0m\nx\\x1b[31my\n"


def test_standard_output_with_data_is_not_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with printable_output(stdout=False):
        print("x\x1b[31my")
        print("x\x1b[31my", file=sys.stderr)
    assert tuple(capsys.readouterr()) == ("x\x1b[31my\n", "x\\x1b[31my\n")


def test_every_console_escapes() -> None:
    package = Path(sightline.__file__).parent
    for path in package.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        consoles = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Console"]
        plain = [call for call in consoles if not any(word.arg == "file" for word in call.keywords)]
        assert not plain, f"{path}: use sightline.terminal.console"
    assert re.search(r"class PrintableConsole\(Console\)", (package / "terminal.py").read_text("utf-8"))
