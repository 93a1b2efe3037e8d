"""One endless line of input takes neither all memory nor the lines after it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sightline.cli.app import app
from sightline.run import Run
from untrained_runs import untrained


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> str:
    """A Transformer that has learned nothing, in place of any run folder."""
    monkeypatch.setattr(Run, "load", staticmethod(lambda folder, **how: untrained("recurrent")))
    return "runs/any"


def predict(run: str, given: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["predict", run, *arguments, "--device", "cpu", "--beam", "1"], input=given)


@pytest.mark.parametrize("length", [10**6, 10**7])
@pytest.mark.parametrize("pipe", [True, False])
def test_a_line_of_megabytes_has_an_empty_output_line(run: str, tmp_path: Path, length: int, pipe: bool) -> None:
    given = "the dog\n" + "x" * length + "\na cat\n"
    (tmp_path / "in.txt").write_text(given)
    plain = predict(run, "the dog\na cat\n").stdout.splitlines()
    tracemalloc.start()
    result = predict(run, given) if pipe else predict(run, "", str(tmp_path / "in.txt"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.stdout.splitlines() == [plain[0], "", plain[1]]
    assert result.exit_code == 1
    assert "1 line too long (more than 4,096 tokens or 262,144 bytes): 2; the output is empty there." in result.stderr
    assert peak < 5 * length + 20e6  # of which the test's own input is a part


def test_tokens_are_bounded_too_and_the_bound_can_be_set(run: str) -> None:
    given = "a dog\n" + "dog " * 50 + "\na cat\n"
    assert predict(run, given).exit_code == 0
    result = predict(run, given, "--max-input-length", "20")
    assert result.exit_code == 1 and "(more than 20 tokens or 1,280 bytes): 2;" in result.stderr
    assert [bool(line) for line in result.stdout.splitlines()] == [True, False, True]
    raised = predict(run, "x" * 300_000 + "\n", "--max-input-length", "1")
    assert raised.stdout == "\n" and raised.exit_code == 1


@pytest.mark.parametrize("verb", ["embed", "evaluate"])
def test_where_no_line_can_be_left_out_a_long_one_is_refused(run: str, tmp_path: Path, verb: str) -> None:
    (tmp_path / "in.txt").write_text("a dog\n" + "dog " * 5_000 + "\n")
    (tmp_path / "out.txt").write_text("a\nb\n")
    files = {
        "embed": [str(tmp_path / "in.txt"), "--out", str(tmp_path / "v.npy")],
        "evaluate": ["--source", str(tmp_path / "in.txt"), "--reference", str(tmp_path / "out.txt")],
    }
    result = CliRunner().invoke(app, [verb, run, *files[verb], "--device", "cpu"])
    assert "line 2: more than 4,096 tokens or 262,144 bytes, the most this run reads in one" in str(result.exception)
