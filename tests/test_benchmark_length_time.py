"""How long sentences are timed, and what is drawn of it."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
BODY = {"kind": "transformer", "layers": 2, "heads": 2}


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("length_time")


def translator() -> Seq2Seq:
    torch.manual_seed(1)
    return Seq2Seq(ModelConfig.model_validate({"width": 8, "tie": "none", "encoder": BODY, "decoder": BODY}), 12, 12)


def test_every_model_length_and_work_is_timed_and_longer_ones_take_longer(benchmark: Any, tmp_path: Path) -> None:
    models = {"a": translator(), "b": translator()}
    clock = time.process_time  # whatever else is running
    found = benchmark.time_lengths(models, [2, 64], vocabulary=12, rounds=2, clock=clock)
    wanted = {(model, work, length) for model in models for work in benchmark.WORKS for length in (2, 64)}
    assert {(t.model, t.work, t.length) for t in found} == wanted
    assert all(0 < t.fastest <= t.seconds <= t.slowest for t in found)
    written = {t.length: t.fastest for t in found if (t.model, t.work) == ("a", "decode")}
    assert written[64] > 4 * written[2]
    benchmark.draw_timings(found, tmp_path / "time.png")
    assert (tmp_path / "time.png").stat().st_size > 5_000


def test_time_is_told_by_the_clock_that_is_given(benchmark: Any) -> None:
    ticks = iter(range(1_000))
    found = benchmark.time_lengths({"a": translator()}, [2], vocabulary=12, rounds=1, clock=lambda: float(next(ticks)))
    assert {timing.seconds for timing in found} == {1.0}
