"""Timing and what is drawn of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from sightline.inspection.length_time import WORKS, draw_timings, time_lengths
from sightline.inspection.pictures.layer_norms import draw_layer_norms, read_layer_norms
from sightline.inspection.pictures.lines import _between, _power
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import Model
from sightline.training.layer_norms import LayerNorms, part_of

BODY = {"kind": "transformer", "layers": 2, "heads": 2}


def translator() -> Seq2Seq:
    torch.manual_seed(1)
    return Seq2Seq(Model.model_validate({"width": 8, "tie": "none", "encoder": BODY, "decoder": BODY}), 12, 12)


def test_every_model_length_and_work_is_timed_and_longer_ones_take_longer(tmp_path: Path) -> None:
    models = {"a": translator(), "b": translator()}
    found = time_lengths(models, [2, 64], vocabulary=12, rounds=2, clock=time.process_time)  # whatever else is running
    assert {(t.model, t.work, t.length) for t in found} == {(m, w, n) for m in "ab" for w in WORKS for n in (2, 64)}
    assert all(0 < t.fastest <= t.seconds <= t.slowest for t in found)
    written = {t.length: t.fastest for t in found if (t.model, t.work) == ("a", "decode")}
    assert written[64] > 4 * written[2]
    draw_timings(found, tmp_path / "time.png")
    assert (tmp_path / "time.png").stat().st_size > 5_000


def test_time_is_told_by_the_clock_that_is_given() -> None:
    ticks = iter(range(1_000))
    found = time_lengths({"a": translator()}, [2], vocabulary=12, rounds=1, clock=lambda: float(next(ticks)))
    assert {timing.seconds for timing in found} == {1.0}


def test_the_norms_of_the_parts_make_up_that_of_the_whole() -> None:
    model = translator()
    for number, parameter in enumerate(model.parameters(), 1):
        parameter.grad = torch.full_like(parameter, 0.1 * number)
    norms = LayerNorms(model)
    whole = torch.nn.utils.clip_grad_norm_(list(model.parameters()), float("inf"))
    assert float(norms().pow(2).sum().sqrt()) == pytest.approx(float(whole), rel=1e-5)
    assert {"encoder.layers.0", "encoder.layers.1", "decoder.layers.1", "output", "source_embedding"} <= set(
        norms.parts
    )
    model.encoder.layers[0].zero_grad(set_to_none=True)
    assert norms.record(norms())["encoder.layers.0"] == 0.0


def test_a_parameter_belongs_to_its_layer_or_to_what_stands_beside_the_layers() -> None:
    assert part_of("encoder.layers.3.attention.project.weight") == "encoder.layers.3"
    assert part_of("decoder.norm.gain") == "decoder.norm"
    assert part_of("output.bias") == "output"
    assert part_of("gain") == "gain"


def test_layer_norms_are_read_from_a_journal_and_drawn(tmp_path: Path) -> None:
    records = [
        {"kind": "train", "step": step, "layers": {"encoder.layers.0": 1 / step, "decoder.layers.0": 2.0, "output": 3}}
        for step in (5, 10)
    ]
    lines = [*map(json.dumps, records), json.dumps({"kind": "validation", "step": 10}), '{"kind": "tr']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    found = read_layer_norms(tmp_path)
    assert found["encoder.layers.0"] == [(5, 0.2), (10, 0.1)]
    draw_layer_norms(found, tmp_path / "norms.svg")
    assert (tmp_path / "norms.svg").read_text().startswith("<?xml")


def test_a_run_without_layer_norms_says_how_to_have_them(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    with pytest.raises(ValueError, match=r"training\.log_layers=true"):
        read_layer_norms(tmp_path)


def test_powers_of_ten_are_labels_and_what_lies_between_is_not() -> None:
    assert [_power(value) for value in (1e-12, 0.1, 1.0, 1000.0, 1e5, 3.0)] == ["10⁻¹²", "0.1", "1", "1000", "10⁵", ""]
    assert [_between(value) for value in (0.2, 3.0, 50.0)] == ["0.2", "", "50"]
