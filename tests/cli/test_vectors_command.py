"""`sightline vectors` as a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.text.word_vectors import read_all_word_vectors, write_word_vectors

TEXT = "the king rules the land\nthe queen rules the land\nan apple falls from a tree\n" * 60


def learn(folder: Path, out: str, *more: str) -> str:
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    arguments = [
        "vectors",
        str(folder / "text.txt"),
        "--out",
        str(folder / out),
        "--dim",
        "8",
        "--device",
        "cpu",
        *more,
    ]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stderr


@pytest.mark.parametrize("out", ["vectors.txt", "vectors.bin"])
def test_vectors_are_learned_and_written_as_the_name_says(tmp_path: Path, out: str) -> None:
    told = learn(tmp_path, out, "--epochs", "2", "--threads", "1")
    words, matrix = read_all_word_vectors(tmp_path / out)
    assert set(words) == set(TEXT.split()) and matrix.shape == (len(words), 8)
    assert words[0] == "the"
    assert "epoch 2  100%  loss" in told and f"done: {len(words)} vectors" in told
    assert ((tmp_path / out).read_bytes().isascii()) == (out == "vectors.txt")


def test_the_nearest_words_of_a_file_are_printed_nearest_first(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    write_word_vectors(path, ["king", "queen", "apple", "prince"], np.array([[1.0, 0], [1, 1], [-1, 0], [2, 1]]))
    result = CliRunner().invoke(app, ["vectors", "--near", "King", "--in", str(path)])
    assert result.stdout == "0.894\tprince\n0.707\tqueen\n-1.000\tapple\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "text files and --out are needed"),
        (["text.txt"], "text files and --out are needed"),
        (["--near", "king"], "give just --in"),
        (["text.txt", "--near", "king", "--in", "v.txt"], "give just --in"),
        (["--in", "v.txt"], "say at which word with --near"),
        (["text.txt", "--out", "nowhere/v.txt"], "nowhere/v.txt cannot be written: there is no folder"),
    ],
)
def test_what_does_not_go_together_is_said(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["vectors", *arguments])
    assert isinstance(result.exception, ValueError) and message in str(result.exception)


def test_help_has_examples_and_answers_without_torch() -> None:
    code = "import sys; from sightline.cli.app import app\n"
    code += "try: app(['vectors', '--help'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "sightline vectors --near king --in vectors.txt" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-1] == "False"
