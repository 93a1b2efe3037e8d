"""One output line for each input line; texts that are too long for a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sightline
from dated_runs import TRANSFORMER, write_recipe
from ordered_commands import Server
from sightline.layers.linear import Projection
from watched_runs import Silent

ODD_LINES = [
    "3 March 2015",
    "",
    "   ",
    "漢字 ☃ \x00 unknown",
    "1 January " * 400,
    "a\u2028b\x0cc\x85d",  # what str.splitlines would cut
    "tab\tand\rreturn",
    "</s> <pad> <s>",
    "4 May 1999",
]


@pytest.mark.parametrize("how", [[], ["--sample", "--seed", "3"], ["--nbest", "2"]])
def test_predict_never_drops_or_adds_a_line(finished: Path, command: Server, how: list[str]) -> None:
    text = "\n".join(ODD_LINES).encode()  # no newline at the end
    result = command("predict", finished, "-", *how, "--device", "cpu", lines_in=text)
    assert result.code == 0, result.err
    lines = result.out.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(ODD_LINES)
    if "--nbest" not in how:
        assert [lines[1], lines[2]] == ["", ""]
        assert all("\r" not in line for line in lines)


def test_predict_reads_files_like_standard_input(finished: Path, command: Server, tmp_path: Path) -> None:
    text = "\ufeff" + "".join(line + "\n" for line in ODD_LINES if "\r" not in line)
    (tmp_path / "lines.txt").write_text(text, newline="")
    one = command("predict", finished, tmp_path / "lines.txt", "--device", "cpu")
    other = command("predict", finished, "--device", "cpu", lines_in=text.encode())
    assert one.code == other.code == 0, one.err + other.err
    assert one.out == other.out
    assert one.err == other.err  # what is unknown: a byte-order mark is not
    assert one.out.count("\n") == len(ODD_LINES) - 1


def test_from_python_there_is_one_output_for_each_text(finished: Path) -> None:
    run = sightline.load(finished, device="cpu")
    outputs = run.predict(ODD_LINES)
    assert len(outputs) == len(ODD_LINES)
    assert outputs[1] == outputs[2] == ""
    assert all("\n" not in output for output in outputs)
    assert run.predict([]) == []
    assert run.predict(ODD_LINES, beam=1) == [run.predict([line], beam=1)[0] for line in ODD_LINES]


def test_text_instead_of_a_list_is_an_error(finished: Path) -> None:
    with pytest.raises(TypeError, match=r"put the one text into a list"):
        sightline.load(finished, device="cpu").predict("3 March 2015")


def learned_positions(tmp_path: Path) -> Path:
    """A model that can count to 33 only: learned positions, and an output limit far beyond them."""
    body = {**TRANSFORMER, "positions": {"kind": "learned", "max_positions": 33}}
    recipe = write_recipe(tmp_path, body=body, limits={"steps": 1})
    overrides = ["decoding.max_length=256", "decoding.max_ratio=50"]
    return sightline.train(recipe, overrides, out=tmp_path / "run", display=Silent()).folder


def test_too_long_text_is_an_error(cache: Path, tmp_path: Path, command: Server) -> None:
    run = learned_positions(tmp_path)
    text = b"3 March 2015\n" + b"4 May 1999 " * 9 + b"\n5 May 2000\n"
    result = command("predict", run, "--device", "cpu", lines_in=text)
    assert result.code == 1
    assert "line 2 has 98 tokens and this model takes 32 (its learned positions); shorten or split it" in result.err


def test_too_long_validation_sentence_is_an_error_before_training(cache: Path, tmp_path: Path) -> None:
    body = {**TRANSFORMER, "positions": {"kind": "learned", "max_positions": 33}}
    recipe = write_recipe(tmp_path, body=body)
    with (tmp_path / "valid.tsv").open("a") as file:
        file.write("4 May 1999 " * 4 + "\t1999-05-04\n")
    with pytest.raises(
        ValueError, match=r"data\.validation, example 7: its source has 43 tokens.*positions\.max_positions"
    ):
        sightline.train(recipe, out=tmp_path / "run", display=Silent())
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_no_output_grows_past_the_learned_positions(cache: Path, tmp_path: Path) -> None:
    """An untrained model generates up to the limit, which must not raise an error."""
    run = sightline.load(learned_positions(tmp_path), device="cpu")
    with torch.no_grad():
        run.model.output.bias[3] = -1e4  # never the end
    for beam in (1, 2):
        (output,) = run.predict_nbest(["3 March 2015"], run.options(beam=beam))[0][:1]
        assert len(output.tokens) == 32


def test_a_run_that_is_loaded_is_ready_to_predict(finished: Path) -> None:
    """Its weights are in the order of the kernels that it predicts with, where there are such."""
    model = sightline.load(finished, device="cpu").model
    packed = [each._packed is not None for each in model.modules() if isinstance(each, Projection)]
    assert packed and all(packed) == torch.backends.mkldnn.is_available()
