"""Lines on a logarithmic scale, where there may be nothing to draw at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sightline.inspection.gradients import Curve, GradientFlow
from sightline.plots import lines as flow_pictures
from sightline.plots.lines import Panel, Series, _between, _draw_panel, _power, draw_layer_norms, read_layer_norms

X = [0, 1, 2, 3]


def drawn(*lines: Series, log_y: bool = True) -> Axes:
    axes: Axes = Figure().subplots()
    _draw_panel(axes, Panel("title", "x", "y", list(lines), log_y=log_y))
    return axes


def test_what_is_zero_breaks_a_line_and_its_neighbours_are_seen_as_points() -> None:
    found = drawn(Series("a", X, [0.5, 0.0, 0.2, 0.0], 0, low=[0.4, 0.0, 0.0, 0.0], high=[0.6, 0.0, 0.3, 0.0]))
    (line,) = found.lines
    told = [float(value) for value in line.get_ydata()]
    assert told[0] == 0.5 and told[2] == 0.2 and math.isnan(told[1]) and math.isnan(told[3])
    assert line.get_markevery() == 1 and found.get_yscale() == "log"
    assert found.get_ylim()[0] > 0.05  # a band that reaches down to nothing ends at the least there is


def test_where_nothing_is_above_zero_that_is_said() -> None:
    found = drawn(Series("a", X, [0.0] * 4, 0))
    assert [text.get_text() for text in found.texts] == ["nowhere above zero"]
    assert not drawn(Series("a", X, [0.0] * 4, 0), log_y=False).texts


def test_between_whole_numbers_there_are_no_ticks() -> None:
    assert all(float(tick).is_integer() for tick in drawn(Series("a", X[:3], [1.0, 2.0, 3.0], 0)).get_xticks())
    assert not all(float(tick).is_integer() for tick in drawn(Series("a", [0.1, 0.9], [1.0, 2.0], 0)).get_xticks())


def test_a_gradient_that_is_nothing_at_some_distances_is_no_line_across_them() -> None:
    median = [0.5, 0.0, 0.2, 0.0, 0.0]
    curve = Curve([0, 1, 2, 3, 4], median, median, [0.1, 0.0, 0.0, 0.0, 0.0], median, [9, 9, 9, 9, 2])
    (line,) = flow_pictures._flow_lines([GradientFlow("a", "trained", {"decoder": {"layer 0": curve}})], "decoder")
    assert (line.x, line.y, line.low) == ([0, 1, 2], [0.5, 0.0, 0.2], [0.1, 0.0, 0.0])


def test_distances_of_few_pairs_are_left_out_unless_there_are_no_others() -> None:
    places, median = [0, 1, 2], [0.5, 0.3, 0.2]
    for count, shown in (([9, 6, 5], [0, 1]), ([3, 2, 1], [0, 1, 2])):
        curve = Curve(places, median, median, median, median, count)
        (line,) = flow_pictures._flow_lines([GradientFlow("a", "trained", {"decoder": {"layer 0": curve}})], "decoder")
        assert line.x == shown


def test_powers_of_ten_are_labels_and_what_lies_between_is_not() -> None:
    assert [_power(value) for value in (1e-12, 0.1, 1.0, 1000.0, 1e5, 3.0)] == ["10⁻¹²", "0.1", "1", "1000", "10⁵", ""]
    assert [_between(value) for value in (0.2, 3.0, 50.0)] == ["0.2", "", "50"]


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
