"""Views of heads, beam, ablation and experts, for a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from sightline.decoding.scoring import log_probabilities
from sightline.inspection.ablation import ablated
from sightline.inspection.alignment import alignment_of
from sightline.inspection.attention import first_seen, receptive_fields, routings, trace_heads
from sightline.inspection.lecture_example import lecture_trace
from sightline.inspection.views import (
    InspectionView,
    Subject,
    ablation_view,
    beam_view,
    experts_view,
    heads_view,
    records_view,
    tokens_view,
)
from sightline.inspection.walkthrough import Walkthrough
from untrained_runs import untrained

TEXT = "Zwei Männer spielen Schach, 漢字 und mehr 🙂."


def printed(viewed: InspectionView) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(viewed.shown)
    json.dumps(viewed.record())
    return capture.get()


def test_alignment_is_mean_of_cross_attention_heads() -> None:
    trace = untrained("transformer").trace(TEXT)
    found = alignment_of(trace_heads(trace))
    assert found is not None
    both = [trace[f"decoder.{layer}.cross_attention.weights"][0] for layer in (0, 1)]
    np.testing.assert_allclose(found.weights, sum(part.mean(0) for part in both).numpy() / 2, atol=1e-6)
    assert alignment_of(trace_heads(untrained("decoder-only").trace(TEXT))) is None


def test_certain_token_has_loss_zero_not_minus_zero() -> None:
    viewed = tokens_view(Subject(untrained("classifier"), "a b c d"))  # it has one label
    assert [str(choice["loss"]) for choice in viewed.record()] == ["0.0"]
    assert "loss 0.0000" in printed(viewed) and "-0" not in printed(viewed)


def test_heads_are_shown_by_layer_and_number(tmp_path: Path) -> None:
    viewed = heads_view(Subject(untrained("transformer"), TEXT, layer=1, head=0))
    shown = printed(viewed)
    assert "decoder.1.cross.0" in shown
    assert "decoder.0" not in shown
    assert "cross.1" not in shown
    viewed.picture(tmp_path / "heads.svg")
    assert (tmp_path / "heads.svg").stat().st_size > 1_000


def test_the_beam_is_the_search_that_gave_the_output() -> None:
    run = untrained("transformer")
    record = beam_view(Subject(run, TEXT)).record()
    last = record["nodes"][record["outputs"][0]]
    assert last["score"] == pytest.approx(run.predict_nbest([TEXT])[0][0].score, abs=1e-5)


def test_a_head_is_switched_off_by_its_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    run = untrained("transformer")
    scores = iter([30.0, 10.0])
    monkeypatch.setattr(run, "test_set", lambda on: on)
    monkeypatch.setattr(run, "evaluate", lambda on: SimpleNamespace(scores=[SimpleNamespace(value=next(scores))]))
    viewed = ablation_view(Subject(run, TEXT), ["decoder.1.cross_attention.0"], on="test")
    (effect,) = viewed.record()["effects"]
    source, output = run.vocabulary.source.encode(TEXT), run.predict_nbest([TEXT])[0][0].tokens
    whole = log_probabilities(run.model, [source], [output])[0]
    with ablated(run.model, ["decoder.layers.1.cross_attention.0"]):
        without = log_probabilities(run.model, [source], [output])[0]
    assert effect["log_probability"] == pytest.approx(float(without - whole), abs=1e-4)
    assert effect["metric"] == -20.0
    assert "BLEU on test" in printed(viewed)


def test_each_head_of_a_layer_is_switched_off_in_turn() -> None:
    effects = ablation_view(Subject(untrained("transformer"), TEXT, layer=0)).record()["effects"]
    names = {effect["heads"][0] for effect in effects}
    assert names == {
        f"{path}.{number}"
        for path in ("encoder.layers.0.attention", "decoder.layers.0.attention", "decoder.layers.0.cross_attention")
        for number in (0, 1)
    }


def test_unknown_head_lists_existing_ones() -> None:
    run = untrained("transformer")
    for view in (heads_view, ablation_view):
        with pytest.raises(
            ValueError, match=r"--layer 7 --head 1: there is no such head; there are encoder\.layers\.0"
        ):
            view(Subject(run, TEXT, layer=7, head=1))
    with pytest.raises(
        ValueError, match=r"it has decoder\.layers\.1\.cross_attention\.0 … decoder\.layers\.1\.cross_attention\.1"
    ):
        ablation_view(Subject(run, TEXT), ["decoder.1.cross_attention.7"])


def test_tokens_view_of_one_step() -> None:
    run = untrained("transformer")
    every = tokens_view(Subject(run, TEXT)).record()
    assert tokens_view(Subject(run, TEXT, step=1)).record() == [every[1]]
    with pytest.raises(ValueError, match="--step 99: the output has no such token"):
        tokens_view(Subject(run, TEXT, step=99))


def test_experts_of_each_token_are_those_with_the_best_scores() -> None:
    trace = untrained("experts").trace(TEXT)
    found = routings(trace)
    assert [routing.path for routing in found] == ["encoder.layers.1.feedforward", "decoder.layers.1.feedforward"]
    scores = trace["encoder.layers.1.feedforward.scores"][0].numpy()
    for place, row in enumerate(scores):
        best = [number for number, _ in found[0].best(place)]
        assert best == np.argsort(-row)[:2].tolist()
    assert sum(found[0].routed) == 2 * len(found[0].tokens)
    assert found[0].shares.sum() == pytest.approx(1)
    assert "expert" in printed(experts_view(Subject(untrained("experts"), TEXT)))


def test_a_cell_of_gates_and_of_a_mixture_is_explained() -> None:
    trace = untrained("experts").trace(TEXT)
    walk, name = Walkthrough(trace), "encoder.1.feedforward"
    gates, output = trace[f"{name}.gates"][0, 0], trace[f"{name}.output"][0, 0, 15]
    chosen = int(gates.argmax())
    message = walk.explain(f"{name}.gates", (0, 0, chosen))
    assert message.startswith(f"{gates[chosen]:.4g} = exp(")
    assert "not among the top 2" in walk.explain(f"{name}.gates", (0, 0, int(gates.argmin())))
    value, sum_of = walk.explain(f"{name}.output", (0, 0, 15)).replace("−", "-").split(" = ")
    assert float(value) == pytest.approx(float(output), rel=1e-3)
    assert eval(sum_of.replace("·", "*")) == pytest.approx(float(output), rel=5e-3)


def test_receptive_fields_of_dilated_convolutions_grow() -> None:
    found = receptive_fields(untrained("bytenet").trace(TEXT))
    assert [(window.side, window.offsets, window.reach) for window in found] == [
        ("encoder", (-1, 0, 1), (-1, 1)),
        ("encoder", (-2, 0, 2), (-3, 3)),
        ("encoder", (-1, 0, 1), (-4, 4)),
        ("decoder", (-2, -1, 0), (-2, 0)),
        ("decoder", (-4, -2, 0), (-6, 0)),
        ("decoder", (-2, -1, 0), (-8, 0)),
    ]
    seen = first_seen(found[:3], 10)
    assert seen[5].tolist() == [0, 3, 2, 2, 1, 1, 1, 2, 2, 3]


def test_rows_of_a_layer_that_reads_from_the_end_are_named_in_that_order() -> None:
    trace = untrained("recurrent").trace(TEXT)
    rows = {shown.record.name: shown.rows for shown in Walkthrough(trace).records()}
    tokens = trace.about["source_tokens"]
    assert rows["encoder.layers.0.backward.update_gate"] == tokens[::-1]
    assert rows["encoder.layers.0.update_gate"] == tokens
    assert rows["encoder.layers.0.output"] == tokens


@pytest.mark.parametrize(
    ("view", "name", "message"),
    [
        (heads_view, "bytenet", "this model has no attention"),
        (experts_view, "transformer", "the model has none"),
        (beam_view, None, "a search needs a run folder"),
        (ablation_view, None, "switching heads off needs a run folder"),
        (ablation_view, "tagger", "take a metric inside"),
    ],
)
def test_unavailable_view_is_an_error(
    view: Callable[[Subject], InspectionView], name: str | None, message: str
) -> None:
    subject = Subject(recorded=lecture_trace()) if name is None else Subject(untrained(name), TEXT)
    with pytest.raises(ValueError, match=message):
        view(subject)


def test_a_view_without_a_picture_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this view has no picture"):
        records_view(Subject(recorded=lecture_trace())).picture(tmp_path / "x.png")
