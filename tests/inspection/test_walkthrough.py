"""Walkthroughs: steps in order, focus on a layer, head or step, arithmetic of single numbers."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from traced_models import bodies, traced

from sightline.inspection.arithmetic import number
from sightline.inspection.formulas import latex
from sightline.inspection.lecture_example import lecture_trace
from sightline.inspection.recorder import record_arithmetic
from sightline.inspection.trace import Record, Trace
from sightline.inspection.walkthrough import Walkthrough, render_values
from sightline.layers.recurrent import Recurrence
from sightline.layers.scores import Dot
from sightline.layers.tap import TapModule
from untrained_runs import untrained


class Lecture(TapModule):
    """Checks of the lecture."""

    def forward(self, query: Tensor, key: Tensor, share: Tensor) -> Tensor:
        self.tap("score", Dot()(query, key), "q·h")
        return self.tap("context", share * key, "α h")


@pytest.fixture
def lecture() -> Walkthrough:
    model = Lecture()
    with record_arithmetic(model) as recorder:
        query = recorder.give("query", torch.tensor([[[[0.8, 0.2]]]]))
        key = recorder.give("key", torch.tensor([[[[0.7, 0.3]]]]))
        recorder.model(query, key, recorder.give("share", torch.tensor([[[[0.8]]]])))
    return Walkthrough(recorder.finish())


def test_a_dot_product_is_written_out(lecture: Walkthrough) -> None:
    assert lecture.explain("score", (0, 0, 0, 0)) == "0.62 = 0.8·0.7 + 0.2·0.3"


def test_a_weighted_vector_is_written_out(lecture: Walkthrough) -> None:
    assert lecture.explain("context", (0, 0, 0, 0)) == "0.56 = 0.8·0.7"
    assert lecture.explain("context", (0, 0, 0, -1)) == "0.24 = 0.8·0.3"


def test_unknown_cell_error_names_shape(lecture: Walkthrough) -> None:
    with pytest.raises(ValueError, match=r"score has the shape \(1, 1, 1, 1\); \(0, 0, 0, 1\) is no cell of it"):
        lecture.explain("score", (0, 0, 0, 1))
    with pytest.raises(ValueError, match=r"\(0,\) is no cell"):
        lecture.explain("score", (0,))


FAMILIES = ["transformer", "rotary-swiglu-rms-post", "lstm-additive", "gru-bottleneck", "convolutional"]


@pytest.fixture(params=[*FAMILIES, "wider-convolutional"])
def walk(request: pytest.FixtureRequest, build_model: Any) -> Walkthrough:
    trace = traced(build_model(*bodies.FEW[request.param]))
    words = {"source_tokens": ["a", "b", "c", "</s>"], "given_tokens": ["<s>", "x", "y"]}
    trace.about = {"text": "a b c", "output": "x y", **words, "target_tokens": ["x", "y", "</s>"]}
    return Walkthrough(trace)


SIMPLE = re.compile(r"^[\d.e+·() −-]+$")


def test_the_first_and_the_last_number_of_every_step_can_be_explained(walk: Walkthrough) -> None:
    for shown in walk.records():
        for cell in ([0] * len(shown.record.shape), [-1] * len(shown.record.shape)):
            message = walk.explain(shown.record.key, cell)
            value, _, made = message.partition(" = ")
            assert made, message
            if SIMPLE.match(made):  # sums of a few rounded products can be evaluated
                plain = made.replace("·", "*").replace("−", "-")
                assert float(eval(plain)) == pytest.approx(float(value.replace("−", "-")), rel=0.02, abs=0.01), message


def test_the_gates_of_an_lstm_are_explained_by_their_two_products() -> None:
    layer = Recurrence("lstm", 2, 2).eval()
    with record_arithmetic(layer) as recorder:
        recorder.model(recorder.give("x", torch.randn(1, 3, 2)), layer.start(1, torch.zeros(1)))
    trace = recorder.finish()
    walk = Walkthrough(trace)

    def shown(name: str, *cell: int) -> str:
        return f"{float(trace[name][cell]):.4g}".replace("-", "−")

    message = walk.explain("forget_gate", (0, 2, 1))
    assert message.startswith(f"{shown('forget_gate', 0, 2, 1)} = σ({shown('inputs', 0, 2, 3)} + ")
    cell = walk.explain("cell", (0, 2, 1))
    assert shown("forget_gate", 0, 2, 1) in cell
    assert shown("cell", 0, 1, 1).lstrip("−") in cell
    assert walk.explain("state_before", (0, 0, 1)).endswith("(the initial state)")


def test_focus_keeps_a_layer_and_a_head(build_model: Any) -> None:
    walk = Walkthrough(traced(build_model(*bodies.FEW["transformer"])))
    inside = list(walk.focus(layer=1).records())
    assert inside
    assert all(".layers.1." in shown.record.name for shown in inside)
    heads = {shown.record.name: shown for shown in walk.focus(layer=1, head=1).records()}
    weights = heads["decoder.layers.1.cross_attention.weights"]
    assert torch.equal(weights.tensor, walk.trace["decoder.layers.1.cross_attention.weights"][:, 1])
    for name in (
        "encoder.layers.1.attention.query",
        "decoder.layers.1.cross_attention.query",
    ):  # (B, H, T, d_k) in both
        assert torch.equal(heads[name].tensor, walk.trace[name][:, 1])


def test_focus_keeps_a_step_of_the_output_and_all_of_the_source(walk: Walkthrough) -> None:
    narrowed = {shown.record.key: shown for shown in walk.focus(step=1).records()}
    assert torch.equal(narrowed["logits"].tensor, walk.trace["logits"][:, 1:2])
    assert narrowed["logits"].rows == [f"{walk.trace.about['given_tokens'][1]} → predicts y"]
    assert narrowed["source_embedding.vectors"].tensor.shape[1] == 4


def test_focus_picks_the_right_run_of_a_decoder_that_is_fed_its_output(build_model: Any) -> None:
    trace = traced(build_model(*bodies.FEW["transformer-to-fed-lstm"]))
    trace.about = {"text": "", "target_tokens": ["x", "y", "z"], "given_tokens": ["<s>", "x", "y"]}
    keys = [
        s.record.key for s in Walkthrough(trace).focus(step=2).records() if s.record.name == "decoder.attention.weights"
    ]
    assert keys == ["decoder.attention.weights#3"]


@pytest.mark.parametrize(
    ("what", "message"), [({"layer": 7}, "no layer 7"), ({"head": 5}, "no head 5"), ({"step": 9}, "no step 9")]
)
def test_focus_out_of_range_is_an_error(walk: Walkthrough, what: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        walk.focus(**what)


def test_walkthrough_escapes_markup(walk: Walkthrough) -> None:
    walk.trace.about |= {"source_tokens": ["[red]", "日本", "é", "</s>"]}
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(walk)
    shown = console.export_text()
    assert "softmax(logits)" in shown
    assert "from logits" in shown
    assert "[red]" in shown
    assert "日本" in shown


def test_trace_without_arithmetic_has_no_explanations() -> None:
    walk = Walkthrough(Trace([Record("a", torch.ones(2), "f", (), key="a")]))
    assert [shown.record.key for shown in walk.records()] == ["a"]
    with pytest.raises(ValueError, match="has no arithmetic"):
        walk.explain("a", (0,))


@pytest.mark.parametrize(
    ("plain", "written"),
    [
        ("Q Kᵀ / √d_k", r"Q K^{\top} / \sqrt {d_{k}}"),
        ("softmax(scores)", r"\operatorname{softmax}(\operatorname{scores})"),
        ("c_t = f ∘ c_t−1 + i ∘ g", r"c_{t} = f \odot c_{t-1} + i \odot g"),
        ("(x − μ) / σ · γ + β", r"(x - \mu) / \sigma \cdot \gamma + \beta"),
        ("tanh(W_c [x ; c])", r"\tanh (W_{c} [x ;\, c])"),
    ],
)
def test_formulas_become_latex(plain: str, written: str) -> None:
    assert latex(plain) == written


def test_tokens_that_are_written_from_right_to_left_stay_in_their_columns() -> None:
    """A direction mark after each token keeps terminals from reordering the numbers."""
    console = Console(width=80)
    with console.capture() as capture:
        console.print(*render_values(torch.tensor([[1.5, 2.5], [3.5, 4.5]]), ["لغة", "cat"], ["dog", "كتاب"]))
    head, row, _ = capture.get().splitlines()
    assert head.split() == ["dog", "كتاب\u200e"]
    assert row.split() == ["لغة\u200e", "1.5", "2.5"]


def test_numbers_are_never_cut() -> None:
    matrix = torch.tensor([[0.1211, -12.34, 5.678e-05, 1.234, -0.5678, 9.999e09, 0.3333, -7.777]] * 2)
    for width in (80, 40, 24):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(*render_values(matrix, ["a", "b"], None))
        shown = console.export_text().split()
        for value in matrix[0]:
            assert shown.count(number(value)) == 2, (width, number(value))


def test_rows_and_columns_of_a_decoder_are_the_tokens_it_reads() -> None:
    walk = Walkthrough(lecture_trace())
    steps = {shown.record.key: shown for shown in walk.records()}
    given, target = (walk.trace.about[f"{name}_tokens"] for name in ("given", "target"))
    for point in ("query", "key", "value", "scores", "masked", "context", "output"):
        shown = steps[f"decoder.layers.0.attention.{point}"]
        assert shown.rows == given, point
        if point in ("scores", "masked"):
            assert shown.columns == given
    weights = steps["decoder.layers.0.attention.weights"]
    predicting = [f"{read} → predicts {expected}" for read, expected in zip(given, target, strict=True)]
    assert weights.rows == weights.columns == given
    assert steps["decoder.layers.0.cross_attention.weights"].rows == predicting
    assert steps["logits"].rows == steps["probabilities"].rows == predicting
    for part in ("encoder.layers.0.attention", "decoder.layers.0.attention", "decoder.layers.0.cross_attention"):
        for point in ("query", "key", "value"):
            assert steps[f"{part}.{point}"].record.shape == (1, 1, 3, 6)  # (B, H, T, d_k) everywhere
    assert steps["encoder.layers.0.attention.scores"].record.formula == "Q Kᵀ / √d_k"


def test_a_position_is_written_out_as_a_sinusoid() -> None:
    walk = Walkthrough(lecture_trace())
    message = walk.explain("encoder.positions.vectors", (0, 1, 2))
    assert message.startswith("0.0464 = sin(1 / 10000^(2/6))")
    assert walk.explain("encoder.positions.vectors", (0, 2, 1)).startswith("−0.4161 = cos(2 / 10000^(0/6))")


def test_omitted_special_logits_are_noted() -> None:
    trace = untrained("classifier").trace("a b c d")
    steps = {shown.record.key: shown for shown in Walkthrough(trace).records()}
    logits, probabilities = steps["logits"], steps["probabilities"]
    assert list(logits.columns or ())[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len(logits.columns or ()) == 4 + len(probabilities.columns or ())
    assert probabilities.record.formula == "softmax(logits[4:])"
    assert "which are no labels" in probabilities.record.note
    assert any("which are no labels" in note for note in trace.about["notes"])
