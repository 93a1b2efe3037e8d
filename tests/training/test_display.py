"""What a person reads while training goes on."""

from __future__ import annotations

import pytest

from sightline.evaluation.metrics import METRICS
from sightline.recipe import MetricName
from sightline.terminal import truncate
from sightline.training.loggers import sample_line, step_line, validation_line


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_shown(metric: MetricName) -> None:
    line = validation_line({"step": 7, "best": True, "loss": 1.5, metric: 12.3456})
    assert line.startswith("validation at step 7: loss 1.500, ") and "12.346" in line


def test_a_validation_names_the_search_of_its_outputs() -> None:
    line = validation_line({"step": 7, "best": False, "loss": 1.5, "bleu": 12.3456, "search": "greedy search"})
    assert line == "validation at step 7: loss 1.500, BLEU 12.346, greedy search"


def test_dropped_choices_of_experts_are_shown() -> None:
    record = {
        "step": 7,
        "epoch": 0,
        "loss": 1.5,
        "lr": 1e-3,
        "gradient_norm": 1.0,
        "tokens_per_second": 9,
        "seconds": 3,
    }
    assert step_line({**record, "dropped": 0.025, "dropped_choices": 12}) == step_line(record) + "  dropped 2.5%"
    assert step_line({**record, "dropped": 0.0, "dropped_choices": 0}) == step_line(record)


def test_continuations_of_a_language_model_are_marked() -> None:
    sample = {"source": "ROMEO:\n", "reference": "ROMEO:\nO love", "output": "ROMEO:\nthe\nold"}
    assert sample_line(sample) == "    ROMEO:⏎ ▸ the⏎old"


def test_long_sources_are_truncated_in_samples() -> None:
    shown = sample_line({"source": "word " * 2_000, "reference": "b", "output": "a summary …"})
    assert shown == f"    {'word ' * 79}word…  →  a summary …"
    assert truncate("a" * 400) == "a" * 400
    assert truncate("a" * 401) == "a" * 399 + "…"


def test_an_output_that_repeats_its_source_follows_an_arrow() -> None:
    assert sample_line({"source": "a", "reference": "b", "output": "a c"}) == "    a  →  a c"
    assert sample_line({"source": "a", "reference": "a", "output": "a"}) == "    a  →  a"
