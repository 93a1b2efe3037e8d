"""Numeric options refuse NaN, negative and huge numbers; devices are checked; CSV cells are no formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from sightline.cli.app import app
from sightline.cli.options import check_numbers
from sightline.files import csv_text

GROUP: Any = typer.main.get_command(app)
COMMANDS = [
    ((name, *sub), each)
    for name, command in GROUP.commands.items()
    for sub, each in ([((inner,), of) for inner, of in getattr(command, "commands", {}).items()] or [((), command)])
]
NUMERIC = [
    (names, option.opts[0], "float" in str(option.type_descriptor))
    for names, command in COMMANDS
    for option in command.params
    if option.opts[0].startswith("--")
    and any(f"annotation=<class '{kind}'>" in str(option.type_descriptor) for kind in ("int", "float"))
]
ARGUMENTS = {
    "train": ["dates"],
    "sweep": ["dates", "seed=1,2"],
    "compare": ["a", "b"],
    "distill": ["a", "dates", "--out", "o"],
    "backtranslate": ["a", "b", "--out", "o"],
    "average": ["a", "--out", "o"],
    "merge": ["a", "--out", "o"],
    "baseline": ["lead", "dates"],
    "gradients": ["a", "b"],
    "attention-example": [],
    "lecture-example": [],
}


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "99999999999999999999"])
def test_every_numeric_option_refuses_impossible_numbers(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(NUMERIC) > 35
    for names, option, real in NUMERIC:
        words = [*names, *ARGUMENTS.get(names[-1], ["a"]), option, value]
        with pytest.raises(Exception) as error_info:  # noqa: PT011 (ValueError or usage error)
            GROUP.main(words, prog_name="sightline", standalone_mode=False)
        error = error_info.value
        message = str(getattr(error, "message", error))
        if real or "n" not in value:
            ours = isinstance(error, ValueError) and f"{option} {float(value) if real else value}: give" in message
            assert ours or "Input should be" in message, (names, option, message)
        else:
            assert "should be a valid integer" in message, (names, option, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 100_000}, "--threads 100000: give at most 1,024"),
        ({"nbest": 99_999_999_999_999_999_999}, "--nbest 99999999999999999999: give at most"),
        ({"length_penalty": float("nan")}, "--length-penalty nan: give a finite number"),
        ({"beam": 0}, "--beam 0: give 1 or more"),
        ({"jobs": 100_000}, "--jobs 100000: give at most 1,024"),
    ],
)
def test_wording_of_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_numbers(options)


def test_valid_numbers_flags_and_texts_pass() -> None:
    check_numbers({"beam": 5, "length_penalty": 0.0, "sample": True, "device": "cpu", "seed": 2**63 - 1, "mix": None})


@pytest.mark.parametrize("device", ["meta", "vulkan", "xla", "cuda:99", "nonsense", "cpu:3", ""])
def test_unusable_devices_are_refused(device: str) -> None:
    from sightline.layers.devices import choose_device

    with pytest.raises(ValueError, match=r"device"):
        choose_device(device)


def test_csv_cells_are_no_formulas() -> None:
    rows = [{"token": token, "loss": -1.5} for token in ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "a=b", "−1", ""]]
    lines = csv_text(["token", "loss"], rows).split("\n")
    assert lines[:5] == ["token,loss", "'=1+1,-1.5", "'+1,-1.5", "'-1,-1.5", "'@SUM(A1),-1.5"]
    assert lines[5:9] == ["'\tx,-1.5", "a=b,-1.5", "−1,-1.5", ",-1.5"]
