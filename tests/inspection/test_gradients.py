"""Gradient flow, and line plots."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from sightline.data.collate import TrainingBatch, language_model_ids, padded_batch, seq2seq_ids
from sightline.inspection.gradients import Curve, GradientFlow, flow_lines, gradient_flow, keep_states
from sightline.layers.embedding import Embedding
from sightline.layers.recurrent import Hidden, Recurrence
from sightline.models.language_model import LanguageModel
from sightline.models.seq2seq import Seq2Seq
from sightline.plots import lines as flow_pictures
from sightline.plots.lines import (
    Panel,
    Series,
    _between,
    _draw_panel,
    _power,
    draw_flows,
    draw_layer_norms,
    read_layer_norms,
)
from sightline.recipe.model import ModelConfig

SIZE = 20


def texts(*lengths: int) -> TrainingBatch:
    draw = np.random.default_rng(1)
    return padded_batch(
        language_model_ids([], [draw.integers(4, SIZE, size=n + 1) for n in lengths]), np.arange(len(lengths))
    )


def pairs(*lengths: tuple[int, int]) -> TrainingBatch:
    draw = np.random.default_rng(1)
    sources, targets = ([draw.integers(4, SIZE, size=n) for n in side] for side in zip(*lengths, strict=True))
    return padded_batch(seq2seq_ids(sources, targets), np.arange(len(lengths)))


def language_model(**decoder: Any) -> LanguageModel:
    torch.manual_seed(3)
    section = {"width": 16, "tie": "none", "decoder": {"dropout": 0.0, **decoder}}
    return LanguageModel(ModelConfig.model_validate(section), SIZE)


def recurrent(cell: str, layers: int = 1) -> LanguageModel:
    return language_model(kind="recurrent", cell=cell, layers=layers, attention={"kind": "none"})


def translator(encoder: dict[str, Any], decoder: dict[str, Any], tie: str = "none") -> Seq2Seq:
    torch.manual_seed(3)
    return Seq2Seq(
        ModelConfig.model_validate({"width": 16, "tie": tie, "encoder": encoder, "decoder": decoder}), SIZE, SIZE
    )


BOTH_WAYS = {"kind": "recurrent", "cell": "lstm", "layers": 2, "bidirectional": True, "dropout": 0.0}
ALTERNATING = BOTH_WAYS | {"directions": "alternating"}
TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "dropout": 0.0}
CONVOLUTIONAL = {"kind": "convolutional", "layers": 2, "kernel": 3, "dropout": 0.0}


def writer(attention: str, feeding: bool = False) -> dict[str, Any]:
    attention_of = {"attention": {"kind": attention}, "input_feeding": feeding}
    return {"kind": "recurrent", "cell": "lstm", "layers": 2, "dropout": 0.0, **attention_of}


class LinearModel(nn.Module):
    """h_t = w h_{t−1} + x_t, of width 1, and L_t = h_t for any label: ∂L_t/∂h_k = w^(t−k)."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.embedding = Embedding(SIZE, 1)
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList([LinearRecurrence(factor)])

    def forward(self, source: None, source_layout: None, given: Tensor, layout: Any) -> Tensor:
        layer = self.decoder.layers[0]
        return layer(self.embedding(given), layer.start(len(given), self.embedding.weight))[0]

    def logits(self, features: Tensor) -> Tensor:
        """Scores whose cross entropy is the feature itself: log(1 + e^(h + c)) − c → h as c grows."""
        target, other = torch.zeros_like(features).expand(-1, SIZE - 1), features + 40.0
        return torch.cat([other, target], dim=-1)


class LinearRecurrence(Recurrence):
    def __init__(self, factor: float) -> None:
        super().__init__("elman", 1, 1)
        self.factor = factor

    def advance(self, x: Tensor, hidden: Hidden, direction: str = "") -> Hidden:
        return (self.factor * hidden[0] + x,)


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1])
def test_gradient_of_linear_recurrence_is_a_power_of_its_factor(factor: float) -> None:
    curve = gradient_flow(LinearModel(factor), [texts(30, 18)], points=5).curve("decoder")
    assert curve is not None
    assert curve.distances == list(range(30))
    np.testing.assert_allclose(curve.mean, [factor**distance for distance in range(30)], rtol=1e-4)
    np.testing.assert_allclose(curve.low, curve.high, rtol=1e-4)
    assert curve.per_step == pytest.approx(factor, rel=1e-4)


def test_at_initialisation_an_elman_network_forgets_faster_than_an_lstm_with_open_forget_gates() -> None:
    flows = {
        cell: gradient_flow(recurrent(cell), [texts(60, 60, 60, 60)]).curve("decoder") for cell in ("elman", "lstm")
    }
    elman, lstm = flows["elman"], flows["lstm"]
    assert elman is not None and lstm is not None and elman.per_step is not None and lstm.per_step is not None
    assert elman.per_step < lstm.per_step < 1
    assert elman.at(40) < 0.01 * lstm.at(40)  # type: ignore[operator]


def test_a_transformer_reaches_far_states_in_one_step() -> None:
    flow = gradient_flow(language_model(**TRANSFORMER), [texts(60, 60)])
    assert list(flow.sides["decoder"]) == ["embedding", "layer 1"]  # the top layer affects only its own position
    curve = flow.curve("decoder")
    assert curve is not None and curve.at(50) > 0.1 * curve.at(1)  # type: ignore[operator]


def test_window_model_has_no_gradient_beyond_window() -> None:
    curve = gradient_flow(language_model(kind="window", size=4), [texts(20, 20)]).curve("decoder")
    assert curve is not None
    assert all(curve.at(distance) > 0 for distance in range(4))  # type: ignore[operator]
    assert all(curve.at(distance) == 0 for distance in range(4, 20))


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        (BOTH_WAYS, writer("none")),
        ({**BOTH_WAYS, "merge": "sum"}, {**writer("none"), "init_hidden": "last"}),
        (ALTERNATING, writer("additive", True)),
        (TRANSFORMER, TRANSFORMER),
        (TRANSFORMER, writer("dot")),
        (CONVOLUTIONAL, CONVOLUTIONAL),
        ({**CONVOLUTIONAL, "channels": 12}, {**CONVOLUTIONAL, "channels": 20}),
    ],
    ids=["lstm", "summed", "alternating-fed", "transformer", "mixed", "convolutional", "wider-convolutional"],
)
def test_keeping_states_changes_no_output(encoder: dict[str, Any], decoder: dict[str, Any]) -> None:
    model, batch = translator(encoder, decoder).eval(), pairs((7, 5), (4, 9), (1, 1))
    given = (batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
    with torch.no_grad():
        plain = model(*given)
    with keep_states(model) as kept:
        found = model(*given)
    mask = (batch.labels != 0)[..., None]
    torch.testing.assert_close(found * mask, plain * mask, atol=1e-5, rtol=1e-5)
    assert kept.layers("encoder") and kept.layers("decoder")
    torch.testing.assert_close(model(*given) * mask, plain * mask, atol=1e-5, rtol=1e-5)  # hooks are removed


def test_attention_shortens_gradient_paths() -> None:
    batch, one_way = pairs((30, 8), (30, 8)), BOTH_WAYS | {"bidirectional": False, "cell": "elman"}
    found = {
        kind: gradient_flow(translator(one_way, decoder), [batch], points=9)
        for kind, decoder in (("none", writer("none") | {"cell": "elman"}), ("additive", writer("additive")))
    }
    blind, seeing = found["none"].curve("encoder"), found["additive"].curve("encoder")
    assert blind is not None and seeing is not None
    assert blind.distances == list(range(1, 40))  # from the end mark to the first word
    assert blind.at(35) / blind.at(2) < 0.01 * seeing.at(35) / seeing.at(2)  # type: ignore[operator]


def test_gradients_of_an_encoder_state_are_those_of_finite_differences() -> None:
    """A small change of a state changes the loss by its gradient."""
    torch.manual_seed(1)
    model = translator({**BOTH_WAYS, "layers": 1}, {**writer("additive"), "layers": 1}).double().eval()
    batch = pairs((5, 4))
    with keep_states(model) as kept:
        features = model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
    loss = -model.logits(features[0, 3]).log_softmax(-1)[batch.labels[0, 3]]
    states = kept.layers("encoder")["layer 1"]
    found = torch.autograd.grad(loss, states.tensors, allow_unused=True)
    norms = states.norms(list(found), 6)
    assert norms.shape == (1, 6) and (norms > 0).all()
    moved, size = _moved_loss(model, batch, place=2, size=1e-5)
    gradient = next(g for g, places in zip(found, states.places, strict=True) if places is not None and places[0] == 2)
    assert gradient is not None
    assert (moved - loss.item()) / size == pytest.approx(float(gradient[0, 0]), rel=1e-3)


def _moved_loss(model: Seq2Seq, batch: TrainingBatch, *, place: int, size: float) -> tuple[float, float]:
    """The loss at position 3 after a change of the forward state at `place`."""
    layer = model.encoder.layers[0]
    original, steps = type(layer).advance, []

    def advance(x: Tensor, hidden: Hidden, direction: str = "") -> Hidden:
        after = original(layer, x, hidden, direction)
        steps.append(direction)
        if direction == "" and steps.count("") == place + 1:
            nudge = torch.zeros_like(after[0])
            nudge[0, 0] = size
            after = (after[0] + nudge, *after[1:])
        return after

    layer.__dict__["advance"] = advance
    with keep_states(model):
        features = model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
    del layer.__dict__["advance"]
    return float(-model.logits(features[0, 3]).log_softmax(-1)[batch.labels[0, 3]].detach()), size


def test_padded_gradients_equal_single() -> None:
    model = translator(BOTH_WAYS, writer("additive"))
    alone = gradient_flow(model, [pairs((4, 3))], points=3)
    draw = np.random.default_rng(1)
    first = [draw.integers(4, SIZE, size=4), draw.integers(4, SIZE, size=3)]
    longer = [draw.integers(4, SIZE, size=9), draw.integers(4, SIZE, size=8)]
    batch = padded_batch(seq2seq_ids([first[0], longer[0]], [first[1], longer[1]]), np.arange(2))
    only_longer = gradient_flow(model, [padded_batch(seq2seq_ids([longer[0]], [longer[1]]), np.arange(1))], points=3)
    both = gradient_flow(model, [batch], points=3)
    for side in ("encoder", "decoder"):
        expected, found = (_totals(alone, side), _totals(only_longer, side)), _totals(both, side)
        for distance, total in found.items():
            assert total == pytest.approx(sum(each.get(distance, 0.0) for each in expected), rel=1e-3)


def _totals(flow: GradientFlow, side: Any) -> dict[int, float]:
    curve = flow.curve(side)
    assert curve is not None
    return {d: m * c for d, m, c in zip(curve.distances, curve.mean, curve.count, strict=True)}


def test_flows_are_written_as_json_a_table_and_a_picture(tmp_path: Path) -> None:
    flows = [
        gradient_flow(recurrent(cell), [texts(20, 20)], label=f"Läufe/{cell} 语言 $x$", when=when)
        for cell in ("elman", "lstm")
        for when in ("initialisation", "trained")
    ]
    data = json.loads(json.dumps([flow.to_dict() for flow in flows]))
    assert data[0]["states"]["decoder"]["layer 1"]["distances"] == list(range(20))
    assert any("lstm" in line and "initialisation" in line for line in flow_lines(flows))
    for suffix in ("png", "svg", "pdf"):
        draw_flows(flows, tmp_path / f"flow.{suffix}")
        assert (tmp_path / f"flow.{suffix}").stat().st_size > 5_000
    with pytest.raises(ValueError, match=r"flow\.gif"):
        draw_flows(flows, tmp_path / "flow.gif")


def test_zero_curve_has_no_slope() -> None:
    assert Curve([0, 1, 2], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0] * 3, [0.0] * 3, [1] * 3).per_step is None


X = [0, 1, 2, 3]


def drawn(*lines: Series, log_y: bool = True) -> Axes:
    axes: Axes = Figure().subplots()
    _draw_panel(axes, Panel("title", "x", "y", list(lines), log_y=log_y))
    return axes


def test_zeros_break_lines() -> None:
    found = drawn(Series("a", X, [0.5, 0.0, 0.2, 0.0], 0, low=[0.4, 0.0, 0.0, 0.0], high=[0.6, 0.0, 0.3, 0.0]))
    (line,) = found.lines
    values = [float(value) for value in line.get_ydata()]
    assert values[0] == 0.5 and values[2] == 0.2 and math.isnan(values[1]) and math.isnan(values[3])
    assert line.get_markevery() == 1 and found.get_yscale() == "log"
    assert found.get_ylim()[0] > 0.05  # a band down to 0 ends at the smallest value


def test_all_zero_flow_is_labelled() -> None:
    found = drawn(Series("a", X, [0.0] * 4, 0))
    assert [text.get_text() for text in found.texts] == ["no value above zero"]
    assert not drawn(Series("a", X, [0.0] * 4, 0), log_y=False).texts


def test_ticks_are_whole_numbers() -> None:
    assert all(float(tick).is_integer() for tick in drawn(Series("a", X[:3], [1.0, 2.0, 3.0], 0)).get_xticks())
    assert not all(float(tick).is_integer() for tick in drawn(Series("a", [0.1, 0.9], [1.0, 2.0], 0)).get_xticks())


def test_zero_distances_are_not_bridged() -> None:
    median = [0.5, 0.0, 0.2, 0.0, 0.0]
    curve = Curve([0, 1, 2, 3, 4], median, median, [0.1, 0.0, 0.0, 0.0, 0.0], median, [9, 9, 9, 9, 2])
    (line,) = flow_pictures._flow_lines([GradientFlow("a", "trained", {"decoder": {"layer 0": curve}})], "decoder")
    assert (line.x, line.y, line.low) == ([0, 1, 2], [0.5, 0.0, 0.2], [0.1, 0.0, 0.0])


def test_rare_distances_are_omitted() -> None:
    places, median = [0, 1, 2], [0.5, 0.3, 0.2]
    for count, shown in (([9, 6, 5], [0, 1]), ([3, 2, 1], [0, 1, 2])):
        curve = Curve(places, median, median, median, median, count)
        (line,) = flow_pictures._flow_lines([GradientFlow("a", "trained", {"decoder": {"layer 0": curve}})], "decoder")
        assert line.x == shown


def test_only_powers_of_ten_are_labelled() -> None:
    assert [_power(value) for value in (1e-12, 0.1, 1.0, 1000.0, 1e5, 3.0)] == ["10⁻¹²", "0.1", "1", "1000", "10⁵", ""]
    assert [_between(value) for value in (0.2, 3.0, 50.0)] == ["0.2", "", "50"]


def test_layer_norms_are_drawn_from_metrics(tmp_path: Path) -> None:
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


def test_missing_layer_norms_name_the_key(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    with pytest.raises(ValueError, match=r"training\.log_layers=true"):
        read_layer_norms(tmp_path)
