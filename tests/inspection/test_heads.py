"""Heads: reading them from a trace, their measures, ablation."""

from __future__ import annotations

import html
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from sightline import run as runs
from sightline.decoding.scoring import log_probabilities
from sightline.inspection.ablation import AblationEffect, ablate, ablate_each, ablated, effects_table
from sightline.inspection.attention import (
    Head,
    find_head,
    head_names,
    heads_table,
    measure_head,
    short_name,
    trace_heads,
)
from sightline.layers.tap import TapModule, Tapped, on_taps
from sightline.plots.heads import draw_head_grid
from sightline.plots.matrices import row_shares
from sightline.terminal import visible
from untrained_runs import LOOKING, MODELS, WRITING, untrained

TEXT = "Ein Hund lacht über 漢字 🙂."
HEADS = {
    "transformer": {"encoder": 4, "decoder": 4, "cross": 4},
    "recurrent": {"cross": 1},
    "linear": {"encoder": 4, "cross": 1},
    "convolutional": {"cross": 2},
    "decoder-only": {"decoder": 4},
    "language-model": {"decoder": 4},
    "classifier": {"encoder": 4},
    "tagger": {"encoder": 4},
}


def heads(name: str) -> list[Head]:
    texts = {"classifier": "a b c d", "tagger": "a b c d", "language-model": "Zwei Männer"}
    target = " spielen" if name == "language-model" else None
    return trace_heads(untrained(name).trace(texts.get(name, TEXT), target))


@pytest.mark.parametrize("name", MODELS)
def test_heads_have_labels_for_rows_and_columns(name: str) -> None:
    found = heads(name)
    assert {kind: sum(head.kind == kind for head in found) for kind in HEADS[name]} == HEADS[name]
    assert len(found) == sum(HEADS[name].values())
    assert sorted(head.name for head in found) == sorted(head_names(untrained(name).model))
    for head in found:
        assert head.weights.shape == (len(head.queries), len(head.keys))
        if name != "linear" or head.kind == "encoder":
            np.testing.assert_allclose(head.weights.sum(1), 1.0, atol=1e-5)  # float32 sums of a few
        if head.kind == "decoder":
            assert not np.triu(head.weights, 1).any()


@pytest.mark.parametrize("name", MODELS)
def test_no_listener_remains(name: str) -> None:
    heads(name)
    assert not any(part.recorded for part in untrained(name).model.modules() if isinstance(part, TapModule))


def test_cross_attention_rows_are_outputs() -> None:
    found = trace_heads(untrained("transformer").trace("Ein Hund", "A dog"))
    sides = {head.kind: ("".join(head.queries), "".join(head.keys)) for head in found}
    assert sides["encoder"] == ("▁Ein▁Hund</s>", "▁Ein▁Hund</s>")
    assert sides["decoder"] == ("<s>▁A▁dog", "<s>▁A▁dog")
    assert sides["cross"] == ("▁A▁dog</s>", "▁Ein▁Hund</s>")


def test_default_output_is_decoded() -> None:
    run = untrained("transformer")
    own = run.vocabulary.target.pieces(run.predict_nbest([TEXT])[0][0].tokens)
    assert next(head for head in heads("transformer") if head.kind == "cross").queries == [*own, "</s>"]


def test_cross_attention_equals_alignment() -> None:
    run = untrained("transformer")
    alignment = run.align("Ein Hund", "A dog")
    found = trace_heads(run.trace("Ein Hund", "A dog"))
    lower = [head.weights for head in found if head.path == "decoder.layers.0.cross_attention"]  # the penultimate layer
    assert alignment is not None
    np.testing.assert_allclose(np.mean(lower, axis=0), alignment.weights, atol=1e-6)


def test_a_model_without_attention_has_no_heads() -> None:
    assert heads("bottleneck") == []


def test_heads_have_short_names_too() -> None:
    model = untrained("transformer").model
    assert find_head(model, "decoder.layers.1.cross_attention.0") == ("decoder.layers.1.cross_attention", 0)
    assert find_head(model, "decoder.1.cross_attention.0") == ("decoder.layers.1.cross_attention", 0)
    assert find_head(model, "encoder.0.self.1") == ("encoder.layers.0.attention", 1)
    assert find_head(untrained("recurrent").model, "decoder.attention.0") == ("decoder.attention", 0)
    with pytest.raises(
        ValueError, match=r"no head 'decoder.7.cross_attention.0'; it has encoder.layers.0.attention.0 … "
    ):
        find_head(model, "decoder.7.cross_attention.0")


def test_the_table_has_a_line_for_each_head_at_eighty_columns() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(heads_table(heads("transformer")))
    text = console.export_text()
    for head in heads("transformer"):
        assert short_name(head.name) in text
    assert f"{heads('transformer')[0].measures.entropy:.2f}" in text


def test_heads_to_dict() -> None:
    head = heads("transformer")[0]
    data = json.loads(json.dumps(head.to_dict()))
    assert data["name"] == head.name and data["keys"] == head.keys
    np.testing.assert_allclose(data["weights"], head.weights, atol=1e-6)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_grid_is_drawn_in_any_script(suffix: str, tmp_path: Path) -> None:
    found = [head for head in heads("transformer") if head.kind == "cross"]
    path = tmp_path / f"heads{suffix}"
    draw_head_grid(found, path, title=f"$ {TEXT} $")
    magic = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(magic[suffix])
    if suffix == ".svg":
        draw_head_grid(found, tmp_path / "again.svg", title=f"$ {TEXT} $")
        assert path.read_text() == (tmp_path / "again.svg").read_text()


def test_a_grid_shows_every_kind_of_attention_with_every_token(tmp_path: Path) -> None:
    found = heads("transformer")
    draw_head_grid(found, tmp_path / "heads.svg", title=TEXT)
    text = (tmp_path / "heads.svg").read_text()
    comments = [html.unescape(comment) for comment in re.findall(r"<!-- (.*?) -->", text, flags=re.S)]
    shown = "\n".join(comments)
    for kind in ("encoder self-attention", "decoder self-attention", "cross-attention"):
        assert kind in shown
    first = {head.kind: head for head in reversed(found)}
    layers = {kind: len({head.path for head in found if head.kind == kind}) for kind in first}
    expected: Counter[str] = Counter()
    for kind, head in first.items():  # above the first row of panels, and beside the first panel of each row
        expected.update(map(visible, head.keys))
        for _ in range(layers[kind]):
            expected.update(map(visible, head.queries))
    assert all(comments.count(token) >= count for token, count in expected.items() if len(token) <= 16)
    assert comments.count("layer 0") == len(first)


def test_a_grid_needs_heads_and_a_known_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no heads to show"):
        draw_head_grid([], tmp_path / "heads.png")
    with pytest.raises(ValueError, match=r"heads.jpg: a figure is a .png, .svg, .pdf file"):
        draw_head_grid(heads("recurrent"), tmp_path / "heads.jpg")
    assert not list(tmp_path.iterdir())


def test_omitted_labels_are_counted(tmp_path: Path) -> None:
    tokens = [f"wort{number}" for number in range(150)]
    weights = np.eye(150, dtype=np.float32)
    found = [Head("encoder", "encoder.layers.0.attention", number, tokens, tokens, weights) for number in range(8)]
    draw_head_grid(found, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "wort0" in text and "of 150 columns, 150 of 150 rows named" in text


def test_single_key_has_zero_entropy() -> None:
    found = measure_head(np.eye(4, dtype=np.float32))
    assert (found.entropy, found.entropy_share, found.confidence) == (0.0, 0.0, 1.0)


def test_uniform_attention_has_maximal_entropy() -> None:
    found = measure_head(np.full((3, 5), 0.2, dtype=np.float32))
    assert found.entropy == pytest.approx(math.log(5))
    assert found.entropy_share == pytest.approx(1.0)
    assert found.diagonality == pytest.approx(0.0, abs=1e-6)
    assert found.confidence == pytest.approx(0.2)


def test_diagonality_of_both_diagonals() -> None:
    assert measure_head(np.eye(5, dtype=np.float32)).diagonality == pytest.approx(1.0)
    assert measure_head(np.eye(5, dtype=np.float32)[::-1]).diagonality < 0


def test_stretched_diagonal_has_diagonality_one() -> None:
    weights = np.zeros((3, 5), dtype=np.float32)
    weights[[0, 1, 2], [0, 2, 4]] = 1.0
    assert measure_head(weights).diagonality == pytest.approx(1.0)


def test_diagonality_by_hand() -> None:
    weights = np.array([[0.5, 0.5], [0.0, 1.0]], dtype=np.float32)  # distances 0 and 1: 0.5, uniform 1
    assert measure_head(weights).diagonality == pytest.approx(0.5)


def test_causal_mask_limits_entropy() -> None:
    even = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    found = measure_head(even.astype(np.float32), causal=True)
    assert found.entropy_share == pytest.approx(1.0, abs=1e-6)
    assert found.diagonality == pytest.approx(0.0, abs=1e-6)
    assert measure_head(even.astype(np.float32)).entropy_share < 0.8


def test_single_query_and_key_are_undefined() -> None:
    found = measure_head(np.ones((1, 1), dtype=np.float32), causal=True)
    assert math.isnan(found.entropy_share) and math.isnan(found.diagonality)
    assert found.to_dict() == {"entropy": 0.0, "entropy_share": None, "diagonality": None, "confidence": 1.0}


def test_negative_weights_use_absolute_values() -> None:
    found = row_shares(np.array([[-1.0, 3.0], [0.0, 0.0]], dtype=np.float32))
    assert found.tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_local_and_compressed_heads_are_labelled() -> None:
    trace = untrained("spans").trace("Ein Hund bellt laut.", "A dog barks.")
    heads = {head.name: head for head in trace_heads(trace)}
    local, compressed = (heads[f"decoder.layers.{number}.attention.0"] for number in range(2))
    count = len(local.queries)
    assert local.weights.shape == (count, count)
    near = np.arange(count) // 3
    seen = (near[:, None] == near[None, :]) & np.tri(count, dtype=bool)
    assert np.array_equal(local.weights > 0, seen)
    assert compressed.keys == compressed.queries[::3]
    assert compressed.weights.shape == (count, len(compressed.keys))
    assert np.array_equal((compressed.weights > 0).sum(1), np.arange(count) // 3 + 1)
    assert 0 < compressed.measures.entropy_share <= 1


TEXTS = ["Ein Hund bellt laut.", "Zwei Männer lachen."]


def scores(run: runs.Run) -> np.ndarray:
    sources = run.vocabulary.source.encode_many(TEXTS)
    return log_probabilities(run.model, sources, [[5, 6, 7], [8, 9]])


@pytest.mark.parametrize("name", LOOKING)
def test_ablated_head_has_zero_context(name: str) -> None:
    run, taps = untrained(name), []
    target = head_names(run.model)[-1]
    path, _, number = target.rpartition(".")

    def hear(tapped: Tapped) -> None:
        if tapped.name == f"{path}.context":
            taps.append(tapped.tensor.clone())

    with ablated(run.model, [target]), on_taps(run.model, hear):
        scores(run)
    assert taps
    for context in taps:  # (B, H, T, K)
        assert not context[:, int(number)].any()
        others = [head for head in range(context.shape[1]) if head != int(number)]
        assert context[:, others].any(dim=-1).all()


def test_ablation_equals_zero_output_projection() -> None:
    run = untrained("transformer")
    layer = run.model.decoder.layers[1].cross_attention
    with ablated(run.model, ["decoder.1.cross_attention.1"]):
        silent = scores(run)
    kept = layer.output.weight.detach().clone()
    with torch.no_grad():
        layer.output.weight[:, 8:] = 0.0  # head 1 of 2, of width 16
        cut = scores(run)
        layer.output.weight.copy_(kept)
    np.testing.assert_allclose(silent, cut, atol=1e-4)  # fused against explicit kernel
    assert np.abs(silent - scores(run)).max() > 1e-2


def test_coverage_penalty_works_with_ablation() -> None:
    run = untrained("transformer")
    options = run.options(beam=2, coverage_penalty=0.2)
    heads = [name for name in head_names(run.model) if ".cross_attention." in name]
    whole = run.predict_nbest(TEXTS, options)
    with ablated(run.model, heads):
        silent = run.predict_nbest(TEXTS, options)
    assert [each[0].score for each in silent] != [each[0].score for each in whole]


@pytest.mark.parametrize("name", WRITING)
def test_the_effect_is_the_change_of_the_log_probability(name: str) -> None:
    run = untrained(name)
    heads = head_names(run.model)[:2]
    effect = ablate(run, heads, TEXTS)
    if name == "language-model":
        sources, outputs = [[], []], run.vocabulary.target.encode_many(TEXTS)
    else:
        sources = run.vocabulary.source.encode_many(TEXTS)
        outputs = [guesses[0].tokens for guesses in run.predict_nbest(TEXTS)]
    whole = log_probabilities(run.model, sources, outputs).sum()
    with ablated(run.model, heads):
        without = log_probabilities(run.model, sources, outputs).sum()
    assert effect.heads == tuple(heads)
    assert effect.log_probability == pytest.approx(without - whole, abs=1e-3)


def test_ablate_each_sorts_by_effect() -> None:
    run = untrained("transformer")
    effects = ablate_each(run, TEXTS, ["A dog barks.", "Two men laugh."])
    assert {effect.heads[0] for effect in effects} == set(head_names(run.model))
    changes = [effect.log_probability for effect in effects]
    assert changes == sorted(changes)
    alone = ablate(run, effects[0].heads, TEXTS, ["A dog barks.", "Two men laugh."])
    assert alone.log_probability == pytest.approx(changes[0], abs=1e-9)


def test_a_corpus_metric_is_measured_with_and_without() -> None:
    run = untrained("recurrent")
    test = runs.TestSet("test", TEXTS, [["A dog barks."], ["Two men laugh."]], 2)

    def chrf() -> float:
        return run.measure("chrf", test, run.predict(test.sources), lowercase=False).value

    whole = chrf()
    effect = ablate(run, ["decoder.attention.0"], TEXTS, measure=chrf)
    with ablated(run.model, ["decoder.attention.0"]):
        without = chrf()
    assert effect.metric == pytest.approx(without - whole)
    assert without != whole


def test_ablation_refuses_unsuitable_runs() -> None:
    with pytest.raises(ValueError, match=r"no head 'decoder.9.cross_attention.0'"):
        ablate(untrained("transformer"), ["decoder.9.cross_attention.0"], TEXTS)
    with pytest.raises(ValueError, match="for models that write, and this run is task: tagging"):
        ablate_each(untrained("tagger"), ["a b"])
    with pytest.raises(ValueError, match="nothing in this model attends"):
        ablate_each(untrained("bottleneck"), TEXTS)


def test_the_table_shows_the_metric_only_where_there_is_one() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(effects_table([AblationEffect(("a.0",), -1.25)]))
    console.print(effects_table([AblationEffect(("b.1",), 0.5, -3.0)], metric="BLEU"))
    first, second = console.export_text().split("without head")[1:]
    assert "-1.250" in first and "BLEU" not in first
    assert "+0.500" in second and "-3.000" in second and "BLEU" in second
