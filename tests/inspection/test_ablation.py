"""Heads switched off: nothing comes from them, and all is as before when they are back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rich.console import Console

from sightline import run as runs
from sightline.decoding.scoring import log_probabilities
from sightline.inspection.ablation import AblationEffect, ablate, ablate_each, ablated, effects_table
from sightline.inspection.attention import head_names
from sightline.layers.tap import Tapped, on_taps
from untrained_runs import LOOKING, WRITING, untrained

TEXTS = ["Ein Hund bellt laut.", "Zwei Männer lachen."]


def scores(run: runs.Run) -> np.ndarray:
    sources = run.vocabulary.source.encode_many(TEXTS)
    return log_probabilities(run.model, sources, [[5, 6, 7], [8, 9]])


@pytest.mark.parametrize("name", LOOKING)
def test_a_silent_head_has_no_context_while_the_others_keep_theirs(name: str) -> None:
    run, heard = untrained(name), []
    target = head_names(run.model)[-1]
    path, _, number = target.rpartition(".")

    def hear(tapped: Tapped) -> None:
        if tapped.name == f"{path}.context":
            heard.append(tapped.tensor.clone())

    with ablated(run.model, [target]), on_taps(run.model, hear):
        scores(run)
    assert heard
    for context in heard:  # (B, H, T, K)
        assert not context[:, int(number)].any()
        others = [head for head in range(context.shape[1]) if head != int(number)]
        assert context[:, others].any(dim=-1).all()


def test_switching_off_a_head_is_taking_its_rows_out_of_the_output_projection() -> None:
    run = untrained("transformer")
    layer = run.model.decoder.layers[1].cross_attention
    with ablated(run.model, ["decoder.1.cross_attention.1"]):
        silent = scores(run)
    kept = layer.output.weight.detach().clone()
    with torch.no_grad():
        layer.output.weight[:, 8:] = 0.0  # head 1 of 2, of width 16
        cut = scores(run)
        layer.output.weight.copy_(kept)
    np.testing.assert_allclose(silent, cut, atol=1e-4)  # the fused kernel on one side, the explicit on the other
    assert np.abs(silent - scores(run)).max() > 1e-2


def test_a_search_with_a_coverage_penalty_hears_the_silent_head_too() -> None:
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


def test_every_head_is_tried_and_the_most_needed_stands_first() -> None:
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


def test_what_cannot_be_ablated_is_an_error() -> None:
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
