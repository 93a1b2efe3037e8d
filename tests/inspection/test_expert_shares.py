"""The figure of each expert's share of the tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.plots.experts import draw_expert_shares, read_expert_shares
from sightline.run_folder import RunError


def write_records(run: Path, *records: dict[str, Any]) -> None:
    run.mkdir(exist_ok=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def train(step: int, **more: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, **more}


def test_expert_shares_are_read_in_order(tmp_path: Path) -> None:
    write_records(
        tmp_path,
        train(5, experts={"encoder.1": [0.25, 0.75], "decoder.0": [0.5, 0.3, 0.2]}, dropped=0.1),
        {"kind": "validation", "step": 5, "loss": 1.0},
        train(10, experts={"encoder.1": [0.5, 0.5], "decoder.0": [0.4, 0.3, 0.3]}, dropped=0.0),
    )
    found = read_expert_shares(tmp_path)
    assert found.steps.tolist() == [5, 10]
    assert found.dropped.tolist() == [0.1, 0.0]
    np.testing.assert_array_equal(found.shares["encoder.1"], [[0.25, 0.75], [0.5, 0.5]])
    assert found.shares["decoder.0"].shape == (2, 3)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("records", [1, 12])
def test_one_record_and_many_experts_are_drawn_and_the_same_run_gives_the_same_file(
    tmp_path: Path, suffix: str, records: int
) -> None:
    shares = [0.9, *[0.1 / 39] * 39]  # 36 times the uniform share: beyond the colour scale
    layers = {"encoder.1": shares, "decoder.$1$": [0.5, 0.5]}
    write_records(tmp_path, *(train(step, experts=layers, dropped=0.2) for step in range(1, records + 1)))
    pictures = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for picture in pictures:
        draw_expert_shares(tmp_path, picture)
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert pictures[0].read_bytes().startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")


def test_running_training_may_end_in_partial_line(tmp_path: Path) -> None:
    write_records(tmp_path, train(5, experts={"decoder.0": [0.5, 0.5]}, dropped=0.0))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert read_expert_shares(tmp_path).steps.tolist() == [5]


def test_missing_expert_shares_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere is not a folder; give the folder that `sightline train` wrote"):
        read_expert_shares(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"has no metrics\.jsonl, where a training writes the shares; give the folder"):
        read_expert_shares(tmp_path)
    write_records(tmp_path, train(5, loss=1.0))
    with pytest.raises(ValueError, match="has no expert shares: the model has no experts"):
        draw_expert_shares(tmp_path, tmp_path / "a.png")
    write_records(tmp_path, train(5, experts={"decoder.0": [0.5, 0.5]}, dropped=0.0))
    with pytest.raises(ValueError, match=r"a figure is a \.png, \.svg, \.pdf file; name it so"):
        draw_expert_shares(tmp_path, tmp_path / "a.gif")
