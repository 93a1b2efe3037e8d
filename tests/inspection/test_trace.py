"""Traces: complete, exact, recomputed, saved; and recording changes nothing."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from traced_models import bodies, traced

from sightline.inspection.operations import recompute
from sightline.inspection.recorder import record, record_arithmetic
from sightline.inspection.trace import Record, Ref, Trace, references
from sightline.layers.layout import Padded
from sightline.layers.tap import TapModule
from sightline.models.seq2seq import Seq2Seq
from sightline.run import Run
from untrained_runs import MODELS, OTHERS, untrained


def close(ours: Any, theirs: torch.Tensor) -> bool:
    return ours.shape == tuple(theirs.shape) and np.allclose(ours, theirs.numpy(), rtol=1e-4, atol=2e-5)


def test_every_step_of_every_model_can_be_recomputed_from_tokens_and_weights(any_model: Seq2Seq) -> None:
    trace = traced(any_model)
    values = recompute(trace)
    wrong = [step.key for step in trace if not close(values[step.key], step.tensor)]
    assert wrong == []
    assert [step.note for step in trace.records if step.note] == []
    given = [step.key for step in trace if step.operation == "given"]
    assert given == ["source.tokens", "target.tokens", "labels"]
    big = [s for s in trace.records if s.unnamed and s.operation == "given" and s.tensor.is_floating_point()]
    assert all(not step.tensor.count_nonzero() or step.tensor.numel() <= 64 for step in big)  # masks, zeros, no states


def test_recording_changes_no_logits(any_model: Seq2Seq) -> None:
    source, target = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 9, 4]])
    with torch.no_grad():
        state = any_model.begin(any_model.encode(source, Padded.of([4])))
        alone = any_model.logits(any_model.advance(target, state)[0])
    torch.testing.assert_close(traced(any_model)["logits"], alone, rtol=0, atol=1e-5)


def test_steps_refer_only_to_steps_before_them_and_to_weights(model: Seq2Seq) -> None:
    trace, known = traced(model), set()
    known.update(trace.weights)
    for step in trace.records:
        assert set(references(step.arguments)) <= known, step.key
        known.add(step.key)


def test_inputs_are_the_named_steps_and_weights_right_before(build_model: Any) -> None:
    trace = traced(build_model(*bodies.FEW["transformer"]))
    inputs = {step.name: step.inputs for step in trace}
    attention = "decoder.layers.0.cross_attention"
    assert inputs[f"{attention}.products"] == (f"{attention}.query", f"{attention}.key")
    assert inputs[f"{attention}.scores"] == (f"{attention}.products",)
    assert inputs[f"{attention}.weights"] == (f"{attention}.scores",)
    assert inputs[f"{attention}.context"] == (f"{attention}.weights", f"{attention}.value")
    assert inputs["probabilities"] == ("logits",)
    assert inputs["source_embedding.rows"] == ("source_embedding.weight", "source.tokens")


def test_transformer_trace_has_all_steps_in_order(build_model: Any) -> None:
    body = bodies.transformer("pre", "layer", "sinusoidal", "relu", layers=1)
    names = traced(build_model(body, body)).names
    decoder = [name.removeprefix("decoder.") for name in names if name.startswith("decoder.")]
    own = ["query", "key", "value", "products", "scores", "masked", "weights", "context", "joined", "output"]
    other = [name for name in own if name != "masked"]
    assert decoder == [
        *("positions.vectors", "positions.output", "layers.0.attention_residual.normed"),
        *(f"layers.0.attention.{name}" for name in own),
        *("layers.0.attention_residual.sum", "layers.0.cross_attention_residual.normed"),
        *(f"layers.0.cross_attention.{name}" for name in other),
        *("layers.0.cross_attention_residual.sum", "layers.0.feedforward_residual.normed"),
        *("layers.0.feedforward.hidden", "layers.0.feedforward.output", "layers.0.feedforward_residual.sum"),
        *("layers.0.output", "output"),
    ]
    assert names[-5:] == ["logits", "labels", "probabilities", "losses", "loss"]


# --- finding ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small() -> Trace:
    names = [
        "encoder.layers.0.attention.weights",
        "decoder.layers.2.cross_attention.weights",
        "decoder.layers.2.cross_attention.scores",
    ]
    steps = [Record(name, torch.full((2,), float(place)), "f", (), key=name) for place, name in enumerate(names)]
    again = Record(names[1], torch.full((2,), 9.0), "f", (), key=f"{names[1]}#2")
    return Trace([*steps, again])


def test_a_name_finds_the_last_tensor_of_that_name_and_all_finds_every_one(small: Trace) -> None:
    assert small["decoder.layers.2.cross_attention.weights"][0] == 9
    assert [float(each[0]) for each in small.all("decoder.layers.2.cross_attention.weights")] == [1, 9]
    assert small["decoder.layers.2.cross_attention.weights#2"][0] == 9


def test_layers_may_be_left_out_of_a_name(small: Trace) -> None:
    assert torch.equal(small["decoder.2.cross_attention.scores"], small["decoder.layers.2.cross_attention.scores"])


def test_unknown_name_suggests_similar_ones(small: Trace) -> None:
    with pytest.raises(
        KeyError, match=r"decoder\.layers\.3\.cross_attention\.scores.*decoder\.layers\.2\.cross_attention\.scores"
    ):
        small["decoder.layers.3.cross_attention.scores"]


def test_under_selects_a_part(small: Trace) -> None:
    assert small.under("decoder.layers.2").names == small.under("decoder.2").names == small.names[1:]
    assert "encoder.layers.0.attention.weights" not in small.under("decoder")


# --- keeping ----------------------------------------------------------------------------------------------------------


def test_a_saved_trace_comes_back_exactly(model: Seq2Seq, tmp_path: Path) -> None:
    trace = traced(model)
    trace.about = {"text": "наш 猫 🐈", "loss": 1.5}
    trace.save(tmp_path / "saved")
    back = Trace.load(tmp_path / "saved")
    assert back.about == trace.about
    assert list(back.weights) == sorted(trace.weights)
    assert all(torch.equal(back.weights[name], tensor) for name, tensor in trace.weights.items())
    for ours, theirs in zip(trace.records, back.records, strict=True):
        assert torch.equal(ours.tensor, theirs.tensor)
        assert ours.tensor.dtype == theirs.tensor.dtype
        message = ("key", "name", "formula", "inputs", "operation", "note", "unnamed", "shape")
        assert [getattr(ours, name) for name in message] == [getattr(theirs, name) for name in message]
        assert set(references(ours.arguments)) == set(references(theirs.arguments))
    values = recompute(back)
    assert all(close(values[step.key], step.tensor) for step in back)


def test_a_trace_is_never_written_over_another(small: Trace, tmp_path: Path) -> None:
    small.save(tmp_path / "saved")
    with pytest.raises(FileExistsError, match="saved exists already"):
        small.save(tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_damaged_trace_folder_is_an_error(small: Trace, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a saved trace: it has no trace\.json"):
        Trace.load(tmp_path)
    small.save(tmp_path / "saved")
    (tmp_path / "saved" / "tensors.safetensors").write_bytes(b"12345678")
    with pytest.raises(ValueError, match="is damaged"):
        Trace.load(tmp_path / "saved")


def test_infinities_and_references_survive_json(small: Trace, tmp_path: Path) -> None:
    small.records[0] = Record(
        "a", torch.ones(1), "f", (), "masked_fill", key="a", arguments={"x": Ref("b"), "value": -np.inf}
    )
    small.save(tmp_path / "saved")
    json.loads((tmp_path / "saved" / "trace.json").read_text(), parse_constant=pytest.fail)  # Infinity is not JSON
    assert Trace.load(tmp_path / "saved").records[0].arguments == {"x": Ref("b"), "value": -np.inf}


def test_large_tensors_are_sampled_with_a_note(model: Seq2Seq) -> None:
    trace = traced(model)
    thin = trace.sampled(20)
    heavy = thin.find("logits")
    assert heavy.tensor.numel() <= 20 < trace["logits"].numel()
    assert "sampled: 1 in" in heavy.note
    assert heavy.shape == tuple(trace["logits"].shape)
    assert torch.equal(heavy.tensor, trace["logits"][tuple(slice(None, None, step) for step in heavy.strides)])
    assert thin.find("losses").note == ""


def test_a_trace_shows_itself_in_a_terminal_and_a_notebook(small: Trace) -> None:
    small.about = {"text": "<b>", "output": "[red]x[/red]", "loss": 0.25}
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(small)
    shown = console.export_text()
    assert "decoder.layers.2.cross_attention.weights#2" in shown
    assert "[red]x[/red]" in shown
    html = small._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


# --- recording --------------------------------------------------------------------------------------------------------


class Writing(TapModule):
    """Writes in place into a recorded tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        buffer = x.new_zeros(2, 3)
        buffer[0] = x
        self.tap("half", buffer + 0)
        buffer[1] = 2 * x
        return self.tap("full", buffer * 1)


def test_in_place_writes_do_not_change_records() -> None:
    model, x = Writing(), torch.tensor([1.0, 2.0, 3.0])
    with record_arithmetic(model) as recorder:
        recorder.model(recorder.give("x", x))
    trace = recorder.finish()
    values = recompute(trace)
    assert trace["half"].tolist() == values["half"].tolist() == [[1, 2, 3], [0, 0, 0]]
    assert trace["full"].tolist() == values["full"].tolist() == [[1, 2, 3], [2, 4, 6]]


class Sorting(TapModule):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tap("sorted", torch.sort(x * 2).values + 1)


def test_unknown_kernels_are_noted() -> None:
    model = Sorting()
    with record_arithmetic(model) as recorder:
        recorder.model(recorder.give("x", torch.tensor([3.0, 1.0])))
    trace = recorder.finish()
    assert [step.note for step in trace.records if step.note] == ["not recomputed: no operation for aten::sort"]
    assert recompute(trace)["sorted"].tolist() == [3, 7]


def test_a_plain_recording_keeps_tensors_without_their_arithmetic(model: Seq2Seq) -> None:
    with torch.no_grad(), record(model) as trace:
        model.encode(torch.tensor([[5, 3]]), Padded.of([2]))
    assert "source_embedding.vectors" in trace
    assert {step.operation for step in trace.records} == {None}


TEXT = "Zwei Männer spielen Schach, 漢字 und mehr 🙂."
NAMES = [*MODELS, *OTHERS, "bottleneck"]


def text_of(name: str) -> str:
    return "a b c d" if name == "tagger" else TEXT


def logits_alone(run: Run, trace: Any) -> torch.Tensor:
    """The logits for the tokens of a trace, without recording."""
    read, given = (trace[name].clone() if name in trace else None for name in ("source.tokens", "target.tokens"))
    layouts = [None if tokens is None else Padded.of([tokens.shape[1]]) for tokens in (read, given)]
    with torch.inference_mode():
        found: torch.Tensor = run.model.logits(run.model(read, layouts[0], given, layouts[1]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_recorded_search_equals_unrecorded(name: str) -> None:
    run, text = untrained(name), text_of(name)
    alone = run.predict_nbest([text])[0]
    with record(run.model) as trace:
        recorded = run.predict_nbest([text])[0]
    assert len(trace) > 5
    assert [guess.tokens for guess in recorded] == [guess.tokens for guess in alone]
    assert [guess.score for guess in recorded] == pytest.approx([guess.score for guess in alone], abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_logits_are_those_of_the_fast_kernels(name: str) -> None:
    run = untrained(name)
    trace = run.trace(text_of(name))
    torch.testing.assert_close(trace["logits"], logits_alone(run, trace), rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", ["record", "trace"])
def test_recording_is_isolated_from_other_threads(how: str) -> None:
    run = untrained("transformer")
    expected = run.predict([TEXT])
    alone = run.trace(TEXT, target="Ein Hund").names if how == "trace" else record_alone(run)
    stop, predicted, failed = threading.Event(), [], []

    def predict() -> None:
        try:
            while not stop.is_set():
                predicted.append(run.predict([TEXT]))
        except Exception as error:
            failed.append(error)

    other = threading.Thread(target=predict)
    other.start()
    try:
        for _ in range(3):
            names = run.trace(TEXT, target="Ein Hund").names if how == "trace" else record_alone(run)
            assert names == alone
    finally:
        stop.set()
        other.join()
    assert not failed
    assert predicted
    assert all(found == expected for found in predicted)


def record_alone(run: Run) -> list[str]:
    with record(run.model) as trace, torch.inference_mode():
        run.model.encode(torch.tensor([[5, 6, 7, 3]]), Padded.of([4]))
        time.sleep(0.2)  # while the other thread predicts
    return [step.key for step in trace]
