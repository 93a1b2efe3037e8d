"""The lecture's example: golden values."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from sightline.inspection.lecture_example import DEFAULT, ids, lecture_model, lecture_trace

GOLDEN = Path(__file__).parent / "lecture_example.json"  # every matrix, to four digits


def test_every_matrix_and_the_loss_are_the_golden_ones() -> None:
    golden, trace = json.loads(GOLDEN.read_text(encoding="utf-8")), lecture_trace()
    assert list(golden) == [step.key for step in trace]
    for step in trace:
        expected = np.array(golden[step.key], dtype=float)
        np.testing.assert_allclose(step.tensor.numpy(), expected, rtol=0, atol=1e-4, err_msg=step.key)


def test_lecture_model_shapes_and_tokens() -> None:
    model, trace = lecture_model(), lecture_trace()
    assert model.source_embedding is model.target_embedding
    assert tuple(model.source_embedding.weight.shape) == tuple(model.output.weight.shape) == (11, 6)
    assert trace["source.tokens"].tolist() == [[5, 8, 9]]
    assert trace["target.tokens"].tolist() == [[2, 6, 3]]
    assert trace["labels"].tolist() == [[6, 3, 4]]


def test_the_weights_have_one_digit_behind_the_point() -> None:
    for name, parameter in lecture_model().named_parameters():
        tenths = parameter.detach().numpy() * 10
        np.testing.assert_allclose(tenths, tenths.round(), atol=1e-5, err_msg=name)


def test_loss_is_mean_nll_of_targets() -> None:
    trace = lecture_trace()
    chances = [float(trace["probabilities"][0, place, token]) for place, token in enumerate(ids(DEFAULT.labels))]
    assert float(trace["loss"]) == pytest.approx(-sum(map(math.log, chances)) / 3, rel=1e-5)
    assert trace.about["loss"] == float(trace["loss"])
